"""Average precision as the PASCAL VOC challenges define it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.ops import box_iou

from elign.lab.detection.data.split import Objects
from elign.lab.evaluation.errors import EvaluationError
from elign.utils.errors import OptionError

Method = Literal["area", "11-point"]
Numbers = npt.NDArray[Any]
_NOTHING = -1


@dataclass(frozen=True, eq=False)
class Detections:
    """What was found on one image.

    Args:
        boxes: x1, y1, x2, y2 in pixels of the image, (N, 4).
        scores: How sure each is, (N,).
        labels: Its class from 0, (N,) int64.
    """

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
        """From a detector's output for one image, whose labels count the background; kept in main memory."""
        boxes, scores, labels = (output[name].detach().cpu() for name in ("boxes", "scores", "labels"))
        return cls(boxes=boxes, scores=scores, labels=labels - 1)


def average_precisions(
    detections: Sequence[Detections],
    objects: Sequence[Objects],
    *,
    classes: int,
    threshold: float = 0.5,
    method: Method = "area",
    pixels: bool = False,
) -> list[float | None]:
    """Average precision of each class.

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
        pixels: Boxes name their first and last pixel, as in the challenges' files, so that x2 - x1 + 1 is the width.
            By default coordinates are continuous and the width is x2 - x1. That is the same measure for files that were
            read with x1 - 1 and y1 - 1, as those of `elign.lab.detection.data` are.

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
    _check(detections, objects, classes=classes, threshold=threshold, method=method)
    positives = torch.zeros(classes, dtype=torch.int64)
    for image in objects:
        counted = image.of(range(classes), difficult=False).labels.cpu()
        positives += torch.bincount(counted, minlength=classes)
    claims = _claims(detections, objects, threshold=threshold, pixels=pixels)
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


def _claims(detections: Sequence[Detections], objects: Sequence[Objects], *, threshold: float, pixels: bool) -> _Claims:
    claimed, difficult, before = [], [], 0
    for found, truth in zip(detections, objects, strict=True):
        overlaps = _overlaps(found, truth, pixels=pixels)
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


def _overlaps(found: Detections, truth: Objects, *, pixels: bool) -> Tensor:
    """Intersection over union (detections, objects), below every threshold for objects of another class."""
    # Double precision, since an overlap of exactly one half must not be lost by rounding.
    ours, theirs = found.boxes.detach().cpu().double(), truth.boxes.cpu().double()
    if pixels:
        past_the_last = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
        ours, theirs = ours + past_the_last, theirs + past_the_last
    same = found.labels.cpu().unsqueeze(1) == truth.labels.cpu()
    # Two boxes without area overlap by 0 / 0.
    overlaps: Tensor = box_iou(ours, theirs).nan_to_num(0.0)
    return overlaps.masked_fill(~same, -1.0)


def _outcomes(claims: _Claims, label: int) -> Numbers:
    """Which claims of a class are right, best score first, without those of difficult objects."""
    (rows,) = np.nonzero(claims.labels == label)
    rows = rows[np.argsort(-claims.scores[rows], kind="stable")]
    rows = rows[~(claims.difficult[rows] & (claims.claimed[rows] != _NOTHING))]
    claimed = claims.claimed[rows]
    _, first = np.unique(claimed, return_index=True)
    right: Numbers = np.zeros(len(rows), dtype=np.bool_)
    right[first] = claimed[first] != _NOTHING
    return right


def _average(right: Numbers, total: int, *, method: Method) -> float:
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


def _check(
    detections: Sequence[Detections], objects: Sequence[Objects], *, classes: int, threshold: float, method: str
) -> None:
    if method not in get_args(Method):
        raise OptionError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if not 0 < threshold <= 1:
        raise OptionError(f"threshold must be above 0 and at most 1, got {threshold!r}")
    check_images(detections, objects, classes=classes)


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
