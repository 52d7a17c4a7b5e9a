"""Runs that another version of the methods evaluated: said where shown, evaluated again, never trained again."""

import hashlib
import io
import shutil

import pytest
from rich.console import Console
from tests.lab.starting import QUIET, evaluate_in_version, reevaluate, rows

from elign.lab.cli.main import main
from elign.lab.cli.show import print_runs
from elign.lab.report.run_groups import read_runs
from elign.lab.runs.experiment import Classification, evaluated_by, version_note
from elign.lab.runs.launch import resume_run
from elign.lab.runs.run_dir import RunDir, RunError, resume_command

VERSION = Classification.version
OLDER, NEWER = Classification.comparable_from - 1, VERSION + 1


@pytest.fixture
def two(run):
    """An evaluation of it."""
    return RunDir(run.path / "evaluations" / "two")


def stamps(folder):
    return {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")}


def shown(folder):
    console = Console(file=io.StringIO(), width=300)
    print_runs([folder], console)
    return console.file.getvalue()


def test_whoever_adds_or_removes_a_method_raises_the_version(made):
    names = sorted({row.method for row in made.gather().rows})
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    assert (VERSION, digest) == (2, "0abe12ca106b"), "raise the version, then write both down here"


def test_versions_are_compared_by_what_their_rows_mean(made):
    versions = {0: "older", Classification.comparable_from: "comparable", VERSION: "comparable", NEWER: "newer"}
    assert {each: evaluated_by([{"evaluation_version": each}], Classification) for each in versions} == versions
    assert "was evaluated by an older elign" in version_note(made, made.metadata(), [{"evaluation_version": 0}])


def test_another_version_is_said_where_it_is_shown(run, two, tmp_path, capsys):
    evaluate_in_version(run, 1, OLDER)
    note = f"{run.path} was evaluated by an older elign"
    assert f"Note: {note}" in shown(run)
    assert note in read_runs([run])[0][0].remarks[0]
    (tmp_path / "page.md").write_text("<!-- begin x -->\n<!-- end x -->\n")
    assert main(["show", str(run.path), "--markdown", str(tmp_path / "page.md"), "--section", "x"]) == 0
    assert note in (tmp_path / "page.md").read_text()
    capsys.readouterr()
    assert main(["list", str(tmp_path)]) == 0
    assert "were evaluated by different" in " ".join(capsys.readouterr().out.split())
    evaluate_in_version(two, 1, OLDER)
    command = f"'elign evaluate {run.path} aligner.steps=2 --name two'"
    assert f"{command} evaluates it again, and trains nothing" in shown(two)


def test_resuming_evaluates_again_and_trains_nothing(run, made):
    before = stamps(run)
    evaluate_in_version(run, 1, OLDER)
    assert f"'elign resume {run.path}' evaluates it again, and trains nothing" in shown(run)
    resume_run(run, QUIET)
    assert rows(run) == rows(made)
    assert "Note" not in shown(run)
    assert stamps(run) == before


@pytest.mark.parametrize("where", ["run", "evaluation"])
def test_a_kill_after_the_last_task_leaves_nothing_of_the_older_version(run, two, made, monkeypatch, where):
    def again():
        resume_run(run, QUIET) if where == "run" else reevaluate(run, ["aligner.steps=2"], name="two")

    def killed(folder, by_task):
        raise KeyboardInterrupt

    folder, original = (run, made) if where == "run" else (two, RunDir(made.path / "evaluations" / "two"))
    number = made.tasks() - 1
    evaluate_in_version(folder, number, OLDER)
    folder.write_results([folder.results(each) for each in range(number + 1)])
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_results", killed)
        with pytest.raises(KeyboardInterrupt):
            again()
    again()
    assert rows(folder) == folder.gather().rows == rows(original)
    assert {task["evaluation_version"] for task in folder.gather().tasks} == {VERSION}


def test_what_a_newer_elign_evaluated_is_left_alone(run, two):
    for folder in (run, two):
        evaluate_in_version(folder, 1, NEWER)
        assert "was evaluated by a newer elign" in shown(folder)
        assert "upgrade elign" in shown(folder)
    kept = (run.task(1) / "results.jsonl").read_bytes()
    with pytest.raises(RunError, match="newer elign: upgrade"):
        resume_run(run, QUIET)
    with pytest.raises(RunError, match="newer elign: upgrade"):
        reevaluate(run, ["aligner.steps=2"], name="two")
    assert (run.task(1) / "results.jsonl").read_bytes() == kept


def test_commands_can_be_pasted_into_a_shell(made):
    folder = RunDir("my runs/one/evaluations/x")
    metadata = {"evaluation": ["aligner.hidden=[64,64]"]}
    assert resume_command(folder, metadata) == "elign evaluate 'my runs/one' 'aligner.hidden=[64,64]' --name x"
    assert resume_command(RunDir("my runs/one"), {}) == "elign resume 'my runs/one'"


def test_a_run_that_is_not_finished_resumes_as_well(run, made):
    evaluate_in_version(run, 1, OLDER)
    shutil.rmtree(run.task(2))
    assert "evaluates it again, and resumes it" in shown(run)
    resume_run(run, QUIET)
    assert rows(run) == rows(made)
