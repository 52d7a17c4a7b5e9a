"""The benchmarks run, at sizes that measure nothing."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a benchmark as its own program would be, without waiting for torch again; what it printed."""
    threads, state, modules = torch.get_num_threads(), torch.get_rng_state(), set(sys.modules)

    def run(script, *options):
        monkeypatch.setattr(sys, "argv", [str(FOLDER / script), *options])
        monkeypatch.syspath_prepend(FOLDER)
        runpy.run_path(sys.argv[0], run_name="__main__")
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    for name in {path.stem for path in FOLDER.glob("*.py")} - modules:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "command",
    [
        "fit.py --iterations 2 --rounds 1 --dims 16",
        "step.py --rows 8",
        "end_to_end.py --images 4 --iterations 2 --plain-iterations 1 --batch 4",
        "align.py --rounds 1 --sizes 16x8",
        "input.py --batch 4 --rounds 1 --pictures 2",
        "train.py --model resnet14 --batch 4 --rounds 1",
        "nms.py --rounds 1 --boxes 20 --maps 2x4x4",
        "detect.py --models tiny-c4 --side 64 --images 1 --rounds 1",
        "flops.py --learners aanet --protocols half-5 --size 64",
    ],
)
def test_prints_a_table(run, command):
    header, rule, *rows = run(*command.split()).splitlines()
    assert rows
    assert all(line.count("|") == header.count("|") for line in (rule, *rows))
