"""What a detector hands out while it looks at images, in training and at test, and the losses of its head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import fastrcnn_loss


@dataclass(frozen=True, eq=False)
class RoiOutputs:
    """What the head makes of R regions.

    Attributes:
        latents: (R, D), what the head reads.
        logits: (R, 1 + classes), with one more column for a head that knows the unknown.
        deltas: Box corrections, (R, 4) when they are class-agnostic, else (R, 1 + classes, 4).
    """

    latents: Tensor
    logits: Tensor
    deltas: Tensor


@dataclass(frozen=True, eq=False)
class Look:
    """One pass over training images, down to the head.

    Attributes:
        images: The resized, normalised, batched images; a teacher looks at the same.
        features: Of the backbone, (B, C, h, w).
        objectness: Raw output of the region proposal network, (B, A, h, w).
        region_deltas: Its raw box corrections, (B, 4 A, h, w).
        region_losses: Its losses, "objectness" and "region_box".
        rois: The sampled regions of each image; annotated boxes are among the candidates.
        roi_objectness: (R,) probability that the region proposal network gave them; 1 for annotated boxes.
        labels: (R,) 0 for background, 1 + c for class c.
        regression_targets: (R, 4) the box corrections that would be right; of no meaning for background.
        outputs: What the head makes of the sampled regions.
    """

    images: ImageList
    features: Tensor
    objectness: Tensor
    region_deltas: Tensor
    region_losses: dict[str, Tensor]
    rois: list[Tensor]
    roi_objectness: Tensor
    labels: Tensor
    regression_targets: Tensor
    outputs: RoiOutputs


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of some images at test, and their latents; no annotation had a part in it.

    Attributes:
        rois: Of each image, in the frame of the resized image.
        boxes: The same in the frame of the image that was given.
        latents: (R, D), all images one after the other.
        image_sizes: (height, width) of each resized image.
        original_sizes: (height, width) of each image that was given.
    """

    rois: list[Tensor]
    boxes: list[Tensor]
    latents: Tensor
    image_sizes: list[tuple[int, int]]
    original_sizes: list[tuple[int, int]]

    @property
    def counts(self) -> list[int]:
        """How many regions each image has."""
        return [len(rois) for rois in self.rois]


def roi_losses(look: Look, labels: Tensor | None = None) -> dict[str, Tensor]:
    """The losses of the head on the sampled regions, "classification" and "box", as torchvision defines them.

    Cross entropy, and smooth L1 with beta 1/9 over the regions on objects, divided by the number of all regions
    (Detectron2, which iOD and ELI were run with, has plain L1 there).

    Args:
        look: A pass over training images.
        labels: (R,) other labels for the classification, such as "unknown" for some of the background (ORE). Boxes are
            learned from the annotations in any case.
    """
    deltas = columns_of(look.outputs.deltas, look.outputs.logits.shape[1])
    classification, box = fastrcnn_loss(look.outputs.logits, deltas, [look.labels], [look.regression_targets])
    if labels is not None:
        classification = F.cross_entropy(look.outputs.logits, labels)
    return {"classification": classification, "box": box}


def columns_of(deltas: Tensor, columns: int) -> Tensor:
    """Box corrections in torchvision's layout, (R, 4 columns); class-agnostic ones are repeated for each column."""
    flat = deltas.flatten(1)
    return flat.repeat(1, columns) if flat.shape[1] == 4 else flat
