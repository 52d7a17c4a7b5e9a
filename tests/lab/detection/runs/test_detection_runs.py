"""Whole runs of detectors on real scenes: every learner, interruptions, evaluations, what is shared, what is shown."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys

import pytest
from tests.lab.starting import reevaluate, start
from tests.lab.versions import evaluate_in_version

from elign.lab.cli.main import main
from elign.lab.config import ConfigError
from elign.lab.detection.detection_experiment import DetectionExperiment
from elign.lab.detection.evaluation.region_methods import REGION_METHODS
from elign.lab.environment import MissingExtraError
from elign.lab.runs.experiment import DETECTION, version_note
from elign.lab.runs.launch import resume_run
from elign.lab.runs.run_dir import RunDir, RunError
from elign.lab.storage import read_tensors
from elign.utils.errors import OptionError


class StopError(Exception):
    """Stands for a kill."""


def rows(folder):
    return folder.gather().rows


def pictures(folder):
    """How many test images were kept."""
    return read_tensors(folder.task(1) / "pictures.safetensors")[1]["count"]


@pytest.mark.parametrize("learner", ["finetune", "joint", "ilod", "faster-ilod", "ore"])
def test_every_learner_learns_two_tasks(quick, tmp_path, console, learner):
    folder = start([*quick, f"learner={learner}", f"out={tmp_path / 'run'}"], console, benchmark=DETECTION)
    _check(folder)
    # Only ORE says something of objects that are still to come, and after the last task there are none.
    assert ["unknown" in task for task in folder.gather().tasks] == [learner == "ore", False]


def test_iod(iod):
    _check(iod)
    assert any(name.startswith("store.") for name in iod.load_model(1)[0])


def _check(folder):
    found = rows(folder)
    assert [row.method for row in found if row.task == 1] == ["base"]
    assert sorted(row.method for row in found if row.task == 2) == sorted(REGION_METHODS)
    assert {row.classifier for row in found} == {"detector"}
    tasks = folder.gather().tasks
    assert len(tasks[1]["average_precision"]["base"]) == 10
    assert {"train", "extract", "fit", "methods"} <= tasks[1]["seconds"].keys()
    assert pictures(folder) > 0
    assert folder.metadata()["benchmark"] == DETECTION


@pytest.mark.parametrize("place", [(0, 1, 2), (1, 0, 1), (1, "last", 1)])
def test_an_interrupted_run_ends_in_the_same_numbers(quick, iod, tmp_path, console, monkeypatch, place):
    """The last place is within fine-tuning; iOD keeps images, so its state is more than its weights."""
    typed = [*quick, "learner=iod", "learner.warp_every=2", "train.checkpoint_minutes=0", f"out={tmp_path / 'run'}"]
    save = RunDir.save_progress
    seen = []

    def stop(self, number, state, metadata):
        save(self, number, state, metadata)
        seen.append(metadata["epoch"])
        task, epoch, step = place
        # Fine-tuning comes after the two epochs of learning that the second task has.
        wanted = metadata["epoch"] >= 2 if epoch == "last" else metadata["epoch"] == epoch
        if number == task and wanted and metadata["step"] == step:
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "save_progress", stop)
        with pytest.raises(StopError):
            start(typed, console, benchmark=DETECTION)
    folder = RunDir(tmp_path / "run")
    resume_run(folder, console)
    assert rows(folder) == rows(iod)


def test_another_evaluation_trains_nothing(iod, tmp_path, console):
    shutil.copytree(iod.path, tmp_path / "run")
    folder = RunDir(tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")}
    target = reevaluate(folder, ["aligner.steps=5", "aligner=shared-backbone"], console)
    assert {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")} == before
    assert len(rows(target)) == len(rows(folder))
    with pytest.raises(RunError, match="'elign evaluate"):
        resume_run(target, console)


def test_what_an_older_version_evaluated_is_evaluated_again(iod, tmp_path, console):
    shutil.copytree(iod.path, tmp_path / "run")
    folder = RunDir(tmp_path / "run")
    evaluate_in_version(folder, 1, DetectionExperiment.version - 1)
    assert "was evaluated by an older elign" in version_note(folder, folder.metadata(), folder.gather().tasks)
    resume_run(folder, console)
    assert rows(folder) == rows(iod)
    assert {task["evaluation_version"] for task in folder.gather().tasks} == {DetectionExperiment.version}


def test_whoever_adds_or_removes_a_method_raises_the_version():
    names = hashlib.sha256(" ".join(REGION_METHODS).encode()).hexdigest()[:12]
    assert (DetectionExperiment.version, names) == (2, "f268de7cbd18"), "raise the version, then write both down here"


def test_learners_share_a_first_task(quick, tmp_path, console):
    first = start([*quick, "learner=finetune", f"out={tmp_path / 'a'}"], console, benchmark=DETECTION)
    typed = [*quick, f"start_from={first.path}"]
    other = start([*typed, "learner=ilod", f"out={tmp_path / 'b'}"], console, benchmark=DETECTION)
    assert rows(other)[0] == rows(first)[0]
    with pytest.raises(RunError, match="another first task: learner differ"):
        start([*typed, "learner=iod", f"out={tmp_path / 'c'}"], console, benchmark=DETECTION)


def test_what_cannot_be_done_is_said_before_anything_is_written(quick, tmp_path, console):
    with pytest.raises(OptionError, match=r"memory.per_class=10"):
        start([*quick, "learner=iod", "memory=none", f"out={tmp_path / 'run'}"], console, benchmark=DETECTION)
    with pytest.raises(ConfigError, match="temperature"):
        start(
            [*quick, "learner=iod", "learner.temperature=-1", f"out={tmp_path / 'run'}"], console, benchmark=DETECTION
        )
    assert not (tmp_path / "run").exists()


def test_commands(iod, capsys, tmp_path):
    assert main(["detect", "show", str(iod.path), "--details"]) == 0
    text = capsys.readouterr().out
    assert "mean average precision" in text
    assert "iod on digit-scenes, 5+5" in text
    assert main(["list", str(iod.path.parent)]) == 0
    assert "iod" in capsys.readouterr().out
    assert main(["detect", "resume", str(iod.path)]) == 0
    assert main(["detect", "run", "--keys"]) == 0
    assert "learner.warp_every=20" in capsys.readouterr().out
    assert main(["detect", "run", "learner=icarl"]) == 1
    assert "no learner 'icarl'" in capsys.readouterr().err


def test_details_say_every_class(iod, capsys):
    assert main(["show", str(iod.path), "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "class task base eli/oracle † eli/by-prediction" in text
    for label in range(10):
        assert f" {label} {1 + (label >= 5)} " in text
    assert "COCO" not in text
    assert "test images" not in text


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torchmetrics", "pycocotools"))), reason="the extra coco is not installed"
)
def test_cocos_average_precision(quick, tmp_path, console, capsys):
    typed = [*quick, "learner=finetune", "evaluation.coco=true", f"out={tmp_path / 'run'}"]
    folder = start(typed, console, benchmark=DETECTION)
    for number, task in enumerate(folder.gather().tasks, start=1):
        assert task["coco"].keys() == task["average_precision"].keys()
        for found in task["coco"].values():
            assert found.keys() == {"AP", "AP50", "AP75", "by_class"}
            assert len(found["by_class"]) == 5 * number
            known = [value for value in found["by_class"] if value is not None]
            assert found["AP"] == pytest.approx(sum(known) / len(known))
            assert found["AP50"] >= max(found["AP"], found["AP75"])
    assert main(["detect", "show", str(folder.path), "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "AP50 AP75" in text
    page = tmp_path / "report.html"
    assert main(["report", str(folder.path), "--out", str(page)]) == 0
    assert "AP75" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["torchmetrics.detection", "pycocotools"])
def test_a_missing_extra_is_found_before_anything_is_written(quick, tmp_path, console, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'elign\[lab,coco\]'"):
        start([*quick, "evaluation=coco", f"out={tmp_path / 'run'}"], console, benchmark=DETECTION)
    assert not (tmp_path / "run").exists()


def test_a_classification_run_is_not_gone_on_with_as_detection(iod, console):
    with pytest.raises(RunError, match="holds another run"):
        start(["data=digits", f"out={iod.path}"], console)


def test_report(iod, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", str(iod.path), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count('<svg class="picture"') == 3 * pictures(iod)
    assert text.count('role="img" aria-label="Image') == text.count('<svg class="picture"')
    assert "Average precision of each class after task 2" in text
    assert "elign detect run" in text
    assert "Mean average precision after each task" in text
    assert "of each test image" not in text
    assert '<ul class="key">' in text
    # Every picture is in the page itself.
    assert text.count('<image href="data:image/png;base64,') == text.count('<svg class="picture"')
    assert main(["report", str(iod.path), "--format", "csv"]) == 0
    assert "eli/by-prediction" in capsys.readouterr().out


def test_metadata_are_plain(iod):
    metadata = json.loads((iod.path / "run.json").read_text())
    assert metadata["config"]["evaluation"] == {"method": "area", "overlap": 0.5, "coco": False}
    assert metadata["sizes"] == [5, 5]
