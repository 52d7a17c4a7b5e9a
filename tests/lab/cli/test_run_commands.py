"""`elign run | resume | evaluate | list | show` as a person meets them: what they print, and how they fail."""

import errno
import re
import shutil
from pathlib import Path

import pytest
import torch

from elign.lab.cli.main import main
from elign.lab.evaluation.methods import METHODS, marked
from elign.lab.storage import read_object, write_object, write_tensors

QUICK = ("data=digits", "protocol.first=5", "protocol.increment=5", "data.limit=20", "train.first_epochs=2")
QUICK += ("train.epochs=2", "aligner.iterations=20", "aligner.steps=3")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    assert main(["run", *QUICK, f"out={folder}"]) == 0
    return folder


@pytest.fixture
def changed(run_folder, tmp_path):
    """Copies the run and changes settings of the copy, given by their dotted keys."""

    def copy(name, **settings):
        folder = shutil.copytree(run_folder, tmp_path / name)
        metadata = read_object(folder / "run.json")
        for key, value in settings.items():
            *sections, last = key.split("__")
            section = metadata["config"]
            for each in sections:
                section = section[each]
            section[last] = value
        write_object(folder / "run.json", metadata)
        return str(folder)

    return copy


def printed(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_a_run_ends_with_a_table(tmp_path, capsys):
    assert main(["run", *QUICK, "learner=lucir", f"out={tmp_path / 'run'}"]) == 0
    out = printed(capsys)
    assert "lucir on digits, 5+5" in out
    assert "eli/oracle †" in out
    assert "uses test labels" in out
    assert "epoch 2/2" in out
    assert "results.csv" in out


def test_resume_of_a_finished_run_shows_it(run_folder, capsys):
    assert main(["resume", str(run_folder)]) == 0
    assert "2 of 2 tasks" in printed(capsys)


def test_evaluate_makes_another_evaluation(run_folder, capsys):
    assert main(["evaluate", str(run_folder), "aligner.steps=6", "--name", "six"]) == 0
    assert "aligner.steps=6" in printed(capsys)
    assert (run_folder / "evaluations" / "six" / "results.csv").is_file()


def test_list_shows_runs_and_what_is_damaged(run_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (run_folder.parent / "broken").mkdir(exist_ok=True)
    (run_folder.parent / "broken" / "run.json").write_text("{")
    assert main(["list", str(run_folder.parent)]) == 0
    out = printed(capsys)
    assert "one icarl, digits, 5+5, seed 0 2/2" in out
    assert "run.json is damaged" in out
    assert main(["list", str(tmp_path)]) == 0
    assert "no runs in" in printed(capsys)
    assert main(["list", str(tmp_path / "nowhere")]) == 1


def test_list_never_shortens_a_name(changed, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "a-run-whose-name-does-not-fit-into-a-column-of-a-narrow-terminal-2"
    changed(name)
    assert main(["list", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert name in "".join(line.split()[0] for line in lines if line.startswith(" ") and line.split())


def test_list_without_a_folder_has_every_method_with_its_text(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "no runs in out" in lines[0]
    assert {f"{marked(name)} {method.text}" for name, method in METHODS.items()} <= set(lines)


def test_show_averages_seeds_and_writes_a_section(run_folder, changed, tmp_path, capsys):
    other = changed("two", seed=1)
    page = tmp_path / "page.md"
    page.write_text("<!-- begin mine -->\n<!-- end mine -->\n")
    options = ["--markdown", str(page), "--section", "mine"]
    assert main(["show", str(run_folder), other, *options]) == 0
    assert "±" in printed(capsys)
    assert "eli/oracle" in page.read_text()
    assert "±" in page.read_text()
    assert main(["show", str(run_folder), "--classifier", "nearest-mean"]) == 0
    assert "bias-offset" not in printed(capsys)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "equal seeds (0, 0)"),
        ({"seed": 1, "memory__per_class": 3}, "differ in memory.per_class"),
        ({"seed": 1, "learner__options__temperature": 4.0}, "differ in learner.temperature"),
    ],
)
def test_show_averages_nothing_but_seeds(run_folder, changed, settings, message, capsys):
    other = changed("two", **settings)
    assert main(["show", other]) == 0
    assert ("icarl (temperature=4) on digits" in printed(capsys)) == ("temperature" in message)
    assert main(["show", str(run_folder), other]) == 1
    assert message in capsys.readouterr().err


def test_odd_folder_names_are_only_names(changed, tmp_path, capsys):
    folder = changed("w[/x] [bold]y")
    assert main(["resume", folder]) == 0
    assert "w[/x] [bold]y" in capsys.readouterr().out
    assert main(["list", str(tmp_path)]) == 0
    assert "[bold]y" in capsys.readouterr().out


def test_keys_are_shown_with_values_and_choices(capsys):
    assert main(["run", "--keys", "learner=lucir"]) == 0
    out = capsys.readouterr().out
    assert "learner.less_forget=5.0" in out
    assert re.search("learner: one of .*icarl, joint, l", out)
    assert "train.first_epochs=12" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "lerner=icarl"], "learner"),
        (["run", "learner=icral"], "icarl"),
        (["run", "aligner.step=3"], "aligner.steps"),
        (["run", "train.epochs=many"], "train.epochs"),
        (["run", "epochs"], "key=value"),
        (["run", "data=digits", "protocol=half-3", "out={tmp}/x"], "1, 5"),
        (["run", "data=folder", "data.path={tmp}/nothing", "protocol=equal-2", "out={tmp}/x"], "nothing"),
        (["run", "data=digits", "model=resnet18", "out={tmp}/x"], "resnet18"),
        pytest.param(
            ["run", "train.accelerator=cuda", "out={tmp}/x"],
            "train.accelerator=cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what it should lack"),
        ),
        (["run", "start_from={tmp}/nowhere", "out={tmp}/x"], "there is no run in"),
        (["resume", "{tmp}/nowhere"], "there is no run in"),
        (["evaluate", "{tmp}/nowhere", "aligner.steps=3"], "there is no run in"),
        (["show", "{tmp}/nowhere"], "there is no run in"),
        (["rum"], "did you mean 'run'"),
    ],
)
def test_mistakes_end_in_one_clear_line(tmp_path, capsys, arguments, message):
    assert main([text.replace("{tmp}", str(tmp_path)) for text in arguments]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("elign: ")
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_full_disk_loses_nothing_that_is_finished(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"

    def full(path, tensors, metadata=None):
        if "task-01" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_tensors(path, tensors, metadata)

    with monkeypatch.context() as patch:
        patch.setattr("elign.lab.runs.run_dir.write_tensors", full)
        assert main(["run", *QUICK, f"out={out}"]) == 1
    error = capsys.readouterr().err
    assert "the disk is full" in error
    assert "finished work is kept" in error
    assert (out / "task-00" / "results.jsonl").is_file()
    assert main(["run", *QUICK, f"out={out}"]) == 0


def test_a_damaged_checkpoint_is_one_clear_line(changed, capsys):
    out = Path(changed("run"))
    (out / "task-00" / "model.safetensors").write_bytes(b"")
    assert main(["resume", str(out)]) == 1
    assert "task-00/model.safetensors is damaged" in capsys.readouterr().err
