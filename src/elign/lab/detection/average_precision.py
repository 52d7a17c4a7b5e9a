"""Average precision as PASCAL VOC and COCO define it, and the rows of a task that it gives.

VOC's is written here because neither torchvision nor torchmetrics has it: they follow COCO's rules. Here, and in
`region_methods.old_regions`, detections meet test annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.ops import box_iou

from elign.lab.detection.data import Objects
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
        for name in ("boxes", "scores", "labels"):
            object.__setattr__(self, name, getattr(self, name).detach().cpu())

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def of(cls, output: Mapping[str, Tensor]) -> Self:
        """Make them of a detector's output for one image, whose labels count the background, in main memory."""
        return cls(boxes=output["boxes"], scores=output["scores"], labels=output["labels"] - 1)


def average_precisions(
    detections: Sequence[Detections],
    objects: Sequence[Objects],
    *,
    classes: int,
    threshold: float = 0.5,
    method: Summing = "area",
) -> ClassPrecisions:
    """Return the average precision of each class, None where no object counts.

    All detections of a class, best score first (equal scores in the order of images), claim the object of that class
    with which they overlap most on their image (the first one, if there are several). With an overlap (intersection
    over union) of at least `threshold` the first claim is right and further claims of the same object are wrong; below
    it the claim is wrong. A claim of a difficult object is neither, and difficult objects need not be found.

    Precision at a recall is the highest precision at this or any higher recall. `area` is the area under that curve
    (challenges from 2010 on), `11-point` the mean of its values at recalls 0, 0.1, ..., 1 (up to 2009, and what the
    tables for VOC 2007 print), where three of ten objects found reach a recall of 0.3.

    Detections and objects are those of each image, in the same order; objects of further classes are left out.

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
    if method not in ("area", "11-point") or not 0 < threshold <= 1:
        raise OptionError(f"method must be area or 11-point and threshold in 0..1, got {method!r} and {threshold!r}")
    _check_images(detections, objects, classes=classes)
    totals = torch.zeros(classes, dtype=torch.int64)
    for image in objects:
        totals += torch.bincount(image.of(range(classes), difficult=False).labels, minlength=classes)
    claimed, difficult = _claims(detections, objects, threshold=threshold)
    labels, scores = (
        np.concatenate([getattr(found, name).double().numpy() for found in detections] or [np.zeros(0)])
        for name in ("labels", "scores")
    )
    precisions: ClassPrecisions = []
    for label, total in enumerate(totals.tolist()):
        (rows,) = np.nonzero((labels == label) & ~difficult)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        precisions.append(_average(claimed[rows], total, method=method) if total else None)
    return precisions


def _claims(
    detections: Sequence[Detections], objects: Sequence[Objects], *, threshold: float
) -> tuple[Numbers, Numbers]:
    """Return which object each detection claims, counted through all images, and whether that one is difficult.

    `_NOTHING`: it overlaps too little with any object of its class.
    """
    claimed, difficult, before = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.bool)], 0
    for found, truth in zip(detections, objects, strict=True):
        if len(truth):
            # Double precision: an overlap of exactly one half must not be lost. Boxes without area overlap by 0 / 0.
            overlaps = box_iou(found.boxes.double(), truth.boxes.double()).nan_to_num(0.0)
            same_class = found.labels.unsqueeze(1) == truth.labels
            best, which = overlaps.masked_fill(~same_class, -1.0).max(dim=1)
            claimed.append(torch.where(best >= threshold, which + before, _NOTHING))
            difficult.append(truth.difficult[which] & (best >= threshold))
        else:
            claimed.append(torch.full((len(found),), _NOTHING))
            difficult.append(torch.zeros(len(found), dtype=torch.bool))
        before += len(truth)
    return torch.cat(claimed).numpy(), torch.cat(difficult).numpy()


def _average(claimed: Numbers, total: int, *, method: Summing) -> float:
    """Sum up the curve of precision over recall of claims, best score first; `total` objects are to be found."""
    _, first = np.unique(claimed, return_index=True)
    right: Numbers = np.zeros(len(claimed), dtype=np.bool_)
    right[first] = claimed[first] != _NOTHING
    found = np.cumsum(right)
    precision = found / np.arange(1, len(right) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    if method == "area":
        # Recall grows by 1 / total at every right claim, and nowhere else.
        return float(precision[right].sum() / total)
    # In whole numbers: recall is at least level / 10 from the claim on where 10 * found reaches level * total.
    places = np.searchsorted(10 * found, np.arange(11) * total)
    return float(precision[places[places < len(right)]].sum() / 11)


def _check_images(detections: Sequence[Detections], objects: Sequence[Objects], *, classes: int) -> None:
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


def coco_average_precisions(
    detections: Sequence[Detections], objects: Sequence[Objects], *, classes: int
) -> dict[str, ClassPrecisions]:
    """Return COCO's AP, AP50 and AP75: mean precision at 101 recalls, the best 100 detections of each image and class.

    Difficult objects are handed over as COCO's crowds, which is the only thing it ignores: they need not be found, and
    a detection that lies in one by the threshold (intersection over the detection's own area) is not counted.
    """
    _check_images(detections, objects, classes=classes)
    metric = coco_metric()
    metric.update(
        [vars(found) for found in detections],
        [
            {"boxes": each.boxes, "labels": each.labels, "iscrowd": each.difficult.long()}
            for each in (image.of(range(classes)) for image in objects)
        ],
    )
    result = metric.compute()
    precisions: dict[str, ClassPrecisions] = {name: [None] * classes for name in ("AP", "AP50", "AP75")}
    if "precision" in result:
        # Of overlaps 0.5 to 0.95, recalls, classes that occur, sizes of objects (first: any) and limits (last: 100).
        found = result["precision"][..., 0, -1].unbind(dim=2)
        for label, precision in zip(result["classes"].reshape(-1).tolist(), found, strict=True):
            if precision.min() >= 0:  # -1: there is no object that counts
                for values, part in zip(precisions.values(), (precision, precision[0], precision[5]), strict=True):
                    values[int(label)] = float(part.double().mean())
    return precisions


def coco_metric() -> Any:
    """Return what computes COCO's average precision; raise `MissingExtraError` if a package is not installed."""
    try:
        # Torchmetrics itself would look for it only when there is something to compute.
        import pycocotools.cocoeval  # noqa: F401
        from torchmetrics.detection import MeanAveragePrecision

        # How many detections of an image COCO's own summary counts; the last number is that of average precision.
        metric = MeanAveragePrecision(max_detection_thresholds=[1, 10, 100], extended_summary=True)
    except ImportError as missing:
        raise MissingExtraError(
            f"COCO's average precision needs torchmetrics and pycocotools ({missing}): pip install 'elign[lab,coco]'"
        ) from None
    metric.warn_on_many_detections = False
    return metric


@dataclass(eq=False)
class Collected:
    """What one method found on all images so far."""

    label_free: bool  # false if the method knows which regions lie on old objects
    gated: bool = False  # whether a label-free gate chose what is moved
    detections: list[Detections] = field(default_factory=list)  # of each image, in main memory
    regions: int = 0  # how many regions' weights of alignment were added
    moved: float = 0.0  # sum of these weights
    judged: int = 0  # how many regions are known to lie on old objects or not
    agreed: int = 0  # how many of those the gate treats as the oracle would

    def add(self, outputs: Sequence[Mapping[str, Tensor]], weights: Tensor | None, *, old: Tensor | None) -> None:
        """Add the detector's outputs for some images, and how far each region was moved, 0 to 1, (R,).

        `old`, which regions lie on old objects, (R,) bool, only counts how often a gate is right.
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
    """Return the rows of one task, whose accuracies are means over classes, and the average precision of each class.

    Raises:
        EvaluationError: There is no object of a task that counts, or images and detections do not fit.
    """
    tasks = [range(end - size, end) for size, end in zip(task_sizes, accumulate(task_sizes), strict=True)]
    old = tasks[-1].start
    rows, by_method = [], {}
    for name, found in collected.items():
        precisions = average_precisions(
            found.detections, objects, classes=sum(task_sizes), threshold=threshold, method=method
        )
        by_method[name] = precisions
        row = Row(
            task=len(tasks),
            method=name,
            classifier="detector",
            label_free=found.label_free,
            accuracy=_mean(precisions, "any task"),
            old=_mean(precisions[:old], "the old tasks") if old else None,
            new=_mean(precisions[old:], "the new task") if old else None,
            among_old=None,  # a detector does not choose among old classes only
            gate_accuracy=found.gate_accuracy,
            aligned_share=found.aligned_share,
            by_task=tuple(
                _mean(precisions[task.start : task.stop], f"task {number}") for number, task in enumerate(tasks, 1)
            ),
        )
        rows.append(row)
    return rows, by_method


def coco_metadata(collected: Mapping[str, Collected], objects: Sequence[Objects], *, classes: int) -> dict[str, Any]:
    """Return COCO's numbers by method, for a task's metadata: means over classes with objects, and each class's AP."""
    metadata = {}
    for name, one in collected.items():
        found = coco_average_precisions(one.detections, objects, classes=classes)
        means = {part: _mean(values, "any task") for part, values in found.items()}
        metadata[name] = {**means, "by_class": found["AP"]}
    return {"coco": metadata}


def _mean(precisions: Sequence[float | None], what: str) -> float:
    values = [value for value in precisions if value is not None]
    if not values:
        raise EvaluationError(f"there is no test object of {what} that counts: its average precision has no value")
    return sum(values) / len(values)
