"""Runs that another edition of the readings has read: said wherever they are shown, read anew, never trained again."""

import dataclasses
import io
import shutil

import pytest
from rich.console import Console

from eli.lab.commands.show import print_run
from eli.lab.evaluation.results import read_results, write_results
from eli.lab.experiments.editions import other_edition
from eli.lab.experiments.run_config import compose
from eli.lab.experiments.run_folder import RunFolder
from eli.lab.experiments.session import begin, go_on, read_again
from eli.lab.report.runs import read_runs
from eli.lab.reproduce.base_runs import BaseRun, evaluation
from eli.lab.reproduce.store import Store

QUIET = Console(quiet=True)
SETTINGS = ("data=digits", "preset=smoke", "data.limit=20", "train.first_epochs=1", "train.epochs=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "runs" / "run"
    folder = begin([*SETTINGS, "aligner.iterations=5", f"out={path}"], QUIET)
    read_again(folder, ["aligner.steps=2"], QUIET, name="two")
    return folder


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made.path, tmp_path / "runs" / "run")
    return RunFolder(tmp_path / "runs" / "run")


def read_in_another_edition(folder, number):
    """Make of a task's results what another eli could have left: other numbers, another edition."""
    found = read_results(folder.task(number) / "results.jsonl")
    rows = [dataclasses.replace(row, accuracy=0.0) for row in found.rows]
    write_results(folder.task(number), rows, {}, tasks=[{**found.tasks[0], "edition": 0}])


def rows(folder):
    return read_results(folder.path / "results.jsonl").rows


def shown(folder):
    console = Console(file=io.StringIO(), width=300)
    print_run(folder, console)
    return console.file.getvalue()


def planned(folder):
    overrides = tuple(folder.facts()["overrides"])
    return evaluation(BaseRun(overrides, compose(overrides), "icarl", "equal-5"))


def test_a_run_of_today_is_not_remarked_on(made):
    assert "Note" not in shown(made)
    assert read_runs([made])[0][0].remarks == ()
    assert all(task["edition"] == 1 for task in made.gather().tasks)


def test_results_from_before_editions_count_as_the_first(made):
    tasks = [{key: value for key, value in task.items() if key != "edition"} for task in made.gather().tasks]
    assert other_edition(made, made.facts(), tasks) is None


def test_another_edition_is_said_wherever_it_is_shown(run):
    read_in_another_edition(run, 1)
    assert f"Note: {run.path} was read by another version of eli" in shown(run)
    assert f"'eli resume {run.path}' reads it anew" in read_runs([run])[0][0].remarks[0]
    two = RunFolder(run.path / "evaluations" / "two")
    read_in_another_edition(two, 1)
    assert f"'eli evaluate {run.path} aligner.steps=2 --name two' reads it anew" in shown(two)


def test_going_on_reads_anew_and_trains_nothing(run, made):
    stamps = {file: file.stat().st_mtime_ns for file in run.path.glob("**/model.safetensors")}
    read_in_another_edition(run, 1)
    go_on(run, QUIET)
    assert rows(run) == rows(made)
    assert "Note" not in shown(run)
    assert {file: file.stat().st_mtime_ns for file in run.path.glob("**/model.safetensors")} == stamps


def test_an_evaluation_is_read_anew_as_well(run, made):
    two = RunFolder(run.path / "evaluations" / "two")
    read_in_another_edition(two, 2)
    read_again(run, ["aligner.steps=2"], QUIET, name="two")
    assert rows(two) == rows(RunFolder(made.path / "evaluations" / "two"))


def test_a_plan_counts_it_as_not_done(run, tmp_path):
    store = Store(tmp_path)
    assert store.is_read(planned(run))
    read_in_another_edition(run, 2)
    assert not store.is_read(planned(run))
