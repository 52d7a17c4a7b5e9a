"""Whole runs of detectors on real scenes: every learner, interruptions, evaluations, what is shared, what is shown."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys

import pytest
from tests.lab.editions import read_in_edition

from elign.lab.cli import main
from elign.lab.detection.evaluation.readings import REGION_READINGS
from elign.lab.detection.experiments.detection import KIND
from elign.lab.detection.experiments.pictures import read_pictures
from elign.lab.experiments.editions import of_edition, other_edition
from elign.lab.experiments.kinds import DETECTION
from elign.lab.experiments.run_folder import RunError, RunFolder
from elign.lab.experiments.session import begin, go_on, read_again
from elign.lab.extras import MissingExtraError
from elign.utils.errors import OptionError


class StopError(Exception):
    """Stands for a kill."""


def rows(folder):
    return folder.gather().rows


@pytest.mark.parametrize("learner", ["finetune", "joint", "ilod", "faster-ilod", "ore"])
def test_every_learner_learns_two_tasks(quick, tmp_path, console, learner):
    folder = begin([*quick, f"learner={learner}", f"out={tmp_path / 'run'}"], console, kind=DETECTION)
    _check(folder)
    # Only ORE says something of objects that are still to come, and after the last task there are none.
    assert ["unknown" in task for task in folder.gather().tasks] == [learner == "ore", False]


def test_iod(iod):
    _check(iod)
    assert any(name.startswith("store.") for name in iod.load_model(1)[0])


def _check(folder):
    found = rows(folder)
    assert [row.reading for row in found if row.task == 1] == ["base"]
    assert sorted(row.reading for row in found if row.task == 2) == sorted(REGION_READINGS)
    assert {row.classifier for row in found} == {"detector"}
    tasks = folder.gather().tasks
    assert len(tasks[1]["average_precision"]["base"]) == 10
    assert {"train", "extract", "fit", "readings"} <= tasks[1]["seconds"].keys()
    assert len(read_pictures(folder.task(1))) > 0
    assert folder.facts()["kind"] == DETECTION


@pytest.mark.parametrize("place", [(0, 1, 2), (1, 0, 1), (1, "last", 1)])
def test_an_interrupted_run_ends_in_the_same_numbers(quick, iod, tmp_path, console, monkeypatch, place):
    """The last place is within fine-tuning; iOD keeps images, so its state is more than its weights."""
    typed = [*quick, "learner=iod", "learner.warp_every=2", "train.checkpoint_minutes=0", f"out={tmp_path / 'run'}"]
    save = RunFolder.save_progress
    seen = []

    def stop(self, number, state, facts):
        save(self, number, state, facts)
        seen.append(facts["epoch"])
        task, epoch, step = place
        # Fine-tuning comes after the two epochs of learning that the second task has.
        wanted = facts["epoch"] >= 2 if epoch == "last" else facts["epoch"] == epoch
        if number == task and wanted and facts["step"] == step:
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_progress", stop)
        with pytest.raises(StopError):
            begin(typed, console, kind=DETECTION)
    folder = RunFolder(tmp_path / "run")
    go_on(folder, console)
    assert rows(folder) == rows(iod)


def test_another_evaluation_trains_nothing(iod, tmp_path, console):
    shutil.copytree(iod.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")}
    target = read_again(folder, ["aligner.steps=5", "aligner=shared-backbone"], console)
    assert {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")} == before
    assert len(rows(target)) == len(rows(folder))
    with pytest.raises(RunError, match="'elign evaluate"):
        go_on(target, console)


def test_what_an_older_edition_has_read_is_read_anew(iod, tmp_path, console):
    shutil.copytree(iod.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    read_in_edition(folder, 1, KIND.edition - 1)
    assert "was read by an older elign" in other_edition(folder, folder.facts(), folder.gather().tasks)
    go_on(folder, console)
    assert rows(folder) == rows(iod)
    assert of_edition(folder.gather().tasks, KIND.edition)


def test_whoever_adds_or_removes_a_reading_raises_the_edition():
    names = hashlib.sha256(" ".join(REGION_READINGS).encode()).hexdigest()[:12]
    assert (KIND.edition, names) == (2, "f268de7cbd18"), "raise READINGS_EDITION, then write both down here"


def test_learners_share_a_first_task(quick, tmp_path, console):
    first = begin([*quick, "learner=finetune", f"out={tmp_path / 'a'}"], console, kind=DETECTION)
    typed = [*quick, f"start_from={first.path}"]
    other = begin([*typed, "learner=ilod", f"out={tmp_path / 'b'}"], console, kind=DETECTION)
    assert rows(other)[0] == rows(first)[0]
    with pytest.raises(RunError, match="another first task: learner differ"):
        begin([*typed, "learner=iod", f"out={tmp_path / 'c'}"], console, kind=DETECTION)


def test_what_cannot_be_done_is_said_before_anything_is_written(quick, tmp_path, console):
    with pytest.raises(OptionError, match=r"memory.per_class=10"):
        begin([*quick, "learner=iod", "memory=none", f"out={tmp_path / 'run'}"], console, kind=DETECTION)
    with pytest.raises(OptionError, match="temperature"):
        begin([*quick, "learner=iod", "learner.temperature=-1", f"out={tmp_path / 'run'}"], console, kind=DETECTION)
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
    assert "average precision of each class after task 2, in %" in text
    assert "class base eli/oracle † eli/by-prediction" in text
    assert "base: mean average precision on the classes of each task" in text
    assert "it knows of each region whether it lies on an old object" in text
    assert "COCO" not in text
    assert "test images" not in text


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torchmetrics", "pycocotools"))), reason="the extra coco is not installed"
)
def test_cocos_average_precision(quick, tmp_path, console, capsys):
    typed = [*quick, "learner=finetune", "evaluation.coco=true", f"out={tmp_path / 'run'}"]
    folder = begin(typed, console, kind=DETECTION)
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
    assert "COCO's AP of each class after task 2" in text
    assert "AP75" in text
    page = tmp_path / "report.html"
    assert main(["report", str(folder.path), "--out", str(page)]) == 0
    assert "COCO&#x27;s average precision after task 2" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["torchmetrics.detection", "pycocotools"])
def test_a_missing_extra_is_found_before_anything_is_written(quick, tmp_path, console, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'elign\[lab,coco\]'"):
        begin([*quick, "evaluation=coco", f"out={tmp_path / 'run'}"], console, kind=DETECTION)
    assert not (tmp_path / "run").exists()


def test_a_classification_run_is_not_gone_on_with_as_detection(iod, console):
    with pytest.raises(RunError, match="holds another run"):
        begin(["data=digits", f"out={iod.path}"], console)


def test_report(iod, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", str(iod.path), "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count('<svg class="picture"') == 3 * len(read_pictures(iod.task(1)))
    assert text.count('role="img" aria-label="Image') == text.count('<svg class="picture"')
    assert "Average precision of each class after task 2" in text
    assert "elign detect run" in text
    assert "Mean average precision after each task" in text
    assert "tells ELI of each region whether it lies on an old object" in text
    assert "of each test image" not in text
    assert '<ul class="key">' in text
    # Every picture is in the page itself.
    assert text.count('<image href="data:image/png;base64,') == text.count('<svg class="picture"')
    assert main(["report", str(iod.path), "--format", "csv"]) == 0
    assert "eli/by-prediction" in capsys.readouterr().out


def test_facts_are_plain(iod):
    facts = json.loads((iod.path / "run.json").read_text())
    assert facts["config"]["evaluation"] == {"method": "area", "overlap": 0.5, "coco": False}
    assert facts["sizes"] == [5, 5]
