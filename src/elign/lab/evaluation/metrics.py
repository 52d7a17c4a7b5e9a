"""Metrics of a whole run, as pure functions of its rows.

Notation: T tasks, a_t the accuracy on all classes seen after task t, a_{t,i} the accuracy after task t on the test
samples of task i among all classes seen. All values are fractions.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.scoring import Row

METRICS: Mapping[str, tuple[str, str]] = {
    "average": ("(1/T) Σ_{t=1..T} a_t", "average incremental accuracy, with the first task as in the paper"),
    "average_incremental": ("(1/(T-1)) Σ_{t=2..T} a_t", "the same without the first task, where nothing is aligned"),
    "last": ("a_T", "accuracy on all classes after the last task"),
    "accuracy_matrix": ("a_{t,i}, i ≤ t", "accuracy on each task's test samples after each task"),
    "forgetting": (
        "(1/(T-1)) Σ_{i<T} [max_{i≤t<T} a_{t,i} - a_{T,i}]",
        "how far each task fell from its best; lower is better",
    ),
    "backward_transfer": ("(1/(T-1)) Σ_{i<T} (a_{T,i} - a_{i,i})", "change since a task was learned; negative: forgot"),
    "recovered": (
        "(reading - base) / (oracle-mask - base), averages over t=2..T",
        "share of the gain that knowing old from new gives without any alignment",
    ),
    "old": ("(1/(T-1)) Σ_{t=2..T} accuracy on old classes", "among all classes seen"),
    "new": ("(1/(T-1)) Σ_{t=2..T} accuracy on the task's own classes", "among all classes seen"),
    "among_old": ("(1/(T-1)) Σ_{t=2..T} accuracy on old classes", "with the choice among old classes only"),
    "gate_accuracy": (
        "(1/(T-1)) Σ_{t=2..T} share of samples that the gate treats rightly",
        "old aligned, new not; only for label-free gates",
    ),
}
"""Formula and explanation of each metric, for display."""

HEADLESS = ("prototypes", "blend")
"""Classifiers that take the place of the model's own head, and are compared with it."""

Part = Literal["accuracy", "old", "new", "among_old", "gate_accuracy"]
_SMALLEST_GAIN = 1e-12


@dataclass(frozen=True)
class Summary:
    """One reading over a whole run; names as in `METRICS`. None where a metric has no value (one task, no gate)."""

    reading: str
    classifier: str
    label_free: bool
    tasks: int
    average: float
    average_incremental: float | None
    last: float
    old: float | None
    new: float | None
    among_old: float | None
    gate_accuracy: float | None
    forgetting: float | None
    backward_transfer: float | None
    recovered: float | None


def curve(rows: Sequence[Row], reading: str, classifier: str) -> list[Row]:
    """The rows of one reading, for tasks 1 to T in order.

    A reading that does not exist at the first task, where nothing is aligned, has base's row of that classifier there.

    Raises:
        EvaluationError: There is no row for some task, or more than one.
    """
    found = _by_task(rows, reading, classifier)
    for task in range(1, _last_task(rows) + 1):
        if task not in found:
            raise EvaluationError(f"there is no row of {reading} ({classifier}) for task {task}")
    return [found[task] for task in sorted(found)]


def average_accuracy(rows: Sequence[Row]) -> float:
    """`(1/T) Σ_{t=1..T} a_t` of a `curve`: the average incremental accuracy, with the first task."""
    return statistics.fmean(row.accuracy for row in rows)


def incremental_mean(rows: Sequence[Row], part: Part = "accuracy") -> float | None:
    """`(1/(T-1)) Σ_{t=2..T}` of one number of a `curve`'s rows; None if some task has no value, or T = 1."""
    values = [getattr(row, part) for row in rows[1:]]
    return None if not values or None in values else statistics.fmean(values)


def last_accuracy(rows: Sequence[Row]) -> float:
    """`a_T` of a `curve`."""
    return rows[-1].accuracy


