"""Copies of runs that hold results alone: shown like the run, small, free of paths, never trained on."""

import json
import shutil
from pathlib import Path

import pytest
from tests.lab.starting import evaluate_in_version

from elign.lab.cli.main import main
from elign.lab.runs.archiving import archive_run
from elign.lab.runs.experiment import version_note
from elign.lab.runs.run_dir import RunDir, RunError
from elign.lab.storage import DamagedRunError


@pytest.fixture
def copy(run, tmp_path):
    return archive_run(run, tmp_path / "kept" / "runs")


def test_a_copy_has_results_alone_and_no_path(made, run, copy):
    for part in ("", "evaluations/two"):
        mine, theirs = (RunDir(folder.path / part).gather() for folder in (run, copy))
        assert (theirs.rows, theirs.tasks) == (mine.rows, mine.tasks)
    files = [file for file in copy.path.glob("**/*") if file.is_file()]
    assert {file.name for file in files} == {"run.json", "results.jsonl"}
    assert str(made.path) in (run.path / "run.json").read_text()
    assert not any(str(made.path) in file.read_text() for file in files)


def test_of_files_and_folders_their_names_stay(run, tmp_path):
    metadata = run.metadata()
    metadata["config"]["data"]["path"] = str(tmp_path / "pictures")
    metadata["config"]["learner"]["options"]["teacher"] = str(tmp_path / "teacher.pt")
    typed = [f"data.path={tmp_path / 'pictures'}", f"learner.teacher={tmp_path / 'teacher.pt'}"]
    run.write_metadata({**metadata, "overrides": [*metadata["overrides"], *typed]})
    kept = archive_run(run, tmp_path / "kept").metadata()
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


@pytest.mark.parametrize(
    "command",
    ["resume {0}", "evaluate {0} aligner.steps=4", "run {1} out={0}", "run {1} start_from={0} out={0}-next"],
)
def test_a_copy_is_not_resumed(quick, copy, command, capsys):
    assert main(command.format(copy.path, " ".join(quick)).split()) == 1
    assert "holds results and no models" in capsys.readouterr().err


def test_a_copy_of_an_older_version_says_that_it_cannot_be_evaluated_again(run, tmp_path):
    evaluate_in_version(run, 1, 0)
    old = archive_run(run, tmp_path / "kept")
    said = version_note(old, old.metadata(), old.gather().tasks)
    assert "no models to evaluate again" in said


def test_a_later_copy_takes_the_place_of_the_whole_one_before(run, copy):
    shutil.rmtree(run.path / "evaluations")
    shutil.rmtree(run.task(1))  # begun anew, and not as far yet
    assert archive_run(run, copy.path.parent).path == copy.path
    assert len(copy.gather().tasks) == 1
    assert not (copy.path / "evaluations").exists()


def test_a_copy_that_was_cut_off_is_no_hindrance(run, tmp_path, monkeypatch):
    def killed(self, metadata):
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(RunDir, "write_metadata", killed)
        with pytest.raises(KeyboardInterrupt):
            archive_run(run, tmp_path / "kept")
    assert not (tmp_path / "kept" / "run").exists()
    assert archive_run(run, tmp_path / "kept").gather().rows == run.gather().rows
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["run"]


@pytest.mark.parametrize("at", ["old", "new"])
def test_a_kill_during_a_refresh_leaves_a_whole_copy_or_none(run, copy, monkeypatch, at):
    before = copy.gather()
    rename = Path.rename

    def killed(self, target):
        if at in (Path(target).name, self.name):
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as cut:
        cut.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            archive_run(run, copy.path.parent)
    assert copy.gather() == before if at == "old" else not copy.path.exists()
    assert archive_run(run, copy.path.parent).gather() == before
    assert [path.name for path in copy.path.parent.iterdir()] == ["run"]


def test_planted_links_are_not_followed(run, copy, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    kept = copy.path.parent
    (copy.path / "task-09").symlink_to(precious)
    (kept / ".run.planted.part").symlink_to(precious)
    archive_run(run, kept)
    assert not (copy.path / "task-09").exists()
    shutil.rmtree(copy.path)
    copy.path.symlink_to(precious)
    with pytest.raises(RunError, match="holds something else"):
        archive_run(run, kept)
    assert [file.name for file in precious.iterdir()] == ["file"]


def test_what_else_is_in_the_way_stays(run, tmp_path):
    with pytest.raises(RunError, match="into itself"):
        archive_run(run, run.path.parent)
    other = RunDir(tmp_path / "elsewhere" / "run")
    other.write_metadata(run.metadata())
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
    begun = RunDir(run.path.parent / "begun")
    begun.write_metadata(run.metadata())
    runs = [str(path) for path in sorted(run.path.parent.iterdir())]
    assert main(["archive", *runs, "--into", str(tmp_path / "kept")]) == 1
    printed = capsys.readouterr()
    tasks = len(run.metadata()["sizes"])
    assert printed.out.replace("\n", "").count(f"{tasks} of {tasks} tasks") == 2
    assert "left out" in printed.out
    assert "1 of 3 could not be archived" in printed.err
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"run", "twin"}
