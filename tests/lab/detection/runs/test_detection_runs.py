"""Whole runs of detectors on real scenes: every learner, interruptions, evaluations, what is shared, what is shown."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import runpy
import shutil
import sys
from unittest.mock import patch

import pytest
import torch
from tests.lab.starting import QUIET, evaluate_in_version, reevaluate, start

from elign.lab.cli.main import main
from elign.lab.config import ConfigError
from elign.lab.detection.data import DETECTION_DATASETS
from elign.lab.detection.detection_experiment import DetectionExperiment
from elign.lab.detection.learners import DETECTION_LEARNERS
from elign.lab.detection.region_methods import REGION_METHODS
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


@pytest.mark.parametrize("learner", DETECTION_LEARNERS)
def test_every_learner_learns_two_tasks(run_of, learner):
    folder = run_of(learner)
    found, tasks = rows(folder), folder.gather().tasks
    assert [row.method for row in found if row.task == 1] == ["base"]
    assert sorted(row.method for row in found if row.task == 2) == sorted(REGION_METHODS)
    assert {row.classifier for row in found} == {"detector"}
    assert len(tasks[1]["average_precision"]["base"]) == 10
    assert {"train", "extract", "fit", "methods"} <= tasks[1]["seconds"].keys()
    # Only ORE says something of objects that are still to come, and after the last task there are none.
    assert ["unknown" in task for task in tasks] == [learner == "ore", False]
    assert pictures(folder) > 0
    metadata = json.loads((folder.path / "run.json").read_text())
    assert (metadata["benchmark"], metadata["sizes"]) == (DETECTION, [5, 5])
    assert metadata["config"]["evaluation"] == {"method": "area", "overlap": 0.5, "coco": False}
    assert any(name.startswith("store.") for name in folder.load_model(1)[0]) == (learner == "iod")


@pytest.mark.parametrize("place", [(0, 1, 2), (1, "last", 1)])
def test_an_interrupted_run_ends_in_the_same_weights_and_rows(quick, iod, tmp_path, monkeypatch, place):
    """The last place is within fine-tuning; iOD keeps images, so its state is more than its weights."""
    typed = [*quick, "learner=iod", "learner.warp_every=2", "train.checkpoint_minutes=0", f"out={tmp_path / 'run'}"]
    save = RunDir.save_progress

    def stop(self, number, state, metadata):
        save(self, number, state, metadata)
        task, epoch, step = place
        # Fine-tuning comes after the two epochs of learning that the second task has.
        wanted = metadata["epoch"] >= 2 if epoch == "last" else metadata["epoch"] == epoch
        if number == task and wanted and metadata["step"] == step:
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "save_progress", stop)
        with pytest.raises(StopError):
            start(typed, benchmark=DETECTION)
    folder = RunDir(tmp_path / "run")
    resume_run(folder, QUIET)
    assert rows(folder) == rows(iod)
    for number in (0, 1):
        (resumed, kept, _), (whole, kept_whole, _) = (run.load_model(number) for run in (folder, iod))
        assert resumed.keys() == whole.keys()
        assert all(torch.equal(value, whole[name]) for name, value in resumed.items())
        assert all(torch.equal(value, kept_whole[label]) for label, value in kept.items())
    # What is evaluated differs from task to task, or equal weights would say nothing.
    first, second = (iod.load_model(number)[0]["model.backbone.layer1.conv1.weight"] for number in (0, 1))
    assert not torch.equal(first, second)


def test_another_evaluation_trains_nothing(iod, tmp_path):
    shutil.copytree(iod.path, tmp_path / "run")
    folder = RunDir(tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")}
    target = reevaluate(folder, ["aligner.steps=5", "aligner=shared-backbone"])
    assert {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")} == before
    assert len(rows(target)) == len(rows(folder))
    with pytest.raises(RunError, match="'elign evaluate"):
        resume_run(target, QUIET)
    # What an older version evaluated is evaluated again.
    evaluate_in_version(folder, 1, DetectionExperiment.version - 1)
    assert "was evaluated by an older elign" in version_note(folder, folder.metadata(), folder.gather().tasks)
    resume_run(folder, QUIET)
    assert rows(folder) == rows(iod)
    assert {task["evaluation_version"] for task in folder.gather().tasks} == {DetectionExperiment.version}


def test_whoever_adds_or_removes_a_method_raises_the_version():
    names = hashlib.sha256(" ".join(REGION_METHODS).encode()).hexdigest()[:12]
    assert (DetectionExperiment.version, names) == (2, "f268de7cbd18"), "raise the version, then write both down here"


def test_learners_share_a_first_task(quick, run_of, tmp_path):
    first = run_of("finetune")
    typed = [*quick, f"start_from={first.path}"]
    other = start([*typed, "learner=ilod", f"out={tmp_path / 'b'}"], benchmark=DETECTION)
    assert rows(other)[0] == rows(first)[0]
    with pytest.raises(RunError, match="another first task: learner differ"):
        start([*typed, "learner=iod", f"out={tmp_path / 'c'}"], benchmark=DETECTION)


@pytest.mark.parametrize(
    ("typed", "missing", "error", "says"),
    [
        (["learner=iod", "memory=none"], None, OptionError, r"memory.per_class=10"),
        (["learner=iod", "learner.temperature=-1"], None, ConfigError, "temperature"),
        (["evaluation=coco"], "torchmetrics.detection", MissingExtraError, r"pip install 'elign\[lab,coco\]'"),
        (["evaluation=coco"], "pycocotools", MissingExtraError, r"pip install 'elign\[lab,coco\]'"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    quick, tmp_path, monkeypatch, typed, missing, error, says
):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(error, match=says):
        start([*quick, *typed, f"out={tmp_path / 'run'}"], benchmark=DETECTION)
    assert not (tmp_path / "run").exists()


def test_commands(iod, capsys):
    assert main(["list", str(iod.path.parent)]) == 0
    assert "iod" in capsys.readouterr().out
    assert main(["detect", "resume", str(iod.path)]) == 0
    assert main(["detect", "run", "--keys"]) == 0
    assert "learner.warp_every=20" in capsys.readouterr().out
    assert main(["detect", "run", "learner=icarl"]) == 1
    assert "no learner 'icarl'" in capsys.readouterr().err
    with pytest.raises(RunError, match="holds another run"):
        start(["data=digits", f"out={iod.path}"])
    assert main(["detect", "show", str(iod.path), "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "mean average precision" in text
    assert "iod on digit-scenes, 5+5" in text
    assert "class task base eli/oracle † eli/by-prediction" in text
    for label in range(10):
        assert f" {label} {1 + (label >= 5)} " in text
    assert "COCO" not in text


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torchmetrics", "pycocotools"))), reason="the extra coco is not installed"
)
def test_cocos_average_precision(quick, tmp_path, capsys):
    typed = [*quick, "learner=finetune", "evaluation.coco=true", f"out={tmp_path / 'run'}"]
    folder = start(typed, benchmark=DETECTION)
    for number, task in enumerate(folder.gather().tasks, start=1):
        assert task["coco"].keys() == task["average_precision"].keys()
        for found in task["coco"].values():
            assert found.keys() == {"AP", "AP50", "AP75", "by_class"}
            assert len(found["by_class"]) == 5 * number
            known = [value for value in found["by_class"] if value is not None]
            assert found["AP"] == pytest.approx(sum(known) / len(known))
            assert found["AP50"] >= max(found["AP"], found["AP75"])
    assert main(["detect", "show", str(folder.path), "--details"]) == 0
    assert "AP50 AP75" in " ".join(capsys.readouterr().out.split())
    page = tmp_path / "report.html"
    assert main(["report", str(folder.path), "--out", str(page)]) == 0
    assert "AP75" in page.read_text(encoding="utf-8")


def test_report(iod, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", str(iod.path), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    # Every picture is in the page itself.
    for each in ('<svg class="picture"', 'role="img" aria-label="Image', '<image href="data:image/png;base64,'):
        assert text.count(each) == 3 * pictures(iod)
    headings = "Average precision of each class after task 2", "Mean average precision after each task"
    assert all(each in text for each in (*headings, "elign detect run", '<ul class="key">'))
    assert "of each test image" not in text
    assert main(["report", str(iod.path), "--format", "csv"]) == 0
    assert "eli/by-prediction" in capsys.readouterr().out


DRILL = '''
"""Bright squares of two kinds."""

import torch

from elign.lab.detection.data import DETECTION_DATASETS, DetectionData, DetectionSource, DetectionSplit, Objects


@DETECTION_DATASETS.register("drill-squares")
class DrillSquares(DetectionSource):
    """A red and a blue square on each image."""

    images = "scenes"

    def load(self, config, *, seed):
        def image(row):
            picture = torch.zeros(3, 64, 64, dtype=torch.uint8)
            picture[0, 8:28, 8 + row : 28 + row], picture[2, 36:56, 36:56] = 255, 255
            return picture

        def objects(row):
            boxes = torch.tensor([[8.0 + row, 8, 28 + row, 28], [36, 36, 56, 56]])
            return Objects(boxes, torch.tensor([0, 1]), torch.tensor([False, False]))

        split = DetectionSplit([objects(row) for row in range(6)], image, flips=True)
        return DetectionData(self.name, ("red", "blue"), split, split)
'''


def test_a_new_data_set_is_one_file_with_one_decorator(quick, tmp_path, capsys):
    file = tmp_path / "drill_squares.py"
    file.write_text(DRILL)
    typed = [text for text in quick if not text.startswith(("data", "protocol"))]
    with patch.object(DETECTION_DATASETS, "_found", dict(DETECTION_DATASETS)):
        runpy.run_path(str(file))
        typed += ["learner=finetune", "data=drill-squares", "protocol=1+1", f"out={tmp_path / 'run'}"]
        assert main(["detect", "run", *typed]) == 0
        assert main(["detect", "run", "--keys"]) == 0
        assert "drill-squares" in capsys.readouterr().out
        assert main(["list", str(tmp_path)]) == 0
        assert "drill-squares" in capsys.readouterr().out
        page = tmp_path / "report.html"
        assert main(["report", str(tmp_path / "run"), "--out", str(page)]) == 0
        assert "blue" in page.read_text(encoding="utf-8")
