"""Average precision as COCO defines it, computed by torchmetrics with pycocotools: needs the extra `coco`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from elign.lab.detection.data.split import Objects
from elign.lab.detection.evaluation.average_precision import Detections, check_images
from elign.lab.extras import MissingExtraError

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
    """Find out whether COCO's average precision can be computed here.

    Raises:
        MissingExtraError: torchmetrics or pycocotools is not installed.
    """
    _metric()


def coco_average_precisions(
    detections: Sequence[Detections], objects: Sequence[Objects], *, classes: int
) -> CocoAveragePrecision:
    """COCO's average precision: mean precision at 101 recalls, the best 100 detections of each image and class.

    Difficult objects are handed over as COCO's crowds, which is the only thing it ignores: they need not be found, and
    a detection that lies in one by the threshold (intersection over the detection's own area) is not counted.

    Args:
        detections: Of each image.
        objects: On each image, in the same order. Objects of classes from `classes` on are left out.
        classes: Number of classes.

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
        [_target(image.of(range(classes))) for image in objects],
    )
    result = metric.compute()
    if "precision" not in result:
        return CocoAveragePrecision(*((None,) * classes,) * 3)
    # Overlaps, recalls, classes that occur, sizes of objects (first: any), limits (last: 100); -1 where nothing counts.
    precision = result["precision"][:, :, :, 0, -1]
    places = {int(label): place for place, label in enumerate(result["classes"].reshape(-1))}
    of_each = [precision[:, :, places[label]] if label in places else None for label in range(classes)]
    return CocoAveragePrecision(
        mean=tuple(_mean(values) for values in of_each),
        at_50=tuple(_mean(None if values is None else values[_AT_50]) for values in of_each),
        at_75=tuple(_mean(None if values is None else values[_AT_75]) for values in of_each),
    )


def _target(objects: Objects) -> dict[str, Tensor]:
    return {"boxes": objects.boxes.cpu(), "labels": objects.labels.cpu(), "iscrowd": objects.difficult.cpu().long()}


def _mean(precision: Tensor | None) -> float | None:
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
