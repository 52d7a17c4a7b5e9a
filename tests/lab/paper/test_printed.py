"""The printed numbers, spot-checked, and what is not printed."""

import pytest

from elign.lab.paper.comparison import (
    NO_PRECISION,
    NOTHING,
    Printed,
    numbers,
    printed_cell,
    printed_precision,
    printed_toy,
)
from elign.lab.paper.request import NAMES, read_grid


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (("table1", "icarl", "cifar100", "half-5"), Printed(56.97, 63.68, 6.71)),
        (("table1", "icarl", "imagenet100", "half-5"), Printed(58.24, 68.94, 10.73)),
        (("table1", "lucir", "cifar100", "equal-5"), Printed(62.01, 64.55, 2.49)),
        (("table1", "aanet", "imagenet100", "equal-20"), Printed(44.96, 46.93, 1.97)),
        (("table1", "finetune", "cifar100", "half-5"), NOTHING),
        (("table1", "icarl", "digits", "half-5"), NOTHING),
        (("table1", "icarl", "cifar100", "half-2"), NOTHING),
        (("table3_langevin_steps", "icarl", "cifar100", "half-25", "90"), Printed(50.98, 54.04, 3.06)),
        (("table3_langevin_steps", "lucir", "cifar100", "half-5", "5"), NOTHING),
        (("table5_ebm_architecture", "icarl", "cifar100", "half-5", "i-o"), Printed(56.97, 60.97, 4.0)),
        (("table6_logit_aligner", "lucir", "cifar100", "half-5"), Printed(64.37, 62.5, -1.87)),
        (("imagenet1k", "icarl", "imagenet1k", "half-5"), Printed(gain=8.17)),
        (("implicit", "aanet-implicit", "imagenet100", "half-10"), Printed(gain=3.58)),
        (("implicit", "aanet-implicit", "cifar100", "half-10"), NOTHING),
        (("implicit", "aanet-implicit", "imagenet100", "equal-5"), NOTHING),
    ],
)
def test_cells(cell, expected):
    assert printed_cell(*cell) == expected


def test_every_cell_of_table1_is_there_and_gains_are_about_the_differences():
    grid = read_grid("table1")
    for learner in grid.learners:
        for data in grid.data:
            for protocol in grid.protocols:
                cell = printed_cell("table1", learner, data, protocol)
                assert cell.gain == pytest.approx(cell.aligned - cell.base, abs=0.06)


def test_grids_have_the_printed_rows():
    for name in ("langevin", "iterations", "architecture", "mixup"):
        grid = read_grid(name)
        rows = numbers()[grid.printed[""]]["rows"]
        assert list(grid.evaluations.choices) == [row.replace(" ", "") for row in rows]
        assert all(words[0].startswith(f"{grid.evaluations.varies}=") for words in grid.evaluations.choices.values())
    assert all(read_grid(name).title for name in NAMES)


def test_detectors():
    grid = read_grid("table2")
    for protocol in grid.paper_protocols:
        old, new = map(int, protocol.split("+"))
        for learner in (*grid.learners, "iod+eli"):
            cell = printed_precision(learner, protocol)
            assert (old * cell.old + new * cell.new) / 20 == pytest.approx(cell.all, abs=0.11)
        base, aligned = (printed_precision(learner, protocol) for learner in ("iod", "iod+eli"))
        assert aligned.gain == pytest.approx(aligned.all - base.all, abs=0.05)
    assert [printed_precision("first", protocol).old for protocol in grid.paper_protocols] == [73.4, 76.85, 71.07]
    for learner, protocol in (("icarl", "15+5"), ("iod", "5+5"), ("first", "5+5")):
        assert printed_precision(learner, protocol) == NO_PRECISION


def test_others():
    assert printed_toy(32) == Printed(20.88, 83.44, 62.56)
    assert printed_toy(64) == NOTHING
    assert numbers()["compute"]["parameters_computed"] == 8385
