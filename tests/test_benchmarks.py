"""The benchmarks run, at sizes that measure nothing."""

from __future__ import annotations

import re
import runpy
import statistics
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from eli.lab.experiments.kinds import DETECTION
from eli.lab.experiments.session import begin

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a benchmark as its own program would be, without waiting for torch again; what it printed."""
    threads, state, modules = torch.get_num_threads(), torch.get_rng_state(), set(sys.modules)

    def run(script, *options):
        monkeypatch.setattr(sys, "argv", [str(FOLDER / script), *options])
        monkeypatch.syspath_prepend(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        return capsys.readouterr().out

    yield run
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    for name in {path.stem for path in FOLDER.glob("**/*.py")} - modules:
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
        "blend.py --rounds 1 --models resnet20",
    ],
)
def test_prints_a_table(run, command):
    header, rule, *rows = run(*command.split()).splitlines()
    assert rows
    assert all(line.count("|") == header.count("|") for line in (rule, *rows))


SMOKE = ("data=digits", "preset=smoke", "protocol.first=4", "protocol.increment=3", "data.limit=40")
SMOKE += ("train.first_epochs=3", "train.epochs=2", "aligner.iterations=20")


def numbers(out, name, column):
    """The numbers in a column of the row that begins with a name."""
    (row,) = [line for line in out.splitlines() if line.startswith(f"| {name} |")]
    return [float(number) for number in re.findall(r"[0-9.]+", row.split("|")[column])]


@pytest.mark.parametrize("memory", ["memory=per-class", "memory=none"])
def test_trials_of_readouts_agree_with_the_run(run, tmp_path, memory):
    folder = begin([*SMOKE, memory, f"out={tmp_path / 'run'}"], Console(quiet=True))
    out = run("trials/read.py", str(folder.path))
    base = [row.accuracy for row in folder.gather().rows if (row.reading, row.classifier) == ("base", "fc")]
    assert numbers(out, "base", 2)[0] == pytest.approx(100 * statistics.fmean(base[1:]), abs=0.051)


def test_trials_of_region_pairs_agree_with_the_run(run, tmp_path, quick_detection):
    typed = [*quick_detection, "learner=ilod", f"out={tmp_path / 'run'}"]
    folder = begin(typed, Console(quiet=True), kind=DETECTION)
    out = run("trials/region_pairs.py", str(folder.path))
    rows = {row.reading: row for row in folder.gather().rows if row.task == 2}
    (line,) = [line for line in out.splitlines() if "| base |" in line]
    old, new, everything = (float(cell) for cell in line.split("|")[3:6])
    base = rows["base"]
    assert (old, new, everything) == pytest.approx((100 * base.old, 100 * base.new, 100 * base.accuracy), abs=0.051)
    assert out.count("eli/oracle") == 3
