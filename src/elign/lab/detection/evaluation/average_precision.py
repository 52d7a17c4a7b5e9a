"""Average precision as PASCAL VOC and COCO define it, and the rows of a task that it gives.

VOC's is written here because neither torchvision nor torchmetrics has it: they follow COCO's rules. Here, and in
`region_methods.old_regions`, detections meet test annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.ops import box_iou

from elign.lab.detection.data.base import Objects
from elign.lab.environment import MissingExtraError
from elign.lab.evaluation.inputs import EvaluationError
from elign.lab.evaluation.metrics import Row
from elign.utils.errors import OptionError

Summing = Literal["area", "11-point"]
ClassPrecisions = list[float | None]
"""Average precision of each class; None where there is no object to find."""
Numbers = npt.NDArray[Any]
_NOTHING = -1


@dataclass(frozen=True, eq=False)
class Detections:
    """What was found on one image: boxes x1, y1, x2, y2 in its pixels (N, 4), scores (N,), classes from 0 (N,)."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        count = len(self.scores)
        if tuple(self.boxes.shape) != (count, 4) or tuple(self.labels.shape) != (count,) or self.scores.ndim != 1:
            raise EvaluationError(
                f"detections need boxes (N, 4), scores (N,) and labels (N,), got {tuple(self.boxes.shape)}, "
                f"{tuple(self.scores.shape)} and {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def of(cls, output: Mapping[str, Tensor]) -> Self:
        """Make them of a detector's output for one image, whose labels count the background, in main memory."""
        boxes, scores, labels = (output[name].detach().cpu() for name in ("boxes", "scores", "labels"))
        return cls(boxes=boxes, scores=scores, labels=labels - 1)


def average_precisions(
    detections: Sequence[Detections],
    objects: Sequence[Objects],
    *,
    classes: int,
    threshold: float = 0.5,
    method: Summing = "area",
) -> ClassPrecisions:
    """Return the average precision of each class.

    All detections of a class, best score first (equal scores in the order of images), claim the object of that class
    with which they overlap most on their image (the first one, if there are several). With an overlap (intersection
    over union) of at least `threshold` the first claim is right and further claims of the same object are wrong; below
    it the claim is wrong. A claim of a difficult object is neither, and difficult objects need not be found.

    Precision at a recall is the highest precision at this or any higher recall. `area` is the area under that curve
    (challenges from 2010 on), `11-point` the mean of its values at recalls 0, 0.1, ..., 1 (up to 2009, and what the
    tables for VOC 2007 print). Here recall reaches 0.3 if three of ten objects are found; implementations that compare
    it with a rounded 0.30000000000000004 differ there.

    Args:
        detections: Of each image.
        objects: On each image, in the same order. Objects of classes from `classes` on are left out.
        classes: Number of classes.
        threshold: Least overlap.
        method: How the curve is summed up.

    Returns:
        A fraction for each class; None for classes of which there is no object, or only difficult ones.

    Raises:
        EvaluationError: Images, labels or numbers do not fit.
        OptionError: An option is outside its range.

    Example:
        >>> import torch
        >>> box, other = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]
        >>> truth = Objects(torch.tensor([box]), torch.tensor([0]), torch.tensor([False]))
        >>> found = Detections(torch.tensor([other, box]), torch.tensor([0.9, 0.8]), torch.tensor([0, 0]))
        >>> average_precisions([found], [truth], classes=2)
        [0.5, None]
    """
    if method not in get_args(Summing):
        raise OptionError(f"method must be one of {', '.join(get_args(Summing))}, got {method!r}")
    if not 0 < threshold <= 1:
        raise OptionError(f"threshold must be above 0 and at most 1, got {threshold!r}")
    check_images(detections, objects, classes=classes)
    positives = torch.zeros(classes, dtype=torch.int64)
    for image in objects:
        counted = image.of(range(classes), difficult=False).labels.cpu()
        positives += torch.bincount(counted, minlength=classes)
    claims = _claims(detections, objects, threshold=threshold)
    return [
        _average(_outcomes(claims, label), total, method=method) if total else None
        for label, total in enumerate(positives.tolist())
    ]


class _Claims(NamedTuple):
    """Of all detections of all images, in their order."""

    labels: Numbers
    scores: Numbers
    claimed: Numbers
    """Which object each claims, counted through all images; `_NOTHING` if it overlaps too little with any."""
    difficult: Numbers
    """Whether that object is difficult."""


def _claims(detections: Sequence[Detections], objects: Sequence[Objects], *, threshold: float) -> _Claims:
    claimed, difficult, before = [], [], 0
    for found, truth in zip(detections, objects, strict=True):
        overlaps = _overlaps(found, truth)
        if len(truth):
            best, which = overlaps.max(dim=1)
            claimed.append(torch.where(best >= threshold, which + before, _NOTHING))
            difficult.append(truth.difficult.cpu()[which])
        else:
            claimed.append(torch.full((len(found),), _NOTHING))
            difficult.append(torch.zeros(len(found), dtype=torch.bool))
        before += len(truth)
    labels = [found.labels.cpu() for found in detections]
    scores = [found.scores.detach().cpu().double() for found in detections]
    return _Claims(*(torch.cat(part).numpy() if part else np.zeros(0) for part in (labels, scores, claimed, difficult)))


def _overlaps(found: Detections, truth: Objects) -> Tensor:
    """Return intersection over union (detections, objects), below every threshold for objects of another class."""
    # Double precision, since an overlap of exactly one half must not be lost by rounding.
    ours, theirs = found.boxes.detach().cpu().double(), truth.boxes.cpu().double()
    same = found.labels.cpu().unsqueeze(1) == truth.labels.cpu()
    # Two boxes without area overlap by 0 / 0.
    overlaps: Tensor = box_iou(ours, theirs).nan_to_num(0.0)
    return overlaps.masked_fill(~same, -1.0)


def _outcomes(claims: _Claims, label: int) -> Numbers:
    """Return which claims of a class are right, best score first, without those of difficult objects."""
    (rows,) = np.nonzero(claims.labels == label)
    rows = rows[np.argsort(-claims.scores[rows], kind="stable")]
    rows = rows[~(claims.difficult[rows] & (claims.claimed[rows] != _NOTHING))]
    claimed = claims.claimed[rows]
    _, first = np.unique(claimed, return_index=True)
    right: Numbers = np.zeros(len(rows), dtype=np.bool_)
    right[first] = claimed[first] != _NOTHING
    return right


def _average(right: Numbers, total: int, *, method: Summing) -> float:
    """Sum up the curve of precision over recall; `total` objects are to be found."""
    found = np.cumsum(right)
    precision = found / np.arange(1, len(right) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    if method == "area":
        # Recall grows by 1 / total at every right claim, and nowhere else.
        return float(precision[right].sum() / total)
    # In whole numbers: recall is at least level / 10 from the claim on where 10 * found reaches level * total.
    places = np.searchsorted(10 * found, np.arange(11) * total)
    return float(precision[places[places < len(right)]].sum() / 11)


def check_images(detections: Sequence[Detections], objects: Sequence[Objects], *, classes: int) -> None:
    """Raise if detections and objects are not of the same images, or detections are of no class or not finite."""
    if len(detections) != len(objects):
        raise EvaluationError(f"there are detections of {len(detections)} images, but objects on {len(objects)}")
    for place, found in enumerate(detections):
        strange = found.labels[(found.labels < 0) | (found.labels >= classes)]
        if len(strange):
            raise EvaluationError(
                f"a detection on image {place} is of class {int(strange[0])}, but classes are 0 to {classes - 1}; a "
                "detector's own labels, which count the background, are for Detections.of"
            )
        if not (found.scores.isfinite().all() and found.boxes.isfinite().all()):
            raise EvaluationError(f"a detection on image {place} has a score or box that is NaN or infinite")


_LIMITS = [1, 10, 100]
"""Detections per image that COCO's own summary counts; the last of them is that of average precision."""
_AT_50, _AT_75 = 0, 5
"""Places of the thresholds 0.5 and 0.75 among COCO's ten."""


@dataclass(frozen=True)
class CocoAveragePrecision:
    """Fractions for each class; None for classes of which there is no object.

    Args:
        mean: Over the overlaps 0.5, 0.55, ..., 0.95: what COCO calls AP.
        at_50: At overlap 0.5: AP50.
        at_75: At overlap 0.75: AP75.
    """

    mean: tuple[float | None, ...]
    at_50: tuple[float | None, ...]
    at_75: tuple[float | None, ...]


def require_coco() -> None:
    """Check that COCO's average precision can be computed here.

    Raises:
        MissingExtraError: torchmetrics or pycocotools is not installed.
    """
    _metric()


def coco_average_precisions(
    detections: Sequence[Detections], objects: Sequence[Objects], *, classes: int
) -> CocoAveragePrecision:
    """Return COCO's average precision: mean precision at 101 recalls, the best 100 detections of each image and class.

    Difficult objects are handed over as COCO's crowds, which is the only thing it ignores: they need not be found, and
    a detection that lies in one by the threshold (intersection over the detection's own area) is not counted.

    Raises:
        MissingExtraError: torchmetrics or pycocotools is not installed.
        EvaluationError: Images, labels or numbers do not fit.
    """
    check_images(detections, objects, classes=classes)
    metric = _metric()
    metric.update(
        [
            {"boxes": found.boxes.detach().cpu(), "scores": found.scores.detach().cpu(), "labels": found.labels.cpu()}
            for found in detections
        ],
        [
            {"boxes": each.boxes.cpu(), "labels": each.labels.cpu(), "iscrowd": each.difficult.cpu().long()}
            for each in (image.of(range(classes)) for image in objects)
        ],
    )
    result = metric.compute()
    if "precision" not in result:
        return CocoAveragePrecision(*((None,) * classes,) * 3)
    # Overlaps, recalls, classes that occur, sizes of objects (first: any), limits (last: 100); -1 where nothing counts.
    precision = result["precision"][:, :, :, 0, -1]
    places = {int(label): place for place, label in enumerate(result["classes"].reshape(-1))}
    of_each = [precision[:, :, places[label]] if label in places else None for label in range(classes)]
    return CocoAveragePrecision(
        mean=tuple(map(_recall_mean, of_each)),
        at_50=tuple(_recall_mean(None if values is None else values[_AT_50]) for values in of_each),
        at_75=tuple(_recall_mean(None if values is None else values[_AT_75]) for values in of_each),
    )


def _recall_mean(precision: Tensor | None) -> float | None:
    if precision is None or not bool((precision >= 0).all()):
        return None
    return float(precision.double().mean())


def _metric() -> Any:
    try:
        # Torchmetrics itself would look for it only when there is something to compute.
        import pycocotools.cocoeval  # noqa: F401
        from torchmetrics.detection import MeanAveragePrecision

        metric = MeanAveragePrecision(max_detection_thresholds=_LIMITS, extended_summary=True)
    except ImportError as missing:
        raise MissingExtraError(
            f"COCO's average precision needs torchmetrics and pycocotools ({missing}): pip install 'elign[lab,coco]'"
        ) from None
    metric.warn_on_many_detections = False
    return metric


CLASSIFIER = "detector"
"""The classifier of detection's rows."""


@dataclass(eq=False)
class Collected:
    """What one method found on all images so far.

    Args:
        label_free: False if the method knows which regions lie on old objects.
        gated: Whether a label-free gate chose what is moved.
        detections: Of each image, in main memory.
        regions: Number of regions whose weights of alignment were added.
        moved: Sum of these weights.
        judged: Number of regions of which it is known whether they lie on old objects.
        agreed: Number of those that the gate treats as the oracle would.
    """

    label_free: bool
    gated: bool = False
    detections: list[Detections] = field(default_factory=list)
    regions: int = 0
    moved: float = 0.0
    judged: int = 0
    agreed: int = 0

    def add(self, outputs: Sequence[Mapping[str, Tensor]], weights: Tensor | None, *, old: Tensor | None) -> None:
        """Add a batch of images.

        Args:
            outputs: The detector's, one for each image.
            weights: How far each region was moved, 0 to 1, (R,); None if the method does not move regions.
            old: Which regions lie on old objects, (R,) bool; only counts how often a gate is right.
        """
        self.detections.extend(Detections.of(image) for image in outputs)
        if weights is None:
            return
        self.regions += len(weights)
        self.moved += float(weights.double().sum())
        if self.gated and old is not None:
            self.judged += len(old)
            self.agreed += int(((weights > 0.5) == old.to(weights.device)).sum())

    @property
    def aligned_share(self) -> float:
        """Mean weight of alignment over all regions."""
        return min(self.moved / self.regions, 1.0) if self.regions else 0.0

    @property
    def gate_accuracy(self) -> float | None:
        """Share of regions, most of which are background, that the gate treats as the oracle would."""
        return self.agreed / self.judged if self.judged else None


def score_methods(
    collected: Mapping[str, Collected],
    objects: Sequence[Objects],
    *,
    task_sizes: Sequence[int],
    threshold: float = 0.5,
    method: Summing = "area",
) -> tuple[list[Row], dict[str, ClassPrecisions]]:
    """Return the rows of one task, and the average precision of each class by method.

    Args:
        collected: What each method found.
        objects: On each test image, of all classes; those of classes that were not seen yet are left out.
        task_sizes: How many classes each task brought so far; the last one is the current task.
        threshold: Least overlap of a right detection.
        method: `area`, or `11-point` as in the tables for VOC 2007.

    Raises:
        EvaluationError: There is no object of a task that counts, or images and detections do not fit.
    """
    precisions = {
        name: average_precisions(found.detections, objects, classes=sum(task_sizes), threshold=threshold, method=method)
        for name, found in collected.items()
    }
    rows = [_row(name, found, precisions[name], task_sizes) for name, found in collected.items()]
    return rows, precisions


def coco_metadata(collected: Mapping[str, Collected], objects: Sequence[Objects], *, classes: int) -> dict[str, Any]:
    """Return COCO's average precision by method, as plain values for the metadata of a task.

    `AP`, `AP50` and `AP75` are means over the classes that have objects, as COCO prints them; `by_class` is the AP of
    each class.

    Raises:
        EvaluationError: There is no object that counts, or images and detections do not fit.
    """
    metadata = {}
    for name, one in collected.items():
        found = coco_average_precisions(one.detections, objects, classes=classes)
        parts = {"AP": found.mean, "AP50": found.at_50, "AP75": found.at_75}
        means = {part: _mean(values, "any task") for part, values in parts.items()}
        metadata[name] = {**means, "by_class": list(found.mean)}
    return {"coco": metadata}


def _row(name: str, method: Collected, precisions: ClassPrecisions, task_sizes: Sequence[int]) -> Row:
    """Make a row whose accuracies are mean average precisions over classes; there is none among old classes only."""
    old = sum(task_sizes[:-1])
    by_task = tuple(
        _mean(precisions[end - size : end], f"task {number}")
        for number, (size, end) in enumerate(zip(task_sizes, accumulate(task_sizes), strict=True), start=1)
    )
    return Row(
        task=len(task_sizes),
        method=name,
        classifier=CLASSIFIER,
        label_free=method.label_free,
        accuracy=_mean(precisions, "any task"),
        old=_mean(precisions[:old], "the old tasks") if old else None,
        new=_mean(precisions[old:], "the new task") if old else None,
        among_old=None,
        gate_accuracy=method.gate_accuracy,
        aligned_share=method.aligned_share,
        by_task=by_task,
    )


def _mean(precisions: Sequence[float | None], what: str) -> float:
    values = [value for value in precisions if value is not None]
    if not values:
        raise EvaluationError(f"there is no test object of {what} that counts: its average precision has no value")
    return sum(values) / len(values)
