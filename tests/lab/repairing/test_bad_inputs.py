"""What people get wrong: each mistake is one clear line and exit code 2, and writes no repair."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import sys

import pytest
import safetensors.torch
import torch
from PIL import Image
from tests.lab.repairing.conftest import NAMES, ORDER, SIZE

from elign.lab.cli.main import main
from elign.lab.repairing.checkpoints import WeightsError, read_weights


@pytest.fixture
def refused(repair, tmp_path):
    """Checks that a repair ends with one line that says something, and returns it."""

    def check(*said, options=(), **changed):
        out = changed.pop("out", tmp_path / "refused")
        code, line = repair(*options, out=out, **changed)
        assert code == 2, line
        assert line.startswith("elign: ")
        assert line.count("\n") == 1, line
        assert "Traceback" not in line
        for text in said:
            assert text in line
        assert not (out / "repair.safetensors").exists()

    return check


@pytest.fixture
def pictures(world, tmp_path):
    """Makes a folder with some pictures of some classes."""

    def make(name, classes, each, source="new"):
        for place in classes:
            (tmp_path / name / place).mkdir(parents=True)
            for file in sorted((world / source / place).iterdir())[:each]:
                shutil.copy(file, tmp_path / name / place)
        return tmp_path / name

    return make


def test_swapped_checkpoints_of_different_size(world, refused):
    given = {"previous": world / "new.safetensors", "current": world / "old.pt", "exemplars": world / "few"}
    refused("10 outputs", "5", "swapped", **given)


def test_swapped_checkpoints_of_equal_size(world, refused, statistics, repair, tmp_path):
    torch.manual_seed(1)
    safetensors.torch.save_file(world.make(num_classes=10).state_dict(), tmp_path / "fresh.safetensors")
    given = {"previous": world / "new.safetensors", "current": tmp_path / "fresh.safetensors", "statistics": statistics}
    refused("swapped", "--force", **given)
    assert repair("--force", out=tmp_path / "out", **given)[0] == 0


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("nope", ["no module 'nope'", "--head"]),
        ("body.3", ["'body.3' is not the head"]),
        ("body.0", ["not the head", "feature maps"]),
    ],
)
def test_a_head_that_is_not_one(world, refused, head, said):
    refused(*said, exemplars=world / "few", head=head)


def test_a_model_that_does_not_end_with_its_head(world, refused):
    refused(
        "does not end with a linear layer",
        "fc",
        "--head",
        model=f"{world / 'net.py'}:scaled",
        previous=world / "new.safetensors",
    )


def test_folders_with_other_classes_than_the_statistics(world, refused, statistics, pictures):
    refused("none is new", statistics=statistics, new=world / "old")
    stranger = pictures("stranger", [NAMES[0]], 3, source="old")
    (stranger / NAMES[0]).rename(stranger / "horse")
    refused("--exemplars", "'horse'", "names of their folders", statistics=statistics, exemplars=stranger)
    refused("--test", "'horse'", statistics=statistics, test=stranger)
    refused("old classes and of new ones", statistics=statistics, test=world / "old")
    refused("new classes only", statistics=statistics, exemplars=world / "new")


def test_classes_whose_order_cannot_be_known(world, refused, pictures):
    refused("'eight' would be output 2", "--labels", exemplars=pictures("two", NAMES[:2], 3, source="old"))


def test_models_of_different_latent_size(world, refused, tmp_path):
    model = world.make("wide")
    torch.save(model.state_dict(), tmp_path / "wide.pt")
    refused("latents of 32 numbers", "have 24", exemplars=world / "few", current=tmp_path / "wide.pt")


def test_statistics_of_another_latent_size(refused, tmp_path):
    import elign

    file = elign.ClassStatistics().update(torch.randn(20, 7), torch.arange(20) % 5).save(tmp_path / "seven.safetensors")
    (tmp_path / "labels.json").write_text(json.dumps(ORDER))
    refused("latents of 7 numbers", "have 24", statistics=file, labels=tmp_path / "labels.json")


def test_a_folder_with_one_picture(world, refused, statistics, pictures):
    refused("one readable picture of the class 'six'", statistics=statistics, new=pictures("one", ["six"], 1))


def test_empty_and_missing_folders(world, refused, statistics, tmp_path):
    refused("no such folder", statistics=statistics, new=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused("no class folders", statistics=statistics, new=tmp_path / "empty")
    (tmp_path / "empty/cat").mkdir()
    refused("no picture of the class 'cat'", statistics=statistics, new=tmp_path / "empty")


def test_pictures_of_which_none_can_be_read(refused, statistics, tmp_path):
    for number in range(3):
        file = tmp_path / f"new/six/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x89PNG and nothing else")
    refused("none of the pictures in --new", statistics=statistics, new=tmp_path / "new")


def test_a_picture_that_is_a_line_does_no_harm(world, repair, statistics, pictures, tmp_path):
    new = pictures("new", NAMES[5:], 8)
    Image.new("L", (1, 60_000)).save(new / "six" / "line.png")
    code, report = repair(out=tmp_path / "out", new=new, statistics=statistics)
    assert (code, report["skipped"]) == (0, {"--new": 0})


def test_weights_that_do_not_fit(world, refused, tmp_path):
    few = {"exemplars": world / "few"}
    state = safetensors.torch.load_file(world / "new.safetensors")
    torch.save({key: value for key, value in state.items() if key != "body.0.bias"}, tmp_path / "less.pt")
    refused("1 missing (body.0.bias)", current=tmp_path / "less.pt", **few)
    torch.save(state | {"more": torch.zeros(2)}, tmp_path / "more.pt")
    refused("1 not in the model (more)", current=tmp_path / "more.pt", **few)
    torch.save(state | {"body.0.weight": torch.zeros(2)}, tmp_path / "shape.pt")
    refused("1 of another shape (body.0.weight)", current=tmp_path / "shape.pt", **few)
    refused("no such file of weights", current=tmp_path / "nowhere.pt", **few)


class Trap:
    """Something that would leave a trace if a file with it were unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps(Trap())])
