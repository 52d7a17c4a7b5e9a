"""Two real processes that share a run, started by torchrun or by the run itself, against one process."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tests.lab.starting import QUIET, rows, start

from elign.lab.config import compose
from elign.lab.evaluation.metrics import average_accuracy, curve
from elign.lab.runs import experiment
from elign.lab.runs.experiment import Classification
from elign.lab.runs.launch import resume_run
from elign.lab.runs.run_dir import RunDir
from elign.lab.training.device import Engine, LostProcessError, Precision, check_connection
from elign.utils.errors import OptionError

SCRIPT = Path(__file__).with_name("two_processes.py")
QUICK = ("data=digits", "preset=smoke", "protocol.first=5", "protocol.increment=5", "train.checkpoint_minutes=0")
QUICK += ("data.limit=40", "train.first_epochs=6", "train.epochs=4", "aligner.iterations=5", "aligner.steps=2")
QUICK += ("train.threads=1",)


def python(*command):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, command)], **pipes)


def torchrun(*command):
    return python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *command)


def finish(process):
    try:
        out, error = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its workers then
        raise
    return process.returncode, out, error


def average(folder, method="base"):
    return average_accuracy(curve(rows(folder), method, "fc"))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    overrides = [*QUICK, "learner=aanet", f"out={tmp_path_factory.mktemp('one') / 'run'}"]
    return start(overrides)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """A run that starts its second process itself."""
    folder = RunDir(tmp_path_factory.mktemp("two") / "run")
    devices = ["train.devices=2", "train.accelerator=cpu"]
    run = python("-m", "elign.lab.cli", "run", *QUICK, *devices, "learner=aanet", f"out={folder.path}")
    code, out, error = finish(run)
    assert code == 0, error
    return folder, out


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """What two processes left that worked, failed together in a run, and failed alone."""
    folder = tmp_path_factory.mktemp("script")
    code, _, error = finish(torchrun(SCRIPT, folder, *QUICK, "learner=finetune", "train.learning_rate=1e30"))
    assert code == 0, error
    return folder, error


def test_two_processes_learn_and_extract_what_one_does(script):
    spec = importlib.util.spec_from_file_location("two_processes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = module.work(Engine(accelerator="cpu"))
    first, second = (load_file(script[0] / f"{rank}.safetensors") for rank in (0, 1))
    assert set(first) == set(expected)
    for name, value in expected.items():
        if name in ("previous", "current"):
            # Pairs are drawn in the same order, a pass after the other.
            assert first[name].shape == (2 * (module.IMAGES - 7), 64)
        torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-4, msg=name)
        assert torch.equal(first[name], second[name]), name


def test_an_error_in_one_process_ends_all_with_one_line(script):
    folder, error = script
    assert [(folder / f"codes-{rank}").read_text().split()[1] for rank in (0, 1)] == ["1", "1"]
    assert error.count("elign: only here") == 1
    assert "Traceback" not in error


def test_a_diverging_loss_is_one_line(script):
    folder, error = script
    assert [(folder / f"codes-{rank}").read_text().split()[0] for rank in (0, 1)] == ["1", "1"]
    assert error.count("elign: the loss is") == 1


def test_a_run_of_two_processes_is_that_of_one(one_process, two_processes):
    folder, out = two_processes
    # One of them speaks.
    assert out.count("eli/oracle") == 1
    assert out.count("task 2: fitting aligners") == 1
    assert [(row.task, row.method, row.classifier) for row in rows(folder)] == [
        (row.task, row.method, row.classifier) for row in rows(one_process)
    ]
    first, *_, last = curve(rows(folder), "base", "fc")
    assert first.accuracy > 0.5
    assert last.accuracy > 0.15
    # Crops are drawn anew for each number of processes, and 40 small images of a class are few.
    for method in ("base", "eli/oracle", "oracle-mask"):
        assert average(folder, method) == pytest.approx(average(one_process, method), abs=0.1)
    assert folder.load_model(1)[2]["processes"] == 2


@pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="this system does not tell whose child a process is"
)
def test_a_killed_process_ends_the_run_which_goes_on_with_as_many_or_fewer(tmp_path, one_process, two_processes):
    folder = RunDir(tmp_path / "run")
    process = torchrun("-m", "elign.lab.cli", "run", *QUICK, "learner=aanet", f"out={folder.path}")
    deadline = time.monotonic() + 500
    while folder.progress(1) is None:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(_workers(process.pid)[-1], signal.SIGKILL)
    code, _, error = finish(process)
    assert code != 0
    assert "another process of this run ended" in error or "SIGKILL" in error
    assert folder.is_learned(0)
    assert not folder.is_learned(1)
    shutil.copytree(folder.path, tmp_path / "fewer")
    fewer = RunDir(tmp_path / "fewer")
    resume_run(fewer, QUIET)
    assert average(fewer) == pytest.approx(average(one_process), abs=0.1)
    code, _, error = finish(torchrun("-m", "elign.lab.cli", "resume", folder.path))
    assert code == 0, error
    assert rows(folder) == rows(two_processes[0])


def _workers(pid):
    found = []
    for file in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"PPid:\t{pid}\n" in file.read_text() and "elign.lab.cli" in file.with_name("cmdline").read_text():
                found.append(int(file.parent.name))
        except OSError:
            continue  # it is gone by now
    return found


def test_refuses_unequal_shares_of_a_batch_and_benchmarks_of_one_process(monkeypatch):
    monkeypatch.setattr(experiment, "Engine", lambda **options: SimpleNamespace(processes=3))
    Classification(compose(["train.batch_size=33"]), Precision())
    with pytest.raises(OptionError, match=r"train\.batch_size=32 must be a multiple"):
        Classification(compose(["train.batch_size=32"]), Precision())
    monkeypatch.setattr(Classification, "several_processes", False)
    with pytest.raises(OptionError, match="without torchrun"):
        Classification(compose(["train.batch_size=33"]), Precision())


def test_a_lost_connection_is_told_from_other_errors():
    with pytest.raises(LostProcessError, match="resumes the run"):
        check_connection(RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer"))
    check_connection(RuntimeError("something else"))
