"""From predictions to rows (`Row` has the fields of results), to the metrics of a run, and to statistics over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, StrictBool
from scipy.special import stdtrit  # type: ignore[import-untyped]
from torch import Tensor

from elign.lab.evaluation.inputs import EvaluationError
from elign.lab.evaluation.methods import Method, Prediction


@dataclass(frozen=True)
class MetricNames:
    """How the results of one benchmark are worded.

    Args:
        measure: What its main number is called.
        seen: Of what it is, after a task.
        of_task: The same for one task; "of task 2" follows.
        item: What is aligned one by one.
        told: What an oracle knows of each of them.
    """

    measure: str
    seen: str
    of_task: str
    item: str
    told: str


CLASSIFIED = MetricNames(
    measure="accuracy",
    seen="on the test images of all classes seen so far",
    of_task="test images",
    item="image",
    told="of each test image whether its class is old",
)
DETECTED = MetricNames(
    measure="mean average precision",
    seen="over all classes seen so far",
    of_task="classes",
    item="region",
    told="of each region whether it lies on an old object",
)


def metric_names_of(classifiers: Iterable[str]) -> MetricNames:
    """Return the names for a run whose rows have these classifiers."""
    return DETECTED if "detector" in classifiers else CLASSIFIED


MAX_TASKS = 10_000
"""More are refused: a file from outside must not decide how much memory a table takes."""
TaskNumber = Annotated[int, Field(strict=True, ge=1, le=MAX_TASKS)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]


@dataclass(frozen=True)
class Row:
    """What one method reached after one task: a line of `results.jsonl`, of `results.csv` and of tables.

    The types are checked where a file is read.

    Args:
        task: Number of the task, from 1.
        method: Name of the method.
        classifier: `fc`, `nearest-mean`, `prototypes`, `blend`, `own` or `detector`.
        label_free: False if the method knows which test samples are old.
        accuracy: Of all test samples, among all classes seen so far.
        old: Of test samples of old classes, among all classes; None at the first task, where there are none.
        new: Of test samples of the task's own classes; None at the first task, where it would be `accuracy`.
        among_old: Of test samples of old classes, among the old classes only; None at the first task.
        gate_accuracy: Share of test samples that a label-free gate classifies correctly (old: weight above one half,
            new: not); None without such a gate.
        aligned_share: Mean weight of alignment over all test samples; 0 where nothing is moved.
        by_task: Accuracy of the test samples of each task so far, among all classes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    task: TaskNumber
    method: str
    classifier: str
    label_free: StrictBool
    accuracy: Fraction
    old: Fraction | None
    new: Fraction | None
    among_old: Fraction | None
    gate_accuracy: Fraction | None
    aligned_share: Fraction
    by_task: Annotated[tuple[Fraction, ...], Field(max_length=MAX_TASKS)]


def score(method: Method, prediction: Prediction, labels: Tensor, *, task_sizes: Sequence[int]) -> Row:
    """Count how many test samples are classified correctly; `task_sizes` are the classes of each task so far."""
    old_classes = sum(task_sizes[:-1])
    right = prediction.scores.argmax(dim=1) == labels
    old = labels < old_classes
    among_old = prediction.scores[old, :old_classes].argmax(dim=1) == labels[old] if old_classes else right
    weights = prediction.weights
    return Row(
        task=len(task_sizes),
        method=method.name,
        classifier=prediction.classifier,
        label_free=not method.uses_labels,
        accuracy=_share(right),
        old=_share(right[old]) if old_classes else None,
        new=_share(right[~old]) if old_classes else None,
        among_old=_share(among_old) if old_classes else None,
        gate_accuracy=_share((weights > 0.5) == old) if prediction.gated and weights is not None else None,
        aligned_share=0.0 if weights is None else float(weights.double().mean()),
        by_task=tuple(
            _share(right[(labels >= end - size) & (labels < end)])
            for size, end in zip(task_sizes, accumulate(task_sizes), strict=True)
        ),
    )


def _share(right: Tensor) -> float:
    return int(right.sum()) / len(right)


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
        "(method - base) / (oracle-mask - base), averages over t=2..T",
        "share of the gain that knowing old from new gives without any alignment",
    ),
    "old": ("(1/(T-1)) Σ_{t=2..T} accuracy on old classes", "among all classes seen"),
    "new": ("(1/(T-1)) Σ_{t=2..T} accuracy on the task's own classes", "among all classes seen"),
    "among_old": ("(1/(T-1)) Σ_{t=2..T} accuracy on old classes", "with the choice among old classes only"),
    "gate_accuracy": (
        "(1/(T-1)) Σ_{t=2..T} share of samples that the gate classifies correctly",
        "old aligned, new not; only for label-free gates",
    ),
}
"""Formula and explanation of each metric, for display."""

HEADLESS = ("prototypes", "blend", "own")
"""Classifiers that replace the model's own head, and are compared with it."""
HEAD = ("fc", *HEADLESS, "detector")
"""The classifiers of the main table: the model's own head, and those that replace it."""

Part = Literal["accuracy", "old", "new", "among_old", "gate_accuracy"]
_SMALLEST_GAIN = 1e-12


