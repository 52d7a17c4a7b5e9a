"""From detections to rows of results: the one place where what was found meets test annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from elign.lab.detection.data.split import Objects
from elign.lab.detection.evaluation.average_precision import Method, average_precisions
from elign.lab.detection.evaluation.coco_average_precision import coco_average_precisions
from elign.lab.detection.evaluation.reading_images import Collected
from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.scoring import Row

CLASSIFIER = "detector"
"""What rows of detection have as their classifier."""

ClassPrecisions = list[float | None]
"""Average precision of each class; None where there is no object to find."""


def score_readings(
    collected: Mapping[str, Collected],
    objects: Sequence[Objects],
    *,
    task_sizes: Sequence[int],
    threshold: float = 0.5,
    method: Method = "area",
) -> tuple[list[Row], dict[str, ClassPrecisions]]:
    """Rows of one task, and the average precision of each class by reading.

    Args:
        collected: What each reading found.
        objects: On each test image, of all classes; those of classes that were not seen yet are left out.
        task_sizes: How many classes each task brought so far; the last one is the current task.
        threshold: Least overlap of a right detection.
        method: `area`, or `11-point` as in the tables for VOC 2007.

    Raises:
        EvaluationError: There is no object of a task that counts, or images and detections do not fit.
    """
    precisions = {
        name: average_precisions(
            reading.detections, objects, classes=sum(task_sizes), threshold=threshold, method=method
        )
        for name, reading in collected.items()
    }
    rows = [_row(name, reading, precisions[name], task_sizes) for name, reading in collected.items()]
    return rows, precisions


def class_facts(precisions: Mapping[str, ClassPrecisions]) -> dict[str, Any]:
    """Average precision of each class, as plain values for the facts of a task in the results."""
    return {"average_precision": {name: list(values) for name, values in precisions.items()}}


def coco_facts(collected: Mapping[str, Collected], objects: Sequence[Objects], *, classes: int) -> dict[str, Any]:
    """COCO's average precision by reading, as plain values for the facts of a task in the results.

    `AP`, `AP50` and `AP75` are means over the classes that have objects, as COCO prints them; `by_class` is the AP of
    each class.

    Args:
        collected: What each reading found.
        objects: On each test image, of the classes seen so far.
        classes: How many classes were seen so far.

    Raises:
        MissingExtraError: torchmetrics or pycocotools is not installed.
        EvaluationError: There is no object that counts, or images and detections do not fit.
    """
    facts = {}
    for name, reading in collected.items():
        found = coco_average_precisions(reading.detections, objects, classes=classes)
        parts = {"AP": found.mean, "AP50": found.at_50, "AP75": found.at_75}
        means = {part: _mean(values, "any task") for part, values in parts.items()}
        facts[name] = {**means, "by_class": list(found.mean)}
    return {"coco": facts}


def _row(name: str, reading: Collected, precisions: ClassPrecisions, task_sizes: Sequence[int]) -> Row:
    """A row whose accuracies are mean average precisions over classes; there is no precision among old classes only."""
    known = sum(task_sizes[:-1])
    by_task = tuple(
        _mean(precisions[end - size : end], f"task {number}")
        for number, (size, end) in enumerate(zip(task_sizes, accumulate(task_sizes), strict=True), start=1)
    )
    return Row(
        task=len(task_sizes),
        reading=name,
        classifier=CLASSIFIER,
        label_free=reading.label_free,
        accuracy=_mean(precisions, "any task"),
        old=_mean(precisions[:known], "the old tasks") if known else None,
        new=_mean(precisions[known:], "the new task") if known else None,
        among_old=None,
        gate_accuracy=reading.gate_accuracy,
        aligned_share=reading.aligned_share,
        by_task=by_task,
    )


def _mean(precisions: Sequence[float | None], what: str) -> float:
    values = [value for value in precisions if value is not None]
    if not values:
        raise EvaluationError(f"there is no test object of {what} that counts: its average precision has no value")
    return sum(values) / len(values)