def test_files_that_are_no_weights(world, refused, tmp_path, content):
    for name in ("bad.pt", "bad.safetensors"):
        (tmp_path / name).write_bytes(content)
        refused(name, current=tmp_path / name, exemplars=world / "few")


def test_a_whole_model_is_never_unpickled(tmp_path):
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match="never unpickled"):
        read_weights(tmp_path / "model.pt")
    torch.save({"epoch": 3}, tmp_path / "epoch.pt")
    with pytest.raises(WeightsError, match="holds no state dict"):
        read_weights(tmp_path / "epoch.pt")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("resnet18", "names no model"),
        ("torchvision:resnet1", "did you mean resnet18"),
        ("{}/none.py:make", "no such file"),
        ("{}/net.py:nope", "has no function 'nope'"),
        ("{}/net.py:broken", "raised RuntimeError: no such thing"),
        ("{}/net.py:nothing", "must return the model"),
    ],
)
def test_models_that_cannot_be_built(world, refused, spec, said):
    refused(said, model=spec.format(world.folder), exemplars=world / "few")


def test_a_wrong_size_of_pictures(world, refused):
    refused("--input-size", exemplars=world / "few", **{"input-size": 20})


def test_options_that_make_no_sense(world, refused, tmp_path):
    few = {"exemplars": world / "few"}
    refused("--device", "elign doctor", device="nonsense", **few)
    labels = tmp_path / "labels.json"
    refused("no such file", labels=labels, **few)
    for content, said in (
        ("[", "not JSON"),
        ('{"a": 1}', "must be a list"),
        ('["a", "a"]', "different"),
        ("[1]", "list"),
    ):
        labels.write_text(content)
        refused(said, labels=labels, **few)
    labels.write_text(json.dumps([*NAMES, "horse"]))
    refused("11 classes", "10 outputs", labels=labels, **few)
    labels.write_text(json.dumps(NAMES[:9]))
    refused("'nine'", labels=labels, **few)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.tex").write_text("")
    refused("holds something else", out=tmp_path / "taken", **few)
    refused("elign remember", statistics=tmp_path / "nowhere.safetensors")


def test_statistics_that_python_saved_have_no_names(world, refused, repair, statistics, tmp_path):
    import elign

    file = elign.ClassStatistics.load(statistics).save(tmp_path / "plain.safetensors")
    refused("no names of classes", "--labels", statistics=file)
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps(sorted(NAMES[:5]) + sorted(NAMES[5:])))
    code, report = repair(out=tmp_path / "out", statistics=file, labels=labels, test=world / "test")
    assert code == 0
    assert report["accuracy"]["after"]["old"] > 0.8


def test_remembering_has_the_same_manners(world, capsys, tmp_path):
    def said(*changed):
        words = {"model": world.model, "weights": world / "old.pt", "data": world / "old", "input-size": SIZE}
        words |= {"out": tmp_path / "classes.safetensors"} | dict(changed)
        capsys.readouterr()
        assert main(["remember", *(str(word) for name, value in words.items() for word in (f"--{name}", value))]) == 2
        assert not (tmp_path / "classes.safetensors").exists()
        return capsys.readouterr().err

    assert "no such folder" in said(("data", tmp_path / "nowhere"))
    assert "10 classes, but the head has 5 outputs" in said(("data", world / "test"))
    assert "not the head" in said(("head", "body.3"))