@dataclass(frozen=True)
class Summary:
    """One method over a whole run; names as in `METRICS`. None where a metric has no value (one task, no gate)."""

    method: str
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


def curve(rows: Sequence[Row], method: str, classifier: str) -> list[Row]:
    """Return the rows of one method, for tasks 1 to T in order.

    A method that does not exist at the first task, where nothing is aligned, has base's row there: of the same
    classifier, or of the head that it replaces.

    Raises:
        EvaluationError: There is no row for some task, or more than one.
    """
    found = _by_task(rows, method, classifier)
    for task in range(1, _last_task(rows) + 1):
        if task not in found:
            raise EvaluationError(f"there is no row of {method} ({classifier}) for task {task}")
    return [found[task] for task in sorted(found)]


def average_accuracy(rows: Sequence[Row]) -> float:
    """Return `(1/T) Σ_{t=1..T} a_t` of a `curve`: the average incremental accuracy, with the first task."""
    return statistics.fmean(row.accuracy for row in rows)


def incremental_mean(rows: Sequence[Row], part: Part = "accuracy") -> float | None:
    """Return `(1/(T-1)) Σ_{t=2..T}` of one number of a `curve`'s rows; None if some task has no value, or T = 1."""
    values = [getattr(row, part) for row in rows[1:]]
    return None if not values or None in values else statistics.fmean(values)


def accuracy_matrix(rows: Sequence[Row]) -> list[tuple[float, ...]]:
    """Return `a_{t,i}` of a `curve`: line t has t entries, the accuracies on tasks 1 to t."""
    matrix = [row.by_task for row in rows]
    for number, line in enumerate(matrix, start=1):
        if len(line) != number:
            raise EvaluationError(f"the row of task {number} has accuracies of {len(line)} tasks")
    return matrix


def forgetting(matrix: Sequence[Sequence[float]]) -> float | None:
    """Return `(1/(T-1)) Σ_{i<T} [max_{i≤t<T} a_{t,i} - a_{T,i}]`; None for a single task."""
    before, last = matrix[:-1], matrix[-1]
    if not before:
        return None
    best = [max(line[i] for line in before[i:]) for i in range(len(before))]
    return statistics.fmean(top - last[i] for i, top in enumerate(best))


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float | None:
    """Return `(1/(T-1)) Σ_{i<T} (a_{T,i} - a_{i,i})`; None for a single task."""
    if len(matrix) < 2:
        return None
    return statistics.fmean(matrix[-1][i] - matrix[i][i] for i in range(len(matrix) - 1))


def recovered_fraction(method: float | None, base: float | None, mask: float | None) -> float | None:
    """Return `(method - base) / (oracle-mask - base)`; None if one is missing or the mask gains nothing.

    1 means: no better than telling the base model which samples are old.
    """
    if method is None or base is None or mask is None or mask - base < _SMALLEST_GAIN:
        return None
    return (method - base) / (mask - base)


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Return a summary for each method and classifier with a row for every task but perhaps the first, in row order.

    A method that is missing for some later task (such as nearest means, when a class has no exemplar any more) is left
    out: its average would be over other tasks than the others'.
    """
    names = dict.fromkeys((row.method, row.classifier) for row in rows)
    complete = [name for name in names if len(_by_task(rows, *name)) == _last_task(rows)]
    curves = {name: curve(rows, *name) for name in complete}
    return [_summary(name, found, curves) for name, found in curves.items()]


def _last_task(rows: Sequence[Row]) -> int:
    return max((row.task for row in rows), default=0)


def _by_task(rows: Sequence[Row], method: str, classifier: str) -> dict[int, Row]:
    """The rows of one method by task; see `curve` for the first one."""
    found: dict[int, Row] = {}
    for row in rows:
        if (row.method, row.classifier) == (method, classifier):
            if row.task in found:
                raise EvaluationError(f"two rows of {method} ({classifier}) for task {row.task}: rows of two runs?")
            found[row.task] = row
    if 1 not in found and method != "base":
        first = _by_task(rows, "base", _beside(classifier)).get(1)
        found |= {} if first is None else {1: first}
    return found


def _beside(classifier: str) -> str:
    """Return the classifier whose base a row is compared with."""
    return "fc" if classifier in HEADLESS else classifier


def _summary(name: tuple[str, str], rows: Sequence[Row], curves: Mapping[tuple[str, str], Sequence[Row]]) -> Summary:
    method, classifier = name
    matrix = accuracy_matrix(rows)

    def mean_of(other: str) -> float | None:
        return incremental_mean(curves.get((other, _beside(classifier)), []))

    return Summary(
        method=method,
        classifier=classifier,
        label_free=rows[-1].label_free,
        tasks=len(rows),
        average=average_accuracy(rows),
        average_incremental=incremental_mean(rows),
        last=rows[-1].accuracy,
        old=incremental_mean(rows, "old"),
        new=incremental_mean(rows, "new"),
        among_old=incremental_mean(rows, "among_old"),
        gate_accuracy=incremental_mean(rows, "gate_accuracy"),
        forgetting=forgetting(matrix),
        backward_transfer=backward_transfer(matrix),
        recovered=recovered_fraction(incremental_mean(rows), mean_of("base"), mean_of("oracle-mask")),
    )


CONFIDENCE = 0.95
ONE_SEED = "one seed, no interval"
SMALLEST_SHOWN = 0.05
"""Half of the last printed digit: smaller differences would be shown as "0.0 points"."""

Agreement = Literal["yes", "yes, 0 in interval", "no, 0 in interval", "no"]


@dataclass(frozen=True)
class MeanStd:
    """Values over seeds: mean, sample standard deviation (None for a single value) and number."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """A paired difference over seeds; `std` and the confidence `interval` are None for a single pair."""

    mean: float
    std: float | None
    interval: tuple[float, float] | None
    count: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the interval lies on one side of 0; None without an interval."""
        return None if self.interval is None else self.interval[0] > 0 or self.interval[1] < 0