def accuracy_matrix(rows: Sequence[Row]) -> list[tuple[float, ...]]:
    """`a_{t,i}` of a `curve`: line t has t entries, the accuracies on tasks 1 to t."""
    matrix = [row.by_task for row in rows]
    for number, line in enumerate(matrix, start=1):
        if len(line) != number:
            raise EvaluationError(f"the row of task {number} has accuracies of {len(line)} tasks")
    return matrix


def forgetting(matrix: Sequence[Sequence[float]]) -> float | None:
    """`(1/(T-1)) Σ_{i<T} [max_{i≤t<T} a_{t,i} - a_{T,i}]`; None for a single task."""
    before, last = matrix[:-1], matrix[-1]
    if not before:
        return None
    best = [max(line[i] for line in before[i:]) for i in range(len(before))]
    return statistics.fmean(top - last[i] for i, top in enumerate(best))


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float | None:
    """`(1/(T-1)) Σ_{i<T} (a_{T,i} - a_{i,i})`; None for a single task."""
    if len(matrix) < 2:
        return None
    return statistics.fmean(matrix[-1][i] - matrix[i][i] for i in range(len(matrix) - 1))


def recovered_fraction(reading: float | None, base: float | None, mask: float | None) -> float | None:
    """`(reading - base) / (oracle-mask - base)`; None if one is missing or the mask gains nothing.

    1 means: no better than telling the base model which samples are old.
    """
    if reading is None or base is None or mask is None or mask - base < _SMALLEST_GAIN:
        return None
    return (reading - base) / (mask - base)


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary for each reading and classifier that was read after every task (the first one aside), in row order.

    A reading that is missing for some later task (nearest means, say, when a class has no exemplar any more) is left
    out: its average would be over other tasks than the others'.

    Args:
        rows: Of one run.
    """
    names = dict.fromkeys((row.reading, row.classifier) for row in rows)
    complete = [name for name in names if len(_by_task(rows, *name)) == _last_task(rows)]
    curves = {name: curve(rows, *name) for name in complete}
    return [_summary(name, found, curves) for name, found in curves.items()]


def _last_task(rows: Sequence[Row]) -> int:
    return max((row.task for row in rows), default=0)


def _by_task(rows: Sequence[Row], reading: str, classifier: str) -> dict[int, Row]:
    """The rows of one reading by task; see `curve` for the first one."""
    found: dict[int, Row] = {}
    for row in rows:
        if (row.reading, row.classifier) == (reading, classifier):
            if row.task in found:
                raise EvaluationError(f"two rows of {reading} ({classifier}) for task {row.task}: rows of two runs?")
            found[row.task] = row
    if 1 not in found and reading != "base":
        first = _by_task(rows, "base", classifier).get(1)
        found |= {} if first is None else {1: first}
    return found


def _summary(name: tuple[str, str], rows: Sequence[Row], curves: Mapping[tuple[str, str], Sequence[Row]]) -> Summary:
    reading, classifier = name
    matrix = accuracy_matrix(rows)

    def mean_of(other: str) -> float | None:
        return incremental_mean(curves.get((other, "fc" if classifier in HEADLESS else classifier), []))

    return Summary(
        reading=reading,
        classifier=classifier,
        label_free=rows[-1].label_free,
        tasks=len(rows),
        average=average_accuracy(rows),
        average_incremental=incremental_mean(rows),
        last=last_accuracy(rows),
        old=incremental_mean(rows, "old"),
        new=incremental_mean(rows, "new"),
        among_old=incremental_mean(rows, "among_old"),
        gate_accuracy=incremental_mean(rows, "gate_accuracy"),
        forgetting=forgetting(matrix),
        backward_transfer=backward_transfer(matrix),
        recovered=recovered_fraction(incremental_mean(rows), mean_of("base"), mean_of("oracle-mask")),
    )