def test_a_folder_is_written_to_only_if_it_holds_nothing_else(repair, world, statistics, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    remembered = out / "statistics.safetensors"
    shutil.copy(statistics, remembered)
    before = remembered.read_bytes()
    code, line = repair(out=out, statistics=remembered)
    assert (code, remembered.read_bytes() == before) == (2, True)
    assert "would be overwritten" in line
    # Files of other tools with the same names, and a cache of something else.
    for name, content in (("repair.safetensors", "mine"), ("report.html", "mine"), ("cache/mine.txt", "mine")):
        other = tmp_path / name.replace("/", "-")
        (other / name).parent.mkdir(parents=True)
        (other / name).write_text(content)
        code, line = repair(out=other, statistics=statistics)
        assert (code, (other / name).read_text()) == (2, content), line
        assert "holds something else" in line
    # What an earlier repair wrote is written again.
    assert [repair(out=tmp_path / "fresh", statistics=statistics)[0] for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("what", ["weights", "folder", "other"])
def test_statistics_do_not_take_the_place_of_something_else(world, tmp_path, capsys, what):
    out = tmp_path / "out"
    weights = world / "old.pt"
    if what == "weights":
        shutil.copy(weights, out)
        weights = out
    elif what == "folder":
        out.mkdir()
    else:
        out.write_text("precious")
    before = None if what == "folder" else out.read_bytes()
    command = ["remember", "--model", world.model, "--weights", weights, "--data", world / "old", "--out", out]
    assert main([*map(str, command), "--input-size", str(SIZE)]) == 2
    assert before is None or out.read_bytes() == before
    assert "--out" in capsys.readouterr().err or what == "folder"
    assert not list(tmp_path.glob(".out.cache"))


def test_a_hidden_folder_of_somebody_else_survives(world, tmp_path):
    (theirs := tmp_path / ".classes.cache").mkdir()
    (theirs / "precious.txt").write_text("mine")
    command = ["remember", "--model", world.model, "--weights", world / "old.pt", "--data", world / "old"]
    assert main([*map(str, command), "--input-size", str(SIZE), "--out", str(tmp_path / "classes")]) == 0
    assert [each.name for each in theirs.iterdir()] == ["precious.txt"]


def test_labels_that_are_no_file_do_not_hang(refused, statistics, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused("no such file", statistics=statistics, labels=tmp_path / "pipe")
    refused("no such file", statistics=statistics, labels="/dev/zero")


def test_latents_are_made_again_when_what_the_models_file_imports_has_changed(repair, world, statistics, tmp_path):
    (tmp_path / "parts.py").write_text("SLOPE = 0.0\n")
    text = (world / "net.py").read_text()
    assert "F.relu(" in text or "ReLU()" in text
    text = text.replace("F.relu(", "leaky(").replace("nn.ReLU()", "nn.LeakyReLU(parts.SLOPE)")
    head = "import parts\n\n\ndef leaky(x):\n    return F.leaky_relu(x, parts.SLOPE)\n\n\n"
    start = text.index("class ")
    (tmp_path / "net.py").write_text(text[:start] + head + text[start:])
    changed = {"model": f"{tmp_path / 'net.py'}:make", "statistics": statistics, "out": tmp_path / "out"}
    extracted = []
    for slope in (0.0, 0.0, 0.5):
        (tmp_path / "parts.py").write_text(f"SLOPE = {slope}\n")
        sys.modules.pop("parts", None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        code, report = repair("--force", **changed)
        assert code == 0, report
        extracted.append(report["extracted"])
    assert extracted[1] == 0
    assert extracted[0] == extracted[2] > 0


def test_a_class_that_statistics_only_name_is_no_old_one(repair, world, tmp_path):
    (names := tmp_path / "labels.json").write_text(json.dumps(ORDER))
    command = ["remember", "--model", world.model, "--weights", world / "new.safetensors", "--data", world / "old"]
    file = tmp_path / "classes.safetensors"
    assert main([*map(str, command), "--labels", str(names), "--input-size", str(SIZE), "--out", str(file)]) == 0
    code, report = repair(out=tmp_path / "out", statistics=file)
    assert code == 0, report
    assert not any("are old ones" in note for note in report["notes"])
