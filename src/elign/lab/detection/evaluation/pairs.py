"""Pairs of region latents that aligners are fitted on: the same regions under the previous and the current detector.

They come from training images of the new task with the boxes of its own classes; old images and test images never come
here.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from elign.lab.detection.data.tasks import Batches
from elign.lab.detection.evaluation.matching import overlaps
from elign.lab.detection.models.detector import Detector
from elign.lab.evaluation.errors import EvaluationError
from elign.utils.errors import OptionError

Regions = Literal["objects", "others", "all"]

PER_IMAGE = 128
"""A quarter of 512, as many regions on objects as the head of R50-C4 is trained on."""


@torch.no_grad()
def region_pairs(
    previous: Detector,
    current: Detector,
    batches: Batches,
    *,
    regions: Regions = "objects",
    shared_backbone: bool = False,
    seed: int,
    per_image: int = PER_IMAGE,
    threshold: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Latents of regions of the new task's images, row by row of the same region.

    Regions on objects are the annotated boxes and those of the current model's proposals that overlap one of them by
    `threshold`; the other proposals lie on background and on what is not annotated, old objects among it. On objects
    as published: but where the previous model has learned that these are background, that is where an aligner learned
    from them moves old objects, too.
    Each model looks through its own backbone, so that a pair differs by all the drift that a test image meets.

    The authors' code differs in two things: it collects while it goes on training the current model, whose weights
    drift away from those that are evaluated; here both models are in evaluation mode (and stay in it) and unchanged.
    And it gives both heads the current backbone's features, so that drift of the backbone is not in the pairs;
    `shared_backbone` does that.

    Args:
        previous: The detector before the task.
        current: The detector after it.
        batches: Images of the new task, as the detector takes them, and their targets with "boxes" of new classes.
        regions: `objects` of the new classes, all proposals but those (`others`), or both (`all`).
        shared_backbone: Whether the previous model's head sees the current backbone's features.
        seed: Of the choice where an image has more regions than `per_image`.
        per_image: Most regions of an image.
        threshold: Least overlap (intersection over union) of a proposal with an annotated box.

    Returns:
        Latents (P, D) under the previous and under the current model, in main memory.

    Raises:
        EvaluationError: There is no box on any image.
        OptionError: `per_image` is below 1, or `regions` is something else.
    """
    if regions not in get_args(Regions):
        raise OptionError(f"regions must be one of {', '.join(get_args(Regions))}, got {regions!r}")
    if per_image < 1:
        raise OptionError(f"per_image must be at least 1, got {per_image}")
    previous.eval(), current.eval()
    generator = torch.Generator().manual_seed(seed)
    pairs: list[tuple[Tensor, Tensor]] = []
    for images, targets in batches:
        seen, placed = current.transform(images, [{"boxes": target["boxes"]} for target in targets])
        features = current.features(seen.tensors)
        proposals, _ = current.propose(seen, features)
        rois = [
            _some(_regions(regions, proposed, target["boxes"], threshold), most=per_image, generator=generator)
            for proposed, target in zip(proposals, placed, strict=True)
        ]
        if not any(len(image) for image in rois):
            continue
        others = features if shared_backbone else previous.features(seen.tensors)
        before = previous.read(others, rois, seen.image_sizes).latents
        after = current.read(features, rois, seen.image_sizes).latents
        pairs.append((before.cpu(), after.cpu()))
    if not pairs:
        raise EvaluationError(
            f"no image has a box of a new class, or a region of this kind ({regions}): give images of the new task "
            "with their annotations"
        )
    z_prev, z_cur = (torch.cat(side) for side in zip(*pairs, strict=True))
    return z_prev, z_cur


def _regions(which: Regions, proposals: Tensor, boxes: Tensor, threshold: float) -> Tensor:
    boxes = boxes.to(proposals)
    if not len(boxes):
        return boxes
    best, _ = overlaps(proposals, boxes)
    objects, others = torch.cat([boxes, proposals[best >= threshold]]), proposals[best < threshold]
    return {"objects": objects, "others": others, "all": torch.cat([objects, others])}[which]


def _some(found: Tensor, *, most: int, generator: torch.Generator) -> Tensor:
    """All regions, or if these are too many, some of them, drawn at random."""
    if len(found) <= most:
        return found
    chosen = torch.randperm(len(found), generator=generator)[:most].sort().values
    return found[chosen.to(found.device)]
