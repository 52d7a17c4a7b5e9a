"""`elign reproduce` end to end, with runs that take seconds: interrupted, resumed, shared, found by their settings."""

import argparse
import csv
import io
import subprocess
import sys

import pytest
from rich.console import Console
from tests.lab.starting import start

from elign.lab.cli import reproduce
from elign.lab.config.composition import ConfigError
from elign.lab.evaluation.methods import METHODS
from elign.lab.paper import plan as planning
from elign.lab.paper import reproduction
from elign.lab.paper.detection_table import FIRST, SHOWN
from elign.lab.paper.plan import Store
from elign.lab.paper.request import read_grid
from elign.lab.report.table import PageError
from elign.lab.runs.experiment import CLASSIFICATION, DETECTION
from elign.lab.runs.launch import reevaluate_run
from elign.lab.runs.run_dir import RunDir

TRAINED = ("data.limit=12", "train.first_epochs=1", "train.epochs=1")
TINY = ("preset=smoke", *TRAINED, "aligner.iterations=2")

QUICK = ("preset=smoke", "data.scenes=[16,14]", "data.image_size=64", "model.min_size=64", "model.anchors=[16,32]")
QUICK += ("model.rois=16", "model.proposals=12", "train.first_epochs=2", "train.epochs=2", "train.batch_size=4")
# Detectors that learned next to nothing find something where hardly any overlap is asked for.
QUICK += ("train.learning_rate=0.01", "evaluation.overlap=0.05")
DETECTORS = ("table2", "protocol=5+5", "learner=finetune,iod", *QUICK)


def run(*words):
    parser = argparse.ArgumentParser()
    reproduce.add_options(parser)
    console = Console(width=100, file=io.StringIO())
    reproduce.run(parser.parse_args([str(word) for word in words]), console)
    return " ".join(console.file.getvalue().split())


class StopError(Exception):
    """Stands for a kill."""


def never(*arguments, **options):
    raise AssertionError


