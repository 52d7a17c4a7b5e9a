"""The benchmarks run, at sizes that measure nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    "command",
    [
        "fit.py --iterations 2 --rounds 1 --dims 16",
        "step.py --rows 8",
        "end_to_end.py --images 4 --iterations 2 --plain-iterations 1",
        "align.py --rounds 1 --sizes 16x8",
        "input.py --batch 4 --rounds 1 --pictures 2",
        "train.py --model resnet14 --batch 4 --rounds 1",
        "nms.py --rounds 1 --boxes 20 --maps 2x4x4",
        "detect.py --models tiny-c4 --side 64 --images 1 --rounds 1",
        "flops.py --learners aanet --protocols half-5 --size 64",
    ],
)
def test_prints_a_table(command):
    script, *options = command.split()
    done = subprocess.run([sys.executable, FOLDER / script, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header, rule, *rows = done.stdout.splitlines()
    assert rows
    assert all(line.count("|") == header.count("|") for line in (rule, *rows))
