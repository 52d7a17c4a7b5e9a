"""The printed numbers, spot-checked, and what is not printed."""

import pytest

from elign.lab.report import paper
from elign.lab.report.paper import NOTHING, Printed
from elign.lab.reproduce.request import LEARNERS, PROTOCOLS


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (("icarl", "cifar100", "half-5"), Printed(56.97, 63.68, 6.71)),
        (("icarl", "imagenet100", "half-5"), Printed(58.24, 68.94, 10.73)),
        (("lucir", "cifar100", "equal-5"), Printed(62.01, 64.55, 2.49)),
        (("aanet", "imagenet100", "equal-20"), Printed(44.96, 46.93, 1.97)),
        (("aanet", "cifar100", "half-25"), Printed(64.28, 64.72, 0.44)),
    ],
)
def test_table1(cell, expected):
    assert paper.table1(*cell) == expected


def test_every_cell_of_table1_is_there_and_gains_are_about_the_differences():
    for learner in LEARNERS:
        for data in ("cifar100", "imagenet100"):
            for protocol in PROTOCOLS:
                cell = paper.table1(learner, data, protocol)
                assert cell.gain == pytest.approx(cell.aligned - cell.base, abs=0.06)


def test_what_is_not_printed_is_nothing():
    assert paper.table1("finetune", "cifar100", "half-5") == NOTHING
    assert paper.table1("icarl", "digits", "half-5") == NOTHING
    assert paper.table1("icarl", "cifar100", "half-2") == NOTHING
    assert paper.ablation("langevin", "5", learner="lucir", data="cifar100", protocol="half-5") == NOTHING
    assert paper.toy(64) == NOTHING
    assert paper.implicit("equal-5") == NOTHING


def test_ablations():
    cell = paper.ablation("langevin", "90", learner="icarl", data="cifar100", protocol="half-25")
    assert cell == Printed(50.98, 54.04, 3.06)
    assert paper.ablation_values("langevin") == ("5", "10", "20", "30", "60", "90")
    assert paper.ablation_values("iterations") == ("10", "100", "1000", "1500", "2000", "3000")
    assert paper.ablation_values("architecture")[0] == "i - o"
    assert paper.ablation_values("mixup")[-1] == "alpha=1.0"
    linear = paper.ablation("architecture", "i - o", learner="icarl", data="cifar100", protocol="half-5")
    assert linear.aligned == 60.97


def test_others():
    assert paper.logit_aligner("lucir", "cifar100", "half-5") == Printed(64.37, 62.5, -1.87)
    assert paper.imagenet1k("icarl").gain == 8.17
    assert paper.implicit("half-10").gain == 3.58
    assert paper.toy(32) == Printed(20.88, 83.44, 62.56)
    assert paper.compute()["parameters_computed"] == 8385
    assert paper.numbers()["table2_printed_gains"]["15+5"] == 7.0
