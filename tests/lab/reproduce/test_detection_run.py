"""`elign reproduce table2` with real detectors that take seconds: planned, broken off, gone on with, done once."""

from __future__ import annotations

import argparse
import csv
import io

import pytest
from rich.console import Console

from elign.lab.commands import reproduce
from elign.lab.experiments.kinds import CLASSIFICATION, DETECTION
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.reproduce import grid
from elign.lab.reproduce.detection_plan import FIRST, SHOWN
from elign.lab.reproduce.store import Store

QUICK = ("preset=smoke", "data.scenes=[16,14]", "data.image_size=64", "model.min_size=64", "model.anchors=[16,32]")
QUICK += ("model.rois=16", "model.proposals=12", "train.first_epochs=2", "train.epochs=2", "train.batch_size=4")
# Detectors that learned next to nothing find something where hardly any overlap is asked for.
QUICK += ("train.learning_rate=0.01", "train.threads=1", "evaluation.overlap=0.05")
WORDS = ("table2", "protocol=5+5", "learner=finetune,iod", *QUICK)


def run(*words):
    parser = argparse.ArgumentParser()
    reproduce.add_options(parser)
    console = Console(width=100, record=True, file=io.StringIO())
    reproduce.run(parser.parse_args([str(word) for word in words]), console)
    return " ".join(console.export_text().split())


class StopError(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Broken off within the second task of the first run, and gone on with."""
    folder = tmp_path_factory.mktemp("table2")
    save = RunFolder.save_model

    def stop(self, number, *arguments):
        if number:
            raise StopError
        save(self, number, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "save_model", stop)
        with pytest.raises(StopError):
            run(*WORDS, f"out={folder}")
    (begun,) = (folder / "runs").iterdir()
    learned = (begun / "task-00" / "model.safetensors").stat().st_mtime_ns
    run(*WORDS, f"out={folder}")
    assert (begun / "task-00" / "model.safetensors").stat().st_mtime_ns == learned
    return folder


def results(out, learner):
    (folder,) = (out / "runs").glob(f"{learner}-digit-scenes-5+5-seed0-*")
    return {row.reading: row for row in RunFolder(folder).gather().rows if row.task == 2}


def test_the_table_has_the_numbers_of_the_runs(out):
    (file,) = out.glob("table2-smoke-*.csv")
    first, *lines = csv.DictReader(file.open())
    assert (first["learner"], first["all"]) == (FIRST, "")
    (folder,) = (out / "runs").glob("finetune-*")
    (row,) = (row for row in RunFolder(folder).gather().rows if row.task == 1)
    assert float(first["old"]) == 100 * row.accuracy
    assert [line["learner"] for line in lines] == ["finetune", "iod", *["iod"] * len(SHOWN)]
    assert [line["reading"].removesuffix(" †") for line in lines] == ["base", "base", *SHOWN]
    for line in lines:
        rows = results(out, line["learner"])
        row, base = rows[line["reading"].removesuffix(" †")], rows["base"]
        assert line["reading"].endswith("†") != row.label_free
        for part, name in (("old", "old"), ("new", "new"), ("all", "accuracy")):
            assert float(line[part]) == 100 * getattr(row, name)
            if row is not base:
                assert float(line[f"gain_{part}"]) == pytest.approx(
                    100 * (getattr(row, name) - getattr(base, name)), abs=1e-9
                )
    assert any(float(line["all"]) > 0 for line in lines)
    assert [line["paper_all"] for line in lines[:3]] == ["37.3", "66.3", "71.7"]


def test_the_same_again_trains_and_reads_nothing(out, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError

    for name in ("begin", "go_on", "read_again"):
        monkeypatch.setattr(grid, name, never)
    shown = run(*WORDS, f"out={out}")
    assert "in all 2 2 0 -" in shown
    assert "data: digit-scenes instead of voc2007; backbone: tiny-c4 instead of resnet50-c4" in shown
    assert "10+10 beside 5+5" in shown
    assert "true boxes are appended to the proposals" in shown
    assert "† uses test annotations" in shown
    assert "one seed, no interval" in shown


def test_a_plan_knows_what_is_done_and_how_long_the_rest_takes(out):
    shown = run(*WORDS, "seeds=2", "aligner.steps=2", f"out={out}", "--plan")
    assert "train finetune on digit-scenes, 5+5 2 1 1" in shown
    assert "read iod on digit-scenes, 5+5 with other aligners 2 0 2" in shown
    assert "read finetune" not in shown
    assert "unknown" not in shown
    assert len(list((out / "runs").iterdir())) == 2


def test_another_learner_takes_the_first_task(out):
    run(*[word.replace("finetune,iod", "ilod") for word in WORDS], f"out={out}")
    (ilod,), (finetune,) = ((out / "runs").glob(f"{name}-*") for name in ("ilod", "finetune"))
    assert RunFolder(ilod).facts()["config"]["start_from"] == str(finetune.resolve())


def test_another_aligner_trains_nothing(out, monkeypatch):
    monkeypatch.setattr(grid, "begin", None)
    shown = run(*WORDS, "aligner.steps=2", f"out={out}")
    assert "in all 3 2 1" in shown
    assert "aligner.steps: 2 instead of 30" in shown
    (target,) = (out / "runs").glob("iod-*/evaluations/aligner.steps=2")
    assert {row.task for row in RunFolder(target).gather().rows} == {1, 2}


def test_runs_of_another_kind_are_passed_over(out):
    assert len(Store(out, DETECTION).stored()) >= 2
    assert Store(out, CLASSIFICATION).stored() == []