@pytest.fixture(scope="module", autouse=True)
def _few_settings_and_methods():
    """Two printed settings and the cheap methods are enough to see it work; the plans' tests count all settings."""
    grid = read_grid("langevin")
    choices = {steps: grid.evaluations.choices[steps] for steps in ("5", "90")}
    few = grid.model_copy(update={"evaluations": grid.evaluations.model_copy(update={"choices": choices})})
    slow = ("repair", "forward", "blend", "retrained-head", "untrained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction, "read_grid", lambda name: few if name == "langevin" else read_grid(name))
        patch.setattr(METHODS, "_found", {name: METHODS[name] for name in METHODS if name.split("/")[0] not in slow})
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Langevin steps of a run that `elign run` made, interrupted after one of two evaluations, and resumed."""
    folder = tmp_path_factory.mktemp("reproduce")
    settings = ["learner=icarl", "data=digits", "protocol=half-5", "preset=smoke", *TRAINED]
    start([*settings, f"out={folder / 'runs' / 'mine'}"])
    evaluated = []

    def stop(*arguments, **options):
        if evaluated:
            raise StopError
        evaluated.append(arguments)
        return reevaluate_run(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "reevaluate_run", stop)
        with pytest.raises(StopError):
            run("langevin", *TINY, f"out={folder}")
    plan = run("langevin", *TINY, f"out={folder}", "--plan")
    assert "train icarl on digits, half-5 1 1 0 -" in plan
    assert "with other aligners 2 1 1" in plan
    run("langevin", *TINY, f"out={folder}")
    return folder


def test_the_table_has_a_line_for_each_printed_setting(out):
    (file,) = out.glob("langevin-smoke-*.csv")
    lines = list(csv.DictReader(file.open()))
    assert [line["steps"] for line in lines] == ["5", "90"]
    assert [float(line["paper_aligned"]) for line in lines] == [63.3, 63.79]
    # All aligners have the same trained models.
    assert len({line["base"] for line in lines}) == 1
    # A run is found by its settings, not by its name.
    assert [folder.name for folder in (out / "runs").iterdir()] == ["mine"]


def test_the_same_again_trains_and_evaluates_nothing(out, monkeypatch):
    for name in ("start_run", "resume_run", "reevaluate_run"):
        monkeypatch.setattr(planning, name, never)
    page = out / "page.md"
    page.write_text("<!-- begin reproduce-langevin-smoke -->\n<!-- end reproduce-langevin-smoke -->\n")
    shown = run("langevin", *TINY, f"out={out}", "--results", page)
    assert "in all 3 3 0 -" in shown
    assert "preset=smoke, not the paper's scale: data: digits instead of cifar100" in shown
    assert "one seed, no interval" in shown
    written = page.read_text()
    assert "| 90 | 56.97 |" in written
    assert "Made by `elign reproduce langevin preset=smoke seeds=1 data.limit=12" in written


def test_another_experiment_takes_the_run_and_the_first_task(out):
    shown = run("table1", "learner=icarl,lucir", "protocol=half-5", "preset=smoke", *TRAINED, f"out={out}")
    assert "train icarl on digits, half-5, seed 0" not in shown
    assert "train lucir on digits, half-5, seed 0" in shown
    (lucir,) = (out / "runs").glob("lucir-*")
    icarl = out / "runs" / "mine"
    assert RunDir(lucir).metadata()["config"]["start_from"] == str(icarl.resolve())
    first = [RunDir(folder).load_model(0)[0] for folder in (icarl, lucir)]
    assert all(first[0][name].equal(first[1][name]) for name in first[0])
    # Finished runs tell how long others take.
    assert "unknown" not in run("langevin", "learner=aanet", *TINY, f"out={out}", "--plan")


def test_label_free_methods_stand_beside_the_oracles(out, tmp_path):
    words = ("label-free", "learner=icarl", "protocol=half-5", "preset=smoke", *TRAINED, f"out={out}")
    page = tmp_path / "page.md"
    page.write_text("<!-- begin mine -->\n<!-- end mine -->\n")
    run(*words, "--results", page, "--section", "mine")
    (file,) = out.glob("label-free-smoke-*.csv")
    lines = {line["method"]: line for line in csv.DictReader(file.open())}
    assert {name for name in lines if "†" in name} == {"eli/oracle †", "oracle-mask †"}
    assert {"base", "eli/all", "eli/dose", "bias-offset", "base, nearest mean", "eli/all, nearest mean"} < set(lines)
    rows = RunDir(out / "runs" / "mine").gather().rows
    (row,) = (row for row in rows if (row.method, row.classifier, row.task) == ("eli/all", "fc", 6))
    assert float(lines["eli/all"]["last"]) == pytest.approx(100 * row.accuracy)
    assert "| eli/all |" in page.read_text(encoding="utf-8")
    for wrong in (("--section", "mine"), ("langevin", "--results", page, "--section", "mine")):
        with pytest.raises(ConfigError, match="one experiment's table"):
            run(*words, *wrong)


def test_compute_measures_once(tmp_path, monkeypatch):
    # In place of two fresh processes.
    monkeypatch.setattr("elign.lab.paper.costs._memory", lambda what, dim: 1.25 if what == "align" else None)
    shown = run("compute", "preset=smoke", f"out={tmp_path}")
    assert "64, paper 8.385K 1.057M 39 ±3" in shown.replace("± ", "±")
    assert "64 8,385 1.057M" in shown
    assert "1.2 –" in shown
    monkeypatch.setattr("elign.lab.paper.costs.measure", never)
    assert "in all 1 1 0 -" in run("compute", "preset=smoke", f"out={tmp_path}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the present size of a process")
def test_memory_grows_by_what_alignment_needs():
    # In a process of its own, as it is used: one that did other work before has memory at hand.
    command = [sys.executable, "-m", "elign.lab.paper.costs", "align", "1024"]
    grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The result alone has 10,000 x 1024 numbers of 4 bytes.
    assert grown > 0.9 * 10_000 * 1024 * 4 / 2**20


def test_toy_beside_the_paper(tmp_path):
    shown = run("toy", "preset=smoke", f"out={tmp_path}")
    assert "20.88 →" in shown
    assert "aligner.iterations: 300 instead of 17100" in shown
    assert "in all 1 1 0 -" in run("toy", "preset=smoke", f"out={tmp_path}", "--plan")


def test_what_cannot_end_well_does_not_start(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(PageError, match="reproduce-langevin-smoke"):
        run("langevin", *TINY, f"out={tmp_path / 'o'}", "--results", page)
    with pytest.raises(ConfigError, match="table1 cannot start: the data set imagenet100"):
        run("table1", "data=imagenet100", f"data.data_dir={tmp_path}", f"out={tmp_path / 'o'}")
    assert not (tmp_path / "o").exists()


@pytest.fixture(scope="module")
def detectors(tmp_path_factory):
    """Interrupted within the second task of the first run, and resumed."""
    folder = tmp_path_factory.mktemp("table2")
    save = RunDir.save_model

    def stop(self, number, *arguments):
        if number:
            raise StopError
        save(self, number, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDir, "save_model", stop)
        with pytest.raises(StopError):
            run(*DETECTORS, f"out={folder}")
    (started,) = (folder / "runs").iterdir()
    learned = (started / "task-00" / "model.safetensors").stat().st_mtime_ns
    run(*DETECTORS, f"out={folder}")
    assert (started / "task-00" / "model.safetensors").stat().st_mtime_ns == learned
    return folder


def test_the_table_of_detectors_has_the_numbers_of_the_runs(detectors):
    (file,) = detectors.glob("table2-smoke-*.csv")
    first, *lines = csv.DictReader(file.open())
    assert (first["learner"], first["all"]) == (FIRST, "")
    assert [line["learner"] for line in lines] == ["finetune", "iod", *["iod"] * len(SHOWN)]
    assert [line["method"].removesuffix(" †") for line in lines] == ["base", "base", *SHOWN]
    found = {}
    for learner in ("finetune", "iod"):
        (folder,) = (detectors / "runs").glob(f"{learner}-digit-scenes-5+5-seed0-*")
        found[learner] = {(row.task, row.method): row for row in RunDir(folder).gather().rows}
    assert float(first["old"]) == 100 * found["finetune"][1, "base"].accuracy
    for line in lines:
        rows = found[line["learner"]]
        row, base = rows[2, line["method"].removesuffix(" †")], rows[2, "base"]
        assert line["method"].endswith("†") != row.label_free
        for part, name in (("old", "old"), ("new", "new"), ("all", "accuracy")):
            assert float(line[part]) == 100 * getattr(row, name)
            if row is not base:
                gain = 100 * (getattr(row, name) - getattr(base, name))
                assert float(line[f"gain_{part}"]) == pytest.approx(gain, abs=1e-9)
    assert any(float(line["all"]) > 0 for line in lines)
    assert [line["paper_all"] for line in lines[:3]] == ["37.3", "66.3", "71.7"]


def test_detectors_that_are_done_are_not_trained_again(detectors, monkeypatch):
    monkeypatch.setattr(planning, "start_run", never)
    shown = run(*DETECTORS, "aligner.steps=2", f"out={detectors}")
    assert "in all 3 2 1" in shown
    assert "data: digit-scenes instead of voc2007; backbone: tiny-c4 instead of resnet50-c4" in shown
    assert "aligner.steps: 2 instead of 30" in shown
    assert "10+10 beside 5+5" in shown
    (target,) = (detectors / "runs").glob("iod-*/evaluations/aligner.steps=2")
    assert {row.task for row in RunDir(target).gather().rows} == {1, 2}
    plan = run(*DETECTORS, "seeds=2", "aligner.steps=2", f"out={detectors}", "--plan")
    assert "train finetune on digit-scenes, 5+5 2 1 1" in plan
    assert "evaluate iod on digit-scenes, 5+5 with other aligners 2 1 1" in plan
    assert "unknown" not in plan
    assert len(Store(detectors, DETECTION).stored) == 2
    assert Store(detectors, CLASSIFICATION).stored == []
