"""Sweeps: planned, shown and done one run at a time without Ray; then real ones on a real local Ray.

Without ray the latter are skipped; with ELIGN_REQUIRE_RAY=1, as in continuous integration, they fail instead.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.starting import rows, start

from elign.lab.cli.main import main
from elign.lab.config.composition import ConfigError
from elign.lab.learners import LEARNERS
from elign.lab.runs.experiment import CLASSIFICATION
from elign.lab.runs.sweeps import Resources, SweepTable, _check_room, do_run, plan_sweep, split_list

QUICK = ("data=digits", "preset=smoke", "protocol.first=5", "protocol.increment=5", "data.limit=20")
QUICK += ("train.first_epochs=2", "train.epochs=2", "aligner.iterations=20", "aligner.steps=3")


@given(st.lists(st.sampled_from(["0", "icarl", "[64,64]", "[]", "{a: 1, b: 2}", "1e-3"]), unique=True))
def test_commas_part_values_but_not_those_in_brackets(values):
    assert split_list(",".join(values)) == tuple(values)


def test_every_combination_is_a_run(tmp_path):
    texts = ["learner=icarl,lucir", "seed=0,1,2", "aligner.hidden=[64,64],[]", "data=digits", f"out={tmp_path}"]
    out, cells = plan_sweep(texts)
    assert out == tmp_path
    assert len(cells) == len({cell.folder.path for cell in cells}) == 12
    assert cells[0].label == "learner=icarl seed=0 aligner.hidden=[64,64]"
    assert {cell.config.aligner.hidden for cell in cells} == {(64, 64), ()}
    assert all(cell.folder.path.parent == tmp_path / "runs" for cell in cells)
    # Equal runs are one.
    assert len(plan_sweep(["data=digits", "seed=3,3", "protocol=half-5,b50-5", f"out={tmp_path}"])[1]) == 1


def test_threads_are_a_setting_of_each_run(tmp_path):
    for texts, threads in (([], 3), (["train.threads=2"], 2)):
        assert plan_sweep([f"out={tmp_path}", *texts], threads=3)[1][0].config.train.threads == threads


def test_paths_are_not_parted_and_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, cells = plan_sweep(["data=folder", "data.path=a,b", "seed=0,1", "out=x,y"])
    assert {cell.config.data.path for cell in cells} == {str(tmp_path / "a,b")}
    assert {cell.folder.path.parent for cell in cells} == {tmp_path / "x,y" / "runs"}
    assert f"data.path={tmp_path / 'a,b'}" in cells[0].settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learner=icarl,lucri", "lucir"),
        ("lerner=icarl", "learner"),
        ("seed=0,x", "seed"),
        ("seed", "key=value"),
        ("seed=", "seed"),
        ("start_from=a", "by themselves"),
        ("train.devices=2", "--gpus"),
    ],
)
def test_mistakes_are_named_before_anything_runs(text, message):
    with pytest.raises(ConfigError, match=message):
        plan_sweep(["data=digits", text])


def test_runs_know_learners_of_ones_own_and_take_over_each_others_first_tasks(tmp_path):
    class Own(LEARNERS["finetune"]):
        """Nothing new but its name."""

    texts = [*QUICK, "learner=own,lucir", f"out={tmp_path}"]
    with patch.object(LEARNERS, "_found", dict(LEARNERS)):
        LEARNERS.add("own", Own)
        _, cells = plan_sweep(texts)
        own = LEARNERS.own()
    with patch.object(LEARNERS, "_found", dict(LEARNERS)):
        assert do_run(CLASSIFICATION, cells[0].settings, own) is None
        assert [cell.is_finished() for cell in plan_sweep(texts)[1]] == [True, False]
        assert do_run(CLASSIFICATION, cells[1].settings, own) is None
    assert cells[0].folder.metadata()["config"]["learner"]["name"] == "own"
    assert cells[1].folder.metadata()["config"]["start_from"] == str(cells[0].folder.path)
    mine, theirs = (cell.folder.load_model(0)[0] for cell in cells)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_what_fails_is_told_in_one_line(tmp_path):
    _, (cell,) = plan_sweep(["data=folder", f"data.path={tmp_path / 'nothing'}", "protocol=equal-2", f"out={tmp_path}"])
    assert "nothing" in do_run(CLASSIFICATION, cell.settings, {})


def test_the_table_follows_the_folders(tmp_path):
    said = []
    _, cells = plan_sweep([*QUICK, "seed=0,1,2", f"out={tmp_path}"])
    table = SweepTable(cells, said.append)
    with cells[0].folder.locked(), cells[1].folder.locked():
        table.refresh()
        table.refresh()
    table.ended(cells[0], None)
    table.ended(cells[1], "the disk is full")
    assert said == ["seed=0: started", "seed=1: started", "seed=0: finished", "seed=1: failed (the disk is full)"]
    assert table.failed == {"seed=1": "the disk is full"}
    assert str(table.table().title) == "1 finished, 1 failed, 1 waiting"


def test_what_this_machine_cannot_give_is_refused():
    _check_room({"CPU": 4.0}, Resources(cpus=4))
    for wanted in (Resources(cpus=5), Resources(gpus=0.5)):
        with pytest.raises(ValueError, match="this machine has 4 processors and 0 GPUs"):
            _check_room({"CPU": 4.0}, wanted)


def test_the_plan_is_shown_without_ray(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", "--plan", *QUICK, "learner=icarl,lucir", f"out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "2 runs in" in out
    assert "learner=lucir" in out
    assert main(["sweep", *QUICK, f"out={tmp_path}"]) == 1
    assert "pip install 'elign[lab,ray]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["--cpus 0", "--gpus -1", "--gpus nan", "--retries x", "--benchmark other"])
def test_wrong_options_end_with_code_2(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", *option.split()])
    assert stop.value.code == 2
    assert option.split()[0] in capsys.readouterr().err


@pytest.fixture
def ray():
    if importlib.util.find_spec("ray") is None:
        message = "ray is not installed: pip install '.[lab,ray]'"
        if os.environ.get("ELIGN_REQUIRE_RAY"):
            pytest.fail(message)
        pytest.skip(message)
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not tell which process has a file open")


def start_sweep(*arguments, program=("-m", "elign.lab.cli")):
    command = [sys.executable, *program, "sweep", *arguments]
    # Ray's workers are nice to everything else on the machine, which on a busy one takes these tests many minutes.
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A process that a shell put into the background ignores interrupts, and so would what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)


def until(process, condition):
    deadline = time.monotonic() + 600
    while not (found := condition()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def holder(folder, *others):
    """The process that has the lock of a run; not one of `others`, which may look at it for a moment."""
    lock = str((folder.path / ".lock").resolve())
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == lock and int(link.parts[2]) not in others:
                return int(link.parts[2])
        except OSError:
            continue  # it is gone by now, or somebody else's
    return None


OWN = """
from elign.lab.learners import LEARNERS, LearnerOptions
from elign.lab.cli.main import main


