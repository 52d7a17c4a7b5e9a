"""The numbers that the paper prints, cell by cell.

The file `paper_results.json` beside this module holds them as printed. Accuracies are in percent; a name is the bench's
(`icarl`, `cifar100`, `half-5`), not the paper's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_LEARNERS = {"icarl": "iCaRL", "lucir": "LUCIR", "aanet": "AANet"}
_DETECTORS = {
    "joint": "All 20",
    "finetune": "Std Training",
    "ilod": "Shmelkov et al.",
    "faster-ilod": "Faster ILOD",
    "ore": "ORE",
    "iod": "iOD",
    "iod+eli": "iOD + ELI",
}
_DATA = {"cifar100": "cifar100", "imagenet100": "imagenet_subset"}
_ABLATIONS = {
    "langevin": "table3_langevin_steps",
    "iterations": "table4_ebm_iterations",
    "architecture": "table5_ebm_architecture",
    "mixup": "table7_mixup_supp",
}


@dataclass(frozen=True)
class Printed:
    """A printed pair of accuracies in percent; None where the paper prints none.

    Args:
        base: Without alignment.
        aligned: With it.
        gain: As printed where the paper prints gains (rounding apart it is the difference), else the difference.
    """

    base: float | None = None
    aligned: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class PrintedPrecision:
    """Printed average precisions of a detector in percent; None where the paper prints none.

    Args:
        old: Mean of the printed precisions of the classes of the first task.
        new: Mean of those of the second.
        all: Mean over all classes, as printed.
    """

    old: float | None = None
    new: float | None = None
    all: float | None = None


NOTHING = Printed()
"""What there is for an experiment that the paper does not have."""

NO_PRECISION = PrintedPrecision()
"""The same for a detector."""


@cache
def numbers() -> Any:
    """Everything in the file."""
    return json.loads(resources.files(__package__).joinpath("paper_results.json").read_text(encoding="utf-8"))


def table1(learner: str, data: str, protocol: str) -> Printed:
    """Table 1: average incremental accuracy.

    Example:
        >>> table1("icarl", "cifar100", "half-5")
        Printed(base=56.97, aligned=63.68, gain=6.71)
    """
    table, column = numbers()["table1_class_incremental"], _column(data, protocol)
    name = _LEARNERS.get(learner, "")
    if name not in table["rows"] or column not in table["columns"]:
        return NOTHING
    aligned = f"{name}+ELI"
    return Printed(table["rows"][name][column], table["rows"][aligned][column], table["printed_gains"][aligned][column])


def table2(learner: str, protocol: str) -> PrintedPrecision:
    """Table 2: incremental detection on VOC 2007, after the second task.

    Args:
        learner: A detection learner of the bench, or `iod+eli`.
        protocol: `10+10`, `15+5` or `19+1`.

    Example:
        >>> table2("iod", "15+5")
        PrintedPrecision(old=71.73, new=55.9, all=67.8)
        >>> table2("iod", "5+5")
        PrintedPrecision(old=None, new=None, all=None)
    """
    rows = numbers()["table2_incremental_detection"]["settings"].get(protocol, {})
    row = rows.get(_DETECTORS.get(learner, ""))
    return NO_PRECISION if row is None else PrintedPrecision(row["mean_old"], row["mean_new"], row["mAP_printed"])


def table2_first(protocol: str) -> PrintedPrecision:
    """Table 2: the detector of the first task alone, the mean of its printed precisions.

    The table's own means of these rows are over 10, over no number that fits, and over 20 classes.

    Example:
        >>> table2_first("15+5")
        PrintedPrecision(old=76.85, new=None, all=None)
    """
    rows = numbers()["table2_incremental_detection"]["settings"].get(protocol, {})
    found = rows.get(f"First {protocol.partition('+')[0]}")
    return NO_PRECISION if found is None else PrintedPrecision(old=found["mean_old"])


def table2_protocols() -> tuple[str, ...]:
    """The splits of Table 2, in its order."""
    return tuple(numbers()["table2_incremental_detection"]["settings"])


def table2_gain(protocol: str) -> Printed:
    """Table 2: mean average precision of iOD without and with ELI, and the gain as printed.

    Example:
        >>> table2_gain("15+5")
        Printed(base=67.8, aligned=74.8, gain=7.0)
    """
    gain = numbers()["table2_printed_gains"].get(protocol)
    return Printed(table2("iod", protocol).all, table2("iod+eli", protocol).all, gain)


def ablation_values(name: str) -> tuple[str, ...]:
    """The settings that an ablation compares, as printed: ("5", "10", ...) for `langevin`."""
    return tuple(numbers()[_ABLATIONS[name]]["rows"])


def ablation(name: str, value: str, *, learner: str, data: str, protocol: str) -> Printed:
    """A cell of an ablation: iCaRL on CIFAR-100, whose base is that of Table 1."""
    if learner != "icarl" or data != "cifar100":
        return NOTHING
    aligned = numbers()[_ABLATIONS[name]]["rows"].get(value, {}).get(_column(data, protocol))
    return _pair(table1(learner, data, protocol).base, aligned)


def logit_aligner(learner: str, data: str, protocol: str) -> Printed:
    """Table 6: the aligner of logits instead of latents."""
    rows, name = numbers()["table6_logit_aligner"]["rows"], _LEARNERS.get(learner, "")
    aligned = rows.get(f"{name}+LogitAligner", {}).get(_column(data, protocol))
    return _pair(table1(learner, data, protocol).base, aligned)


def imagenet1k(learner: str) -> Printed:
    """The figure on ImageNet-1k: the quoted average gain; its curves are printed as a picture only."""
    return Printed(gain=numbers()["fig_imagenet1k"]["average_gain"].get(_LEARNERS.get(learner, "")))


def implicit(protocol: str) -> Printed:
    """The figure on AANet without its explicit regulariser, on ImageNet-100: quoted gains; bars are a picture."""
    kind, _, count = protocol.partition("-")
    gains = numbers()["fig_implicit_regulariser"]["gain_over_AANet_without_ER"]
    return Printed(gain=gains.get(count) if kind == "half" else None)


def toy(latent_dim: int) -> Printed:
    """The two-task experiment on MNIST: accuracy on task 1 after task 2, before and after alignment."""
    found = numbers()["toy_mnist"]["paper"].get(str(latent_dim))
    return NOTHING if found is None else _pair(found["task1_after_task2"], found["task1_with_ELI"])


def compute() -> dict[str, Any]:
    """What the paper says about cost: parameters, multiply-accumulates, seconds."""
    return dict(numbers()["compute"])


def _column(data: str, protocol: str) -> str:
    return f"{_DATA.get(data, '')}_{protocol.replace('half', 'b50').replace('-', '_')}"


def _pair(base: float | None, aligned: float | None) -> Printed:
    gain = None if base is None or aligned is None else round(aligned - base, 2)
    return Printed(base if aligned is not None else None, aligned, gain)
