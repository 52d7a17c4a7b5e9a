"""The numbers that the paper prints, from `paper_results.json`.

Accuracies are in percent. Names are those of the bench (`icarl`, `cifar100`, `half-5`).
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


@dataclass(frozen=True)
class Printed:
    """A printed pair of accuracies; None where the paper prints none.

    Args:
        base: Without alignment.
        aligned: With it.
        gain: As printed where the paper prints gains, else the difference.
    """

    base: float | None = None
    aligned: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class PrintedPrecision:
    """Printed mean average precisions of a detector: of the first task's classes, the second's, and all."""

    old: float | None = None
    new: float | None = None
    all: float | None = None


NOTHING = Printed()
NO_PRECISION = PrintedPrecision()


@cache
def numbers() -> Any:
    """Return the content of the file."""
    return json.loads(resources.files(__package__).joinpath("paper_results.json").read_text(encoding="utf-8"))


def printed_cell(table: str, learner: str, data: str, protocol: str, choice: str = "") -> Printed:
    """Return a cell of a table of classifiers.

    Args:
        table: `table1`, `imagenet1k`, `implicit`, or the key of an ablation in the file.
        learner: The learner.
        data: The data set.
        protocol: How classes are split into tasks.
        choice: Of an ablation: its row, without spaces.

    Example:
        >>> printed_cell("table1", "icarl", "cifar100", "half-5")
        Printed(base=56.97, aligned=63.68, gain=6.71)
    """
    name = _LEARNERS.get(learner, "")
    column = f"{_DATA.get(data, '')}_{protocol.replace('half', 'b50').replace('-', '_')}"
    if table == "imagenet1k":
        return Printed(gain=numbers()["fig_imagenet1k"]["average_gain"].get(name))
    if table == "implicit":
        kind, _, count = protocol.partition("-")
        gains = numbers()["fig_implicit_regulariser"]["gain_over_AANet_without_ER"]
        return Printed(gain=gains.get(count) if (kind, data) == ("half", "imagenet100") else None)
    main = numbers()["table1_class_incremental"]
    base = main["rows"].get(name, {}).get(column)
    if table == "table1":
        gain = main["printed_gains"].get(f"{name}+ELI", {}).get(column)
        return NOTHING if base is None else Printed(base, main["rows"][f"{name}+ELI"][column], gain)
    rows = {row.replace(" ", ""): cells for row, cells in numbers()[table]["rows"].items()}
    if table == "table6_logit_aligner":
        return _pair(base, rows.get(f"{name}+LogitAligner", {}).get(column))
    # The other ablations are of iCaRL.
    return _pair(base, rows.get(choice, {}).get(column)) if learner == "icarl" else NOTHING


def printed_toy(latent_dim: int) -> Printed:
    """Return the accuracy on task 1 after task 2 of the two-task experiment on MNIST."""
    found = numbers()["toy_mnist"]["paper"].get(str(latent_dim))
    return NOTHING if found is None else _pair(found["task1_after_task2"], found["task1_with_ELI"])


def printed_precision(learner: str, protocol: str) -> PrintedPrecision:
    """Return a row of Table 2: detection on VOC 2007 after the second task.

    Args:
        learner: A learner of detectors, `iod+eli`, or `first`: the detector after the first task.
        protocol: `10+10`, `15+5` or `19+1`; others are not printed.

    Example:
        >>> printed_precision("iod", "15+5")
        PrintedPrecision(old=71.73, new=55.9, all=67.8)
    """
    rows = numbers()["table2_incremental_detection"]["settings"].get(protocol, {})
    if learner == "first":
        # The mean of the printed precisions: the table's own means of these rows are over other numbers of classes.
        found = rows.get(f"First {protocol.partition('+')[0]}")
        return NO_PRECISION if found is None else PrintedPrecision(old=found["mean_old"])
    found = rows.get(_DETECTORS.get(learner, ""))
    return (
        NO_PRECISION if found is None else PrintedPrecision(found["mean_old"], found["mean_new"], found["mAP_printed"])
    )


def printed_precision_gain(protocol: str) -> float | None:
    """Return the printed gain of ELI over iOD in mean average precision of all classes."""
    gain: float | None = numbers()["table2_printed_gains"].get(protocol)
    return gain


def _pair(base: float | None, aligned: float | None) -> Printed:
    return NOTHING if base is None or aligned is None else Printed(base, aligned, round(aligned - base, 2))
