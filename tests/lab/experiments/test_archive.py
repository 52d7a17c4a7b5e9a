"""Copies of runs that hold readings alone: shown like the run, small, free of paths, never trained on."""

import json
import shutil

import pytest
from tests.lab.editions import read_in_edition

from elign.lab.cli import main
from elign.lab.experiments.archive import archive_run
from elign.lab.experiments.classification import KIND
from elign.lab.experiments.editions import other_edition
from elign.lab.experiments.run_folder import RunError, RunFolder
from elign.lab.reproduce.base_runs import BaseRun, evaluation
from elign.lab.reproduce.grid import jobs_of
from elign.lab.reproduce.store import Store
from elign.lab.tensor_file import DamagedRunError


@pytest.fixture
def copy(run, tmp_path):
    return archive_run(run, tmp_path / "kept" / "runs")


def test_a_copy_says_what_its_run_says(run, copy):
    for part in ("", "evaluations/two"):
        mine, theirs = (RunFolder(folder.path / part).gather() for folder in (run, copy))
        assert (theirs.rows, theirs.tasks) == (mine.rows, mine.tasks)
        assert theirs.facts["classes"] == mine.facts["classes"]


def test_a_copy_has_readings_alone_and_no_path(made, run, copy):
    files = [file for file in copy.path.glob("**/*") if file.is_file()]
    assert {file.name for file in files} == {"run.json", "results.jsonl"}
    assert str(made.path) in (run.path / "run.json").read_text()
    assert not any(str(made.path) in file.read_text() for file in files)
    assert sum(file.stat().st_size for file in files) < 0.5 * sum(
        file.stat().st_size for file in run.path.glob("**/*") if file.is_file()
    )


def test_of_files_and_folders_their_names_stay(run, tmp_path):
    facts = run.facts()
    facts["config"]["data"]["path"] = str(tmp_path / "pictures")
    facts["config"]["learner"]["options"]["teacher"] = str(tmp_path / "teacher.pt")
    typed = [f"data.path={tmp_path / 'pictures'}", f"learner.teacher={tmp_path / 'teacher.pt'}"]
    run.write_facts({**facts, "overrides": [*facts["overrides"], *typed]})
    kept = archive_run(run, tmp_path / "kept").facts()
    assert kept["config"]["data"]["path"] == "pictures"
    assert {"data.path=pictures", "learner.teacher=teacher.pt"} < set(kept["overrides"])
    assert str(tmp_path) not in json.dumps(kept)


def test_commands_show_a_copy_like_a_run(copy, tmp_path, capsys):
    assert main(["list", str(copy.path.parent)]) == 0
    assert main(["show", str(copy.path), "--details"]) == 0
    assert main(["report", str(copy.path), "--out", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    assert "eli/oracle" in out
    assert "results.csv" not in out
    assert "eli/oracle" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_reproduce_takes_a_copy_for_done(quick, copy, tmp_path):
    planned = BaseRun(quick, KIND.compose(quick), "icarl", "half-5")
    (job,) = jobs_of([evaluation(planned)], Store(tmp_path / "kept"))
    assert job.done


@pytest.mark.parametrize("command", [["resume"], ["evaluate"]])
def test_a_copy_is_not_gone_on_with(quick, copy, command, capsys):
    extra = ["aligner.steps=4"] if command == ["evaluate"] else []
    assert main([*command, str(copy.path), *extra]) == 1
    assert "holds readings alone" in capsys.readouterr().err
    assert main(["run", *quick, f"out={copy.path}"]) == 1
    assert "holds readings alone" in capsys.readouterr().err
    assert main(["run", *quick, f"start_from={copy.path}", f"out={copy.path.parent / 'next'}"]) == 1
    assert "holds readings alone" in capsys.readouterr().err


def test_a_copy_of_an_older_edition_says_that_it_cannot_be_read_anew(run, tmp_path):
    read_in_edition(run, 1, KIND.edition - 1)
    old = archive_run(run, tmp_path / "kept")
    said = other_edition(old, old.facts(), old.gather().tasks)
    assert "no model to be read anew" in said


def test_a_later_copy_takes_the_place_of_the_whole_one_before(run, copy):
    shutil.rmtree(run.path / "evaluations")
    shutil.rmtree(run.task(1))  # begun anew, and not as far yet
    assert archive_run(run, copy.path.parent).path == copy.path
    assert len(copy.gather().tasks) == 1
    assert not (copy.path / "evaluations").exists()


def test_a_copy_that_was_cut_off_is_no_hindrance(run, tmp_path, monkeypatch):
    def killed(self, facts):
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(RunFolder, "write_facts", killed)
        with pytest.raises(KeyboardInterrupt):
            archive_run(run, tmp_path / "kept")
    assert not (tmp_path / "kept" / "run").exists()
    assert archive_run(run, tmp_path / "kept").gather().rows == run.gather().rows
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["run"]


def test_what_else_is_in_the_way_stays(run, tmp_path):
    with pytest.raises(RunError, match="into itself"):
        archive_run(run, run.path.parent)
    other = RunFolder(tmp_path / "elsewhere" / "run")
    other.write_facts(run.facts())
    foreign = tmp_path / "mine" / "run" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    for place in (other.path.parent, tmp_path / "mine"):
        with pytest.raises(RunError, match="holds something else"):
            archive_run(run, place)
    assert foreign.read_text() == "mine"


def test_nothing_read_or_damaged_is_not_archived(run, tmp_path):
    file = run.task(1) / "results.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DamagedRunError):
        archive_run(run, tmp_path / "kept")
    (run.task(0) / "results.jsonl").unlink()
    with pytest.raises(RunError, match="nothing to archive"):
        archive_run(run, tmp_path / "kept")


def test_the_command_copies_several_and_says_what_it_left_out(run, tmp_path, capsys):
    shutil.copytree(run.path, run.path.parent / "twin")
    begun = RunFolder(run.path.parent / "begun")
    begun.write_facts(run.facts())
    runs = [str(path) for path in sorted(run.path.parent.iterdir())]
    assert main(["archive", *runs, "--into", str(tmp_path / "kept")]) == 1
    printed = capsys.readouterr()
    tasks = len(run.facts()["sizes"])
    assert printed.out.replace("\n", "").count(f"{tasks} of {tasks} tasks") == 2
    assert "left out" in printed.out
    assert "1 of 3 could not be archived" in printed.err
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"run", "twin"}
