"""Which proposed regions lie on objects of old classes: the oracle's knowledge, made from test annotations.

Beside scoring, and `unknown_objects.py`, which measures and changes no detection, this is the only place that may see
them, and what it returns only goes into readings that are called oracles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import box_iou

from elign.lab.detection.data.split import Objects
from elign.lab.evaluation.errors import EvaluationError


def old_regions(boxes: Sequence[Tensor], objects: Sequence[Objects], *, known: int, threshold: float = 0.5) -> Tensor:
    """Which regions match an object of an old class, (R,) bool, R counting through all images.

    A region matches the object that it overlaps most with, of whatever class (the first one, if there are several), if
    the overlap (intersection over union) is at least `threshold`. Difficult objects are objects, too.

    The authors' code gives the model more than this: it appends the true boxes to the proposals and draws among the
    proposals by how they match. Here regions are what the model proposed, and only whether they are old is told.

    Args:
        boxes: Regions of each image, in its own frame, (R_i, 4).
        objects: On each image, in the same order; of the classes seen so far.
        known: Number of old classes.
        threshold: Least overlap.
    """
    if len(boxes) != len(objects):
        raise EvaluationError(f"there are regions of {len(boxes)} images, but objects on {len(objects)}")
    return torch.cat(
        [_old(regions, image, known=known, threshold=threshold) for regions, image in zip(boxes, objects, strict=True)]
    )


def overlaps(regions: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The highest overlap of each region with any of the boxes, and with which one; there must be one."""
    best, which = box_iou(regions.double(), boxes.to(regions).double()).nan_to_num(0.0).max(dim=1)
    return best, which


def _old(regions: Tensor, image: Objects, *, known: int, threshold: float) -> Tensor:
    if not len(image):
        return torch.zeros(len(regions), dtype=torch.bool, device=regions.device)
    best, which = overlaps(regions, image.boxes)
    return (best >= threshold) & (image.labels.to(regions.device)[which] < known)
