"""`elign remember` and `elign repair` as a person meets them, on real pictures and checkpoints."""

from __future__ import annotations

import html
import json
import re
import shutil

import pytest
import safetensors
import torch
from tests.lab.repairing.conftest import NAMES, ORDER, SIZE

import elign
from elign.lab.cli.main import main


def balanced(scores, labels, classes):
    """Mean accuracy of classes, by hand."""
    predicted = scores.argmax(dim=1)
    return sum((predicted[labels == c] == c).double().mean().item() for c in classes) / len(classes)


def outputs(world, out):
    """Logits of the test pictures without and with the repair that a command wrote."""
    model = world.load("new.safetensors", 10)
    x, labels = world.inputs("test")
    with torch.no_grad():
        before = model(x)
        with elign.Repair.load(out / "repair.safetensors").attach(model):
            after = model(x)
    return x, labels, before, after


@pytest.mark.parametrize("known", ["statistics", "exemplars", "both", "neither"])
def test_a_repair_from_files_to_files(world, statistics, repair, tmp_path, known):
    out = tmp_path / "repaired"
    given = {"statistics": statistics} if known in ("statistics", "both") else {}
    given |= {"exemplars": world / "few"} if known in ("exemplars", "both") else {}
    code, report = repair(out=out, test=world / "test", **given)
    assert code == 0, report
    assert json.loads((out / "report.json").read_text()) == report
    _, labels, before, after = outputs(world, out)
    for name, scores in (("before", before), ("after", after)):
        row = report["accuracy"][name]
        for key, classes in (("old", range(5)), ("new", range(5, 10)), ("balanced", range(10))):
            assert row[key] == pytest.approx(balanced(scores, labels, classes), abs=1e-9), (name, key)
        for entry in report["classes"]:
            assert entry["name"] == ORDER[entry["output"]]
            mine = labels == entry["output"]
            assert entry[name] == pytest.approx(balanced(scores[mine], labels[mine], [entry["output"]]))
            assert entry["pictures"] == int(mine.sum())
        assert report["confidence"][name]["confidence"] == pytest.approx(
            scores.softmax(dim=1).max(dim=1).values.mean().item(), abs=1e-5
        )
    assert report["measured_on"] == "test pictures"
    assert report["mode"] == ("weights" if known == "neither" else "classifier")
    if known != "neither":
        assert report["accuracy"]["after"]["old"] > report["accuracy"]["before"]["old"] + 0.2
    assert any("worse than the head alone" in note for note in report["notes"]) == (known == "neither")
    assert any("neither statistics nor exemplars" in note for note in report["notes"]) == (known == "neither")
    assert {entry["name"] for entry in report["classes"] if entry["old"]} == set(NAMES[:5])
    loaded = elign.ClassStatistics.load(out / "statistics.safetensors")
    assert loaded.classes.tolist() == (list(range(5, 10)) if known == "neither" else list(range(10)))
    with safetensors.safe_open(out / "statistics.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["class_names"]) == ORDER
    page_is_one_small_file((out / "report.html").read_text(), report)


@pytest.mark.parametrize("known", ["statistics", "exemplars"])
def test_the_onnx_file_gives_the_same_numbers(world, statistics, repair, tmp_path, with_onnx, known):
    given = {"statistics": statistics} if known == "statistics" else {"exemplars": world / "few"}
    code, report = repair(out=tmp_path / "out", **given)
    assert code == 0
    assert "model.onnx" in report["files"]
    x, _, _, after = outputs(world, tmp_path / "out")
    session = with_onnx.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), after, rtol=1e-3, atol=1e-3)


def test_without_the_extra_for_onnx(world, statistics, repair, tmp_path):
    code, report = repair(out=tmp_path / "out", statistics=statistics)
    assert code == 0
    assert report["files"] == ["repair.safetensors", "statistics.safetensors", "report.html", "report.json"]
    assert any("pip install 'elign[export]'" in note for note in report["notes"])


def page_is_one_small_file(page, report):
    assert len(page) < 2_000_000
    assert not re.findall(r"<script|https?://|src=\"(?!data:)", page)
    for row in (report["accuracy"]["before"], report["accuracy"]["after"]):
        assert f"{100 * row['balanced']:.1f}\u00a0%" in page
    assert page.count('class="number">') > 30
    assert page.count("data:image/jpeg") >= 4
    assert report["verdict"] in html.unescape(page)


def test_the_alternatives_are_those_of_the_library(world, statistics, repair, tmp_path):
    """A retrained head and an offset, learned from samples and new latents, on the test pictures."""
    code, report = repair(out=tmp_path / "out", statistics=statistics, test=world / "test")
    assert code == 0
    rows = report["accuracy"]["alternatives"]
    assert set(rows) == {"bias offset", "retrained head"}
    _, labels, before, _ = outputs(world, tmp_path / "out")
    # By brute force: no single offset for the new classes does better on the test pictures than the best one there.
    best = max(
        balanced(before - offset * (torch.arange(10) >= 5), labels, range(10))
        for offset in torch.linspace(-20, 20, 801)
    )
    assert before.shape == (200, 10)
    assert report["accuracy"]["before"]["balanced"] < rows["bias offset"]["balanced"] <= best + 1e-9
    assert report["accuracy"]["best alternative"] == max(rows, key=lambda name: rows[name]["balanced"])


