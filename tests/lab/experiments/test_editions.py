"""Runs that another edition of the readings has read: said where they are shown, read anew, never trained again."""

import hashlib
import io
import shutil

import pytest
from rich.console import Console
from tests.lab.editions import read_in_edition

from elign.lab.cli import main
from elign.lab.commands.show import print_run
from elign.lab.evaluation.results import read_results
from elign.lab.experiments.classification import KIND
from elign.lab.experiments.editions import of_edition, other_edition
from elign.lab.experiments.run_config import compose
from elign.lab.experiments.run_folder import RunError, RunFolder, go_on_command
from elign.lab.experiments.session import go_on, read_again
from elign.lab.report.runs import read_runs
from elign.lab.reproduce.base_runs import BaseRun, evaluation
from elign.lab.reproduce.grid import jobs_of
from elign.lab.reproduce.store import Store

QUIET = Console(quiet=True)
OLDER, NEWER = KIND.edition - 1, KIND.edition + 1


@pytest.fixture
def two(run):
    """An evaluation of it."""
    return RunFolder(run.path / "evaluations" / "two")


def stamps(folder):
    return {file: file.stat().st_mtime_ns for file in folder.path.glob("**/model.safetensors")}


def whole(folder):
    """What the file of the whole run says."""
    return read_results(folder.path / "results.jsonl").rows


def shown(folder):
    console = Console(file=io.StringIO(), width=300)
    print_run(folder, console)
    return console.file.getvalue()


def planned(folder):
    overrides = tuple(folder.facts()["overrides"])
    return evaluation(BaseRun(overrides, compose(overrides), "icarl", "equal-5"))


def test_whoever_adds_or_removes_a_reading_raises_the_edition(made):
    names = sorted({row.reading for row in made.gather().rows})
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    assert (KIND.edition, digest) == (1, "23fb18de5077"), "raise READINGS_EDITION, then write both down here"


def test_a_run_of_today_is_not_remarked_on(made):
    assert "Note" not in shown(made)
    assert read_runs([made])[0][0].remarks == ()
    assert of_edition(made.gather().tasks, KIND.edition)


def test_results_from_before_editions_are_older_than_all(made):
    tasks = [{key: value for key, value in task.items() if key != "edition"} for task in made.gather().tasks]
    assert "was read by an older elign" in other_edition(made, made.facts(), tasks)


def test_another_edition_is_said_where_it_is_shown(run, two, tmp_path, capsys):
    read_in_edition(run, 1, OLDER)
    note = f"{run.path} was read by an older elign"
    assert f"Note: {note}" in shown(run)
    assert note in read_runs([run])[0][0].remarks[0]
    (tmp_path / "page.md").write_text("<!-- begin x -->\n<!-- end x -->\n")
    assert main(["show", str(run.path), "--markdown", str(tmp_path / "page.md"), "--section", "x"]) == 0
    assert note in (tmp_path / "page.md").read_text()
    capsys.readouterr()
    assert main(["list", str(tmp_path)]) == 0
    assert note in capsys.readouterr().out
    read_in_edition(two, 1, OLDER)
    assert f"'elign evaluate {run.path} aligner.steps=2 --name two' reads it anew, and trains nothing" in shown(two)


def test_going_on_reads_anew_and_trains_nothing(run, made):
    before = stamps(run)
    read_in_edition(run, 1, OLDER)
    assert f"'elign resume {run.path}' reads it anew, and trains nothing" in shown(run)
    go_on(run, QUIET)
    assert whole(run) == whole(made)
    assert "Note" not in shown(run)
    assert stamps(run) == before


def test_a_run_that_is_not_finished_goes_on_as_well(run, made):
    read_in_edition(run, 1, OLDER)
    shutil.rmtree(run.task(2))
    assert "reads it anew, and goes on with it" in shown(run)
    go_on(run, QUIET)
    assert whole(run) == whole(made)


def test_an_evaluation_is_read_anew_as_well(run, two, made):
    read_in_edition(two, 2, OLDER)
    read_again(run, ["aligner.steps=2"], QUIET, name="two")
    assert whole(two) == whole(RunFolder(made.path / "evaluations" / "two"))


@pytest.mark.parametrize("where", ["run", "evaluation"])
def test_a_kill_after_the_last_task_leaves_nothing_of_the_older_edition(run, two, made, monkeypatch, where):
    def again():
        go_on(run, QUIET) if where == "run" else read_again(run, ["aligner.steps=2"], QUIET, name="two")

    def killed(folder):
        raise KeyboardInterrupt

    folder = run if where == "run" else two
    number = made.tasks() - 1
    read_in_edition(folder, number, OLDER)
    folder.complete()
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "collect", killed)
        with pytest.raises(KeyboardInterrupt):
            again()
    again()
    assert whole(folder) == folder.gather().rows
    assert of_edition(read_results(folder.path / "results.jsonl").tasks, KIND.edition)


def test_what_a_newer_eli_has_read_is_left_alone(run, two):
    for folder in (run, two):
        read_in_edition(folder, 1, NEWER)
        assert "was read by a newer elign" in shown(folder)
        assert "upgrade elign" in shown(folder)
    kept = (run.task(1) / "results.jsonl").read_bytes()
    with pytest.raises(RunError, match="newer elign: upgrade"):
        go_on(run, QUIET)
    with pytest.raises(RunError, match="newer elign: upgrade"):
        read_again(run, ["aligner.steps=2"], QUIET, name="two")
    assert (run.task(1) / "results.jsonl").read_bytes() == kept


def test_a_plan_reads_it_anew_and_says_so(run, tmp_path):
    store = Store(tmp_path)
    assert store.is_read(planned(run))
    (job,) = jobs_of([planned(run)], store)
    assert job.done
    read_in_edition(run, 2, OLDER)
    assert not store.is_read(planned(run))
    (job,) = jobs_of([planned(run)], store)
    assert (job.done, job.group) == (False, "read icarl on digits, equal-5")
    assert job.seconds > 0


def test_commands_can_be_pasted_into_a_shell(made):
    folder = RunFolder("my runs/one/evaluations/x")
    facts = {"evaluation": ["aligner.hidden=[64,64]"]}
    assert go_on_command(folder, facts) == "elign evaluate 'my runs/one' 'aligner.hidden=[64,64]' --name x"
    assert go_on_command(RunFolder("my runs/one"), {}) == "elign resume 'my runs/one'"
