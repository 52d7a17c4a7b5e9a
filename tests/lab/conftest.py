"""What all tests of the bench share: where real data may lie, and processes to be killed."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from elign.lab.cli.main import main

# What a run imports when it needs it.
IMPORTS = [
    "elign.lab.cli.main",
    "elign.lab.runs.launch",
    "elign.lab.runs.experiment",
    "elign.lab.learners",
    "torch._dynamo",
]
IMPORTS += ["lightning_fabric", "sklearn.datasets", "sklearn.model_selection", "elign.lab.paper.two_tasks"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Where a copy of real data may lie: what ELIGN_SHARED_DATA names, else a folder beside the repository."""
    named = os.environ.get("ELIGN_SHARED_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def kill_elign_when():
    """Starts the command `elign` with some words in a real process, and kills it as soon as a file is there.

    It is forked from one that has imported everything: a run of a second need not wait for torch each time.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork processes")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)

    started = []

    def kill_when(file, *words):
        process = context.Process(target=main, args=([str(word) for word in words],))
        process.start()
        started.append(process)
        deadline = time.monotonic() + 600
        while not file.exists():
            assert process.is_alive(), "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL

    yield kill_when
    for process in started:
        process.kill()
        process.join()