def test_without_test_pictures_the_numbers_are_the_estimate(world, statistics, repair, tmp_path):
    code, report = repair(out=tmp_path / "out", statistics=statistics)
    assert code == 0
    assert report["measured_on"] == "estimate on samples"
    assert report["accuracy"]["after"] == report["estimate"]["estimates"]["repair"]
    assert report["verdict"] == report["estimate"]["verdict"]
    assert "not a measurement" in (tmp_path / "out/report.html").read_text()
    assert report["confidence"]["on"] == "training pictures of new classes"


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """How many pictures went through the network since the last call."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))

    def count():
        file = tmp_path / "seen"
        found = int(file.read_text()) if file.exists() else 0
        file.unlink(missing_ok=True)
        return found

    return count


def test_a_second_run_uses_the_cache_and_runs_no_model(world, statistics, repair, tmp_path, seen):
    given = {"out": tmp_path / "out", "statistics": statistics, "test": world / "test"}
    _, first = repair(**given)
    assert first["extracted"] == 300 + 300 + 200
    assert seen() > 800
    _, second = repair(**given)
    assert second["extracted"] == 0
    assert seen() < 60  # the checks of the head and of the ONNX file
    assert second["accuracy"] == first["accuracy"]


def test_a_cache_belongs_to_its_pictures_weights_and_size(world, statistics, repair, tmp_path):
    folder = tmp_path / "new"
    shutil.copytree(world / "new", folder)
    given = {"out": tmp_path / "out", "statistics": statistics, "new": folder}
    _, first = repair(**given)
    assert first["extracted"] == 600
    next(folder.glob("*/000.png")).unlink()
    assert repair(**given)[1]["extracted"] == 598
    assert repair(**given)[1]["extracted"] == 0
    picture = next(folder.glob("*/001.png"))
    picture.touch()
    assert repair(**given)[1]["extracted"] == 598
    # The latents of former pictures and weights are gone.
    assert len(list((tmp_path / "out/cache").iterdir())) == 2
    for chunk in (tmp_path / "out/cache").glob("*/*.safetensors"):
        chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    assert repair(**given)[1]["extracted"] == 598


def test_an_extraction_that_was_interrupted_goes_on(world, statistics, repair, tmp_path, monkeypatch, seen):
    monkeypatch.setattr("elign.lab.repairing.latent_cache.CHUNK", 64)
    given = {"statistics": statistics, "test": world / "test"}
    _, whole = repair(out=tmp_path / "whole", **given)
    seen()
    monkeypatch.setenv("STOP", "350")  # within the third chunk of the new pictures
    assert repair(out=tmp_path / "out", **given)[0] == 130
    monkeypatch.delenv("STOP")
    code, report = repair(out=tmp_path / "out", **given)
    assert code == 0
    assert report["extracted"] == 800 - 2 * 2 * 64
    assert report["accuracy"] == whole["accuracy"]


def test_statistics_and_labels_in_another_order(world, repair, tmp_path):
    """Classes are matched by names: a file of statistics with other class ids gives the same repair."""
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps(ORDER))
    shuffled = tmp_path / "shuffled.json"
    shuffled.write_text(json.dumps(sorted(NAMES[:5], reverse=True)))
    command = ["remember", "--model", world.model, "--weights", world / "old.pt", "--data", world / "old"]
    command += ["--input-size", SIZE, "--labels", shuffled, "--out", tmp_path / "classes.safetensors"]
    assert main([*map(str, command)]) == 0
    assert list(tmp_path.glob(".*")) == []
    code, report = repair(
        out=tmp_path / "out", statistics=tmp_path / "classes.safetensors", labels=labels, test=world / "test"
    )
    assert code == 0
    assert report["accuracy"]["after"]["old"] > 0.8
    # Without --labels the order of the file counts, and the head's outputs are not in that order.
    assert repair(out=tmp_path / "out", statistics=tmp_path / "classes.safetensors")[0] == 0


def test_what_is_remembered(world, statistics, capsys, tmp_path):
    x, labels = world.inputs("old")
    model = world.load("old.pt", 5)
    expected = elign.ClassStatistics.from_data(model, "fc", [(x, labels)])
    found = elign.ClassStatistics.load(statistics)
    assert found.classes.tolist() == list(range(5))
    torch.testing.assert_close(found.means, expected.means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.covariances, expected.covariances, rtol=1e-3, atol=1e-3)
    command = ["remember", "--model", world.model, "--weights", world / "old.pt", "--data", world / "old", "--json"]
    capsys.readouterr()
    assert main([*map(str, command), "--input-size", "16", "--out", str(tmp_path / "again.safetensors")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["head"] == "fc"
    assert printed["pictures"] == 300
    with torch.no_grad():
        assert printed["accuracy"] == pytest.approx((model(x).argmax(dim=1) == labels).double().mean().item())


def test_the_same_model_twice_keeps_its_head(world, repair, tmp_path):
    command = ["remember", "--model", world.model, "--weights", world / "new.safetensors", "--data", world / "old"]
    file = tmp_path / "classes.safetensors"
    assert main([*map(str, command), "--input-size", str(SIZE), "--out", str(file)]) == 0
    given = {"previous": world / "new.safetensors", "statistics": file, "out": tmp_path / "out", "test": world / "test"}
    code, report = repair(**given)
    assert code == 0
    assert report["mode"] == "head"
    assert report["verdict"].startswith("The head stays")
    assert report["accuracy"]["after"] == report["accuracy"]["before"]
    code, report = repair("--force", **given)
    assert (code, report["mode"]) == (0, "classifier")


def test_corrupt_pictures_are_skipped_and_counted(world, statistics, repair, tmp_path):
    folder = tmp_path / "new"
    shutil.copytree(world / "new", folder)
    for file in sorted(folder.glob("*/00[0-2].png")):
        file.write_bytes(b"no picture")
    code, report = repair(out=tmp_path / "out", statistics=statistics, new=folder)
    assert code == 0
    assert report["skipped"] == {"--new": 15}
    assert report["pictures"] == {"--new": 285}
    assert any(note.startswith("15 of the pictures in --new") for note in report["notes"])


def test_the_next_time_takes_the_statistics_of_the_last(world, statistics, repair, tmp_path):
    """Also a file of statistics of other weights, or of pictures of another size, is noticed."""
    assert repair(out=tmp_path / "first", statistics=statistics)[1]["notes"] == [
        "model.onnx was not written: onnx is missing (pip install 'elign[export]')"
    ]
    for name in ("ant", "bee"):
        shutil.copytree(world / "new/six", tmp_path / "next" / name)
    torch.manual_seed(0)
    given = {"statistics": tmp_path / "first/statistics.safetensors", "new": tmp_path / "next"}
    for file, outputs in (("eleven.pt", 12), ("wrong.pt", 10)):
        torch.save(world.make(num_classes=outputs).state_dict(), tmp_path / file)
    given |= {"current": tmp_path / "eleven.pt", "out": tmp_path / "second"}
    code, report = repair(previous=world / "new.safetensors", **given)
    assert code == 0
    assert [entry["name"] for entry in report["classes"]] == [*ORDER, "ant", "bee"]
    assert not any("were computed" in note for note in report["notes"])
    _, report = repair(previous=tmp_path / "wrong.pt", **given)
    assert any("under other weights than --previous" in note for note in report["notes"])


def test_what_a_model_prints_does_not_spoil_the_json(world, statistics, repair, tmp_path):
    code, report = repair(out=tmp_path / "out", statistics=statistics, model=f"{world / 'net.py'}:chatty")
    assert (code, report["model"]["spec"]) == (0, "net.py:chatty")


def test_new_pictures_of_old_classes_count(world, statistics, repair, tmp_path):
    shutil.copytree(world / "new", tmp_path / "new")
    shutil.copytree(world / "few" / "two", tmp_path / "new" / "two")
    code, report = repair("--workers", 2, out=tmp_path / "out", statistics=statistics, new=tmp_path / "new")
    assert code == 0
    assert any("1 classes in --new are old ones, such as 'two'" in note for note in report["notes"])
    assert [entry["name"] for entry in report["classes"] if entry["old"]] == ["four", "one", "three", "zero"]


def test_on_the_terminal(world, statistics, capsys, tmp_path):
    command = ["repair", "--model", world.model, "--previous", world / "old.pt", "--current", world / "new.safetensors"]
    command += ["--new", world / "new", "--statistics", statistics, "--out", tmp_path / "out", "--input-size", SIZE]
    assert main([*map(str, command)]) == 0
    printed = capsys.readouterr().out
    assert "head: fc (24 numbers" in printed
    assert "this repair" in printed
    assert str(tmp_path / "out/report.html") in printed


def test_a_model_of_torchvision(world, repair, tmp_path):
    from elign.lab.environment import import_torchvision

    torchvision = import_torchvision()
    torch.manual_seed(0)
    for name, outputs in (("old", 5), ("new", 10)):
        model = torchvision.models.mobilenet_v3_small(num_classes=outputs)
        torch.save(model.state_dict(), tmp_path / f"{name}.pt")
    folder = tmp_path / "pictures"
    for name in NAMES[5:]:
        (folder / name).mkdir(parents=True)
        for file in sorted((world / "new" / name).iterdir())[:6]:
            shutil.copy(file, folder / name)
    given = {"model": "torchvision:mobilenet_v3_small", "previous": tmp_path / "old.pt", "current": tmp_path / "new.pt"}
    code, report = repair(out=tmp_path / "out", new=folder, **{**given, "input-size": 32})
    assert code == 0, report
    assert (report["model"]["head"], report["model"]["dim"], report["model"]["outputs"]) == ("classifier.3", 1024, 10)
    assert report["model"]["pictures"].startswith("torchvision: ImageClassification")
    assert any("check the order of classes" in note for note in report["notes"])
