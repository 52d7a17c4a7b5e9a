"""Counting what a reading got right: the one place where predictions meet test labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from elign.lab.evaluation.readings import Reading


@dataclass(frozen=True)
class Row:
    """What one reading reached after one task; accuracies and shares are fractions in [0, 1].

    Args:
        task: Number of the task, from 1.
        reading: Name of the reading.
        classifier: `fc`, `nearest-mean`, `prototypes` or `blend`.
        label_free: False if the reading knows which test samples are old.
        accuracy: Of all test samples, among all classes seen so far.
        old: Of test samples of old classes, among all classes; None at the first task, where there are none.
        new: Of test samples of the task's own classes; None at the first task, where it would be `accuracy`.
        among_old: Of test samples of old classes, among the old classes only; None at the first task.
        gate_accuracy: Share of test samples that a label-free gate treats rightly (old: weight above one half, new:
            not); None without such a gate.
        aligned_share: Mean weight of alignment over all test samples; 0 where nothing is moved.
        by_task: Accuracy of the test samples of each task so far, among all classes.
    """

    task: int
    reading: str
    classifier: str
    label_free: bool
    accuracy: float
    old: float | None
    new: float | None
    among_old: float | None
    gate_accuracy: float | None
    aligned_share: float
    by_task: tuple[float, ...]


def score(reading: Reading, labels: Tensor, *, task_sizes: Sequence[int]) -> Row:
    """Count.

    Args:
        reading: Scores of all test samples.
        labels: Their labels, (N,).
        task_sizes: How many classes each task brought so far; the last one is the current task.
    """
    known = sum(task_sizes[:-1])
    right = reading.scores.argmax(dim=1) == labels
    old = labels < known
    by_task = tuple(
        _share(right[(labels >= end - size) & (labels < end)])
        for size, end in zip(task_sizes, accumulate(task_sizes), strict=True)
    )
    weights = reading.weights
    return Row(
        task=len(task_sizes),
        reading=reading.name,
        classifier=reading.classifier,
        label_free=reading.label_free,
        accuracy=_share(right),
        old=_share(right[old]) if known else None,
        new=_share(right[~old]) if known else None,
        among_old=_share(reading.scores[old, :known].argmax(dim=1) == labels[old]) if known else None,
        gate_accuracy=_share((weights > 0.5) == old) if reading.gated and weights is not None else None,
        aligned_share=0.0 if weights is None else float(weights.double().mean()),
        by_task=by_task,
    )


def _share(right: Tensor) -> float:
    return int(right.sum()) / len(right)
