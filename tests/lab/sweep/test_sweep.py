"""Real sweeps on a real local Ray: interrupted, with a worker killed and runs that fail; and with a user's own learner.

Without ray these tests are skipped; with ELIGN_REQUIRE_RAY=1, as in continuous integration, they fail instead.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from elign.lab.cli import main
from elign.lab.evaluation.results import read_results
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.session import begin
from elign.lab.sweep.plan import plan_sweep

QUICK = ("data=digits", "preset=smoke", "protocol.first=4", "protocol.increment=3", "train.checkpoint_minutes=0")
QUICK += ("data.limit=40", "train.first_epochs=3", "train.epochs=3", "aligner.iterations=60", "aligner.steps=5")


@pytest.fixture(autouse=True)
def ray():
    if importlib.util.find_spec("ray") is None:
        message = "ray is not installed: pip install '.[lab,ray]'"
        if os.environ.get("ELIGN_REQUIRE_RAY"):
            pytest.fail(message)
        pytest.skip(message)
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not tell which process has a file open")


def start(*arguments, program=("-m", "elign.lab.cli")):
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


def holder(folder):
    """The process that has the lock of a run."""
    lock = str((folder.path / ".lock").resolve())
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == lock:
                return int(link.parts[2])
        except OSError:
            continue  # it is gone by now, or somebody else's
    return None


def test_an_interrupted_sweep_whose_worker_is_killed_and_some_runs_fail_ends_with_the_same_results(tmp_path, capsys):
    # Long enough that none is over before the interruption is heard, which on a busy machine takes a while.
    slower = tuple(word.replace("first_epochs=3", "first_epochs=20") for word in QUICK)
    learners = "learner=icarl,finetune"
    arguments = [*slower, learners, "train.learning_rate=0.05,1e30", f"out={tmp_path / 'sweep'}"]
    _, healthy = plan_sweep([*slower, learners, "train.learning_rate=0.05", f"out={tmp_path / 'sweep'}"])
    folders = [cell.folder for cell in healthy]

    sweep = start(*arguments)
    until(sweep, lambda: any(folder.progress(0) or folder.is_learned(0) for folder in folders))
    os.kill(sweep.pid, signal.SIGINT)
    _, error = sweep.communicate(timeout=600)
    assert sweep.returncode == 130, error
    assert "the same command goes on" in " ".join(error.split())
    # Its workers may outlive it for a moment; the one to kill is one of the next sweep's.
    deadline = time.monotonic() + 60
    while any(map(holder, folders)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not any(folder.is_learned(2) for folder in folders)

    sweep = start(*arguments, "--kind", "classification")
    worker = until(sweep, lambda: next((holder(f) for f in folders if f.is_learned(0) and not f.is_learned(2)), None))
    os.kill(worker, signal.SIGKILL)
    out, error = sweep.communicate(timeout=900)
    assert "started, time 2" in out
    # What fails does not stop the others.
    assert sweep.returncode == 1, error
    assert out.count("train.learning_rate=0.05: finished") == 2
    assert "2 of 4 runs failed, " in error
    assert "train.learning_rate=1e30 for one: the loss is" in " ".join(error.split())
    for folder, learner in zip(folders, ("icarl", "finetune"), strict=True):
        overrides = [*slower, f"learner={learner}", "train.learning_rate=0.05", f"out={tmp_path / learner}"]
        assert rows(folder) == rows(begin(overrides, Console(quiet=True)))

    # What is finished is not begun again.
    assert main(["sweep", *slower, learners, "train.learning_rate=0.05", f"out={tmp_path / 'sweep'}"]) == 0
    out = capsys.readouterr().out
    assert "2 runs" in out
    assert "2 of them finished" in out
    assert "started" not in out


OWN = """
from types import MappingProxyType
from elign.lab.learners import LEARNERS, register_learner
from elign.lab.start import main


class Doubled(LEARNERS["finetune"]):
    defaults = MappingProxyType({"times": 2.0})

    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        return found._replace(terms={name: self.options["times"] * term for name, term in found.terms.items()})


register_learner("doubled", Doubled)
if __name__ == "__main__":
    main()
"""


def test_workers_know_learners_of_ones_own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    options = ["learner=doubled", "learner.times=1,3", f"out={tmp_path / 'sweep'}"]
    sweep = start(*QUICK, *options, program=[str(tmp_path / "own.py")])
    out, error = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, error
    assert out.count(": finished") == 2
    once, thrice = (RunFolder(path.parent) for path in sorted((tmp_path / "sweep").glob("**/run.json")))
    assert {run.facts()["config"]["learner"]["name"] for run in (once, thrice)} == {"doubled"}
    assert rows(once) != rows(thrice)


def rows(folder: RunFolder):
    return read_results(folder.path / "results.jsonl").rows