@LEARNERS.register("doubled")
class Doubled(LEARNERS["finetune"]):
    class Options(LearnerOptions):
        times: float = 2.0

    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        return found._replace(terms={name: self.options.times * term for name, term in found.terms.items()})


if __name__ == "__main__":
    raise SystemExit(main())
"""


@pytest.mark.usefixtures("ray")
def test_an_interrupted_sweep_whose_worker_is_killed_and_a_run_fails_ends_with_the_same_results(tmp_path, capsys):
    """Of a learner of one's own, which the workers have to be given."""
    program = tmp_path / "own.py"
    program.write_text(OWN)
    # Long enough that it is not over before the interruption is heard, which on a busy machine takes a while.
    common = [word for word in QUICK if "first_epochs" not in word]
    common += ["train.first_epochs=30", "train.checkpoint_minutes=0", "train.threads=1", "learner=doubled"]
    arguments = [*common, "train.learning_rate=0.05,1e30", f"out={tmp_path / 'sweep'}"]
    with patch.object(LEARNERS, "_found", dict(LEARNERS)):
        exec(compile(OWN, "own", "exec"), {"__name__": "own"})
        healthy = [*common, "train.learning_rate=0.05"]
        _, (cell,) = plan_sweep([*healthy, f"out={tmp_path / 'sweep'}"])
        folder = cell.folder

        sweep = start_sweep(*arguments, program=[str(program)])
        until(sweep, lambda: folder.progress(0) or folder.is_learned(0))
        os.kill(sweep.pid, signal.SIGINT)
        _, error = sweep.communicate(timeout=600)
        assert sweep.returncode == 130, error
        assert "the same command resumes it" in " ".join(error.split())
        # Its worker may outlive it for a moment; the one to kill is that of the next sweep.
        deadline = time.monotonic() + 60
        while holder(folder):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not folder.is_learned(1)

        sweep = start_sweep(*arguments, program=[str(program)])
        os.kill(until(sweep, lambda: holder(folder, sweep.pid)), signal.SIGKILL)
        out, error = sweep.communicate(timeout=900)
        # What fails does not stop the others.
        assert sweep.returncode == 1, error
        assert out.count("train.learning_rate=0.05: finished") == 1
        assert "1 of 2 runs failed, " in error
        assert "train.learning_rate=1e30" in error
        assert rows(folder) == rows(start([*healthy, f"out={tmp_path / 'alone'}"]))

        # What is finished is not begun again.
        assert main(["sweep", *healthy, f"out={tmp_path / 'sweep'}"]) == 0
    out = capsys.readouterr().out
    assert "1 of them finished" in out
    assert "started" not in out
