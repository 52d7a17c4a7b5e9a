"""The soak: its pieces, and one fault of each kind with real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.lab.starting import METADATA

from elign.lab.evaluation.metrics import Row
from elign.lab.runs.run_dir import Results, RunDir, write_results
from elign.lab.storage import write_tensors

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork processes")


@pytest.fixture(scope="module")
def soaking():
    spec = importlib.util.spec_from_file_location("soaking", SCRIPTS / "soaking.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["soaking"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soaking"]


@pytest.fixture
def run(tmp_path):
    folder = RunDir(tmp_path / "run")
    folder.write_metadata(METADATA)
    folder.save_model(0, {"w": torch.arange(4.0)}, {}, {"seconds": 1.0})
    row = Row(1, "base", "fc", True, 0.5, None, None, None, None, 0.0, (0.5,))
    write_results(folder.task(0), Results({}, [row], [{"task": 1}]))
    folder.write_results([folder.results(0)])
    (folder.path / ".lock").touch()
    return folder.path


@pytest.fixture
def twin(run, tmp_path):
    import shutil

    return Path(shutil.copytree(run, tmp_path / "twin"))


def test_runs_that_differ_in_durations_only_are_the_same(soaking, run, twin):
    RunDir(twin).save_model(0, {"w": torch.arange(4.0)}, {}, {"seconds": 9.0})
    assert soaking.differences(run, twin) == []
    assert soaking.unreadable(run) == []


def test_every_difference_is_seen(soaking, run, twin):
    write_tensors(twin / "task-00/model.safetensors", {"w": torch.tensor([0.0, 1.0, 2.0, 4.0])})
    (twin / "results.csv").write_text("x")
    (twin / "more").touch()
    found = soaking.differences(run, twin)
    assert found == ["more is in one of them only", "results.csv differs", "task-00/model.safetensors differs"]


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_damage_is_damage_and_repeatable(soaking, run, how):
    file = run / "task-00/model.safetensors"
    whole = file.read_bytes()
    assert "model.safetensors" in soaking.damage(file, how, random.Random(3))
    first = file.read_bytes()
    assert first != whole
    file.write_bytes(whole)
    soaking.damage(file, how, random.Random(3))
    assert file.read_bytes() == first
    (found,) = soaking.unreadable(run)
    assert found[0] == file
    assert "Remove this file" in found[1]


@pytest.mark.parametrize(
    ("code", "said"),
    [(1, "Traceback (most recent call last):\nelign: x"), (1, "nothing"), (70, "elign: x"), (1, "elign: x\nelign: y")],
)
def test_what_is_no_clear_line_is_a_loss(soaking, code, said):
    with pytest.raises(soaking.LostError):
        _ = soaking.Ended(code, said, 0.0).line
    assert soaking.Ended(1, "task 1\nelign: clear\n", 0.0).line == "elign: clear"


def test_advice_is_followed_only_where_it_names_a_file(soaking, run):
    file = run / "task-00/model.safetensors"
    with pytest.raises(soaking.LostError, match="what to do"):
        soaking._follow(run, "elign: something is damaged")
    with pytest.raises(soaking.LostError, match="what to do"):
        soaking._follow(run, f"elign: {file} is damaged")
    assert soaking._follow(run, f"elign: {file} is damaged. Remove this file: ...") == run
    assert not file.exists()
    assert soaking._follow(run, f"elign: {run / 'run.json'} is damaged; start it again in another folder") != run


def test_one_fault_of_each_kind_loses_nothing(tmp_path):
    command = [sys.executable, SCRIPTS / "soak", "--faults", "4", "--minutes", "20", "--work", tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    log = [json.loads(line) for line in (tmp_path / "soak.jsonl").read_text().splitlines()]
    assert [entry["fault"] for entry in log] == ["kill", "disk", "cut", "flip"]
    assert {entry["end"] for entry in log} <= {"equal", "named"}
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("kill ", "disk ", "cut ", "flip "))]
    assert [(row[1], row[-1]) for row in rows] == [("1", "0")] * 4