def mean_std(values: Sequence[float]) -> MeanStd:
    """Return mean and sample standard deviation; raise `EvaluationError` if there is no value.

    Example:
        >>> mean_std([1.0, 2.0, 3.0])
        MeanStd(mean=2.0, std=1.0, count=3)
    """
    if not values:
        raise EvaluationError("there is no value to average")
    return MeanStd(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for a single value, which has none."""
    return mean_std(values).std or 0.0


def student_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return `mean ± t · s / √n` with Student's t for n - 1 degrees of freedom; None for a single value.

    It assumes that the values are independent and about normal, which a few seeds cannot show.
    """
    if not 0 < confidence < 1:
        raise EvaluationError(f"a confidence is between 0 and 1, not {confidence}")
    found = mean_std(values)
    if found.std is None:
        return None
    # Not scipy.stats, which takes a second to import.
    reach = float(stdtrit(found.count - 1, (1 + confidence) / 2)) * found.std / math.sqrt(found.count)
    return found.mean - reach, found.mean + reach


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Difference:
    """Return how far values lie above their reference, pair by pair (one for each seed, in the same order).

    A pair is of one checkpoint, so that what makes one seed easier than another does not count.

    Example:
        >>> paired_difference([61.0, 64.0], [60.0, 61.0]).mean
        2.0
    """
    if len(values) != len(reference):
        raise EvaluationError(f"{len(values)} values cannot be paired with {len(reference)}")
    differences = [one - other for one, other in zip(values, reference, strict=True)]
    found = mean_std(differences)
    return Difference(found.mean, found.std, student_interval(differences), found.count)


def same_sign(printed: float | None, ours: Difference) -> Agreement | None:
    """Say whether a gain has the sign that was printed (0 has none), and whether it is more than chance between seeds.

    None where nothing was printed.
    """
    if printed is None:
        return None
    unsure = ours.excludes_zero is False
    if printed * ours.mean > 0:
        return "yes, 0 in interval" if unsure else "yes"
    return "no, 0 in interval" if unsure else "no"


def mean_text(values: Sequence[float], digits: int = 1) -> str:
    """Return `83.4 ± 1.2` for several values, `83.4` for a single one."""
    found = mean_std(values)
    mean = f"{found.mean:.{digits}f}"
    return mean if found.std is None else f"{mean} ± {found.std:.{digits}f}"


def seeds_text(count: int) -> str:
    """Return how numbers were averaged."""
    if count == 1:
        return "one seed, so no standard deviation can be given"
    return f"mean ± sample standard deviation over {count} seeds"


def difference_text(ones: Sequence[float], others: Sequence[float]) -> tuple[float, str]:
    """Return the mean of the per-seed differences, and on how many seeds the difference has the sign of the mean."""
    differences = [one - other for one, other in zip(ones, others, strict=True)]
    found = mean_std(differences)
    if found.std is None:
        return found.mean, "on the only seed"
    agreeing = sum(difference * found.mean > 0 for difference in differences)
    text = f"on {agreeing} of {found.count} seeds"
    if abs(found.mean) <= found.std:
        text += ", but the difference is smaller than its standard deviation between seeds"
    return found.mean, text


def printed_text(value: float | None) -> str:
    """Return a number that the paper prints, with its digits."""
    return "–" if value is None else f"{value:.2f}"


def gain_text(value: float | None) -> str:
    """Return a difference with its sign, and with as many digits as the paper prints."""
    return "–" if value is None else f"{value:+.2f}"


def interval_text(gain: Difference) -> str:
    """Return `[+1.21, +3.40]`, or that there is none."""
    return ONE_SEED if gain.interval is None else f"[{gain.interval[0]:+.2f}, {gain.interval[1]:+.2f}]"


def gain_over(values: Sequence[float], base: Sequence[float]) -> tuple[float, str]:
    """Return a paired gain, and its text with the interval where there is one: `+7.6 [+6.9, +8.3]`."""
    gain = paired_difference(values, base)
    text = f"{gain.mean:+.1f}"
    return gain.mean, text if gain.interval is None else f"{text} [{gain.interval[0]:+.1f}, {gain.interval[1]:+.1f}]"
