"""The benchmarks run, at tiny sizes; the trial of region pairs agrees with the run that it evaluates."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from tests.lab.starting import start

from elign.lab.runs.experiment import DETECTION

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
        "repair.py --rounds 1 --models resnet20",
    ],
)
def test_prints_a_table(run, command):
    header, rule, *rows = run(*command.split()).splitlines()
    assert rows
    assert all(line.count("|") == header.count("|") for line in (rule, *rows))


@pytest.fixture(scope="module")
def detectors(tmp_path_factory, quick_detection):
    """A run that has learned a little: it finds something, if hardly any overlap is asked for."""
    longer = {"train.first_epochs": "20", "train.epochs": "10", "train.learning_rate": "0.05"}
    typed = [text for text in quick_detection if text.partition("=")[0] not in longer]
    typed += [f"{key}={value}" for key, value in longer.items()]
    out = tmp_path_factory.mktemp("detectors") / "run"
    return start([*typed, "learner=iod", "evaluation.overlap=0.01", f"out={out}"], benchmark=DETECTION)


def test_trials_of_region_pairs_agree_with_the_run(run, detectors):
    out = run("trials/region_pairs.py", str(detectors.path))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")][2:]
    (base,) = [row for row in detectors.gather().rows if (row.task, row.method) == (2, "base")]
    assert base.accuracy > 0
    expected = [100 * value for value in (base.old, base.new, base.accuracy)]
    assert [float(cell) for cell in cells[0][2:5]] == pytest.approx(expected, abs=0.051)
    assert [cell[1] for cell in cells[:2]] == ["base", "previous latents of old regions †"]
    assert len({cell[0] for cell in cells[2:]}) == 4
    assert all(0 <= float(cell[5]) <= 100 for cell in cells if cell[5] != "–")


def test_the_previous_latents_are_no_others_where_nothing_has_moved(detectors):
    trial = runpy.run_path(str(FOLDER / "trials" / "region_pairs.py"))["Trial"](detectors)
    trial.learner.teacher = trial.learner.model
    base, previous = trial.unmoved()
    assert base.split("|")[1:] == previous.split("|")[1:]


@pytest.mark.parametrize(
    ("script", "page"),
    [
        ("rivals.py", "rivals-cifar100.md"),
        ("panel/rivals.py", "rivals.md"),
        ("panel/evaluate.py", "panel.md"),
        ("panel/memory.py", "images/memory.svg"),
    ],
)
def test_a_page_of_results_is_what_was_measured(run, monkeypatch, tmp_path, script, page):
    monkeypatch.chdir(FOLDER.parent)
    run(script, "--out" if page.endswith("svg") else "--page", str(made := tmp_path / Path(page).name))
    kept = FOLDER.parent / "docs" / page
    if page.endswith("svg"):  # another version of matplotlib draws another file
        assert made.stat().st_size > 0.5 * kept.stat().st_size
    else:
        assert made.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8")
