"""What a data set for object detection hands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Objects:
    """What is on one image.

    Coordinates are continuous and start at the image's upper left corner: the pixel in column j covers j..j+1, and an
    image of width W ends at W.

    Attributes:
        boxes: x1, y1, x2, y2 of each object in pixels: `float32`, (N, 4).
        labels: Its class, from 0 in the order of arrival: `int64`, (N,).
        difficult: Whether it is marked as too hard to count when it is missed: `bool`, (N,).

    Raises:
        ValueError: The tensors do not fit this description or each other.
    """

    boxes: Tensor
    labels: Tensor
    difficult: Tensor

    def __post_init__(self) -> None:
        count = len(self.labels)
        wanted = {
            "boxes": (self.boxes, (count, 4), torch.float32),
            "labels": (self.labels, (count,), torch.int64),
            "difficult": (self.difficult, (count,), torch.bool),
        }
        for name, (tensor, shape, dtype) in wanted.items():
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise ValueError(f"{name} must be {dtype} {shape}, not {tensor.dtype} {tuple(tensor.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, classes: range, *, difficult: bool = True) -> Objects:
        """Only the objects of some classes, in their order.

        Args:
            classes: The labels to keep; consecutive, as classes that arrive together are.
            difficult: Whether objects that are marked as difficult are kept.
        """
        if classes.step != 1:
            raise ValueError(f"classes must be consecutive labels, not {classes}")
        kept = (self.labels >= classes.start) & (self.labels < classes.stop)
        if not difficult:
            kept &= ~self.difficult
        return Objects(boxes=self.boxes[kept], labels=self.labels[kept], difficult=self.difficult[kept])


class DetectionSplit(Protocol):
    """Images with the objects on them. The annotations are in memory, images are read or made when asked for."""

    @property
    def objects(self) -> Sequence[Objects]:
        """The objects of each image."""
        ...

    @property
    def flips(self) -> bool:
        """Whether an image may be mirrored for training: not where left and right matter, as in digits and text."""
        ...

    def __len__(self) -> int: ...

    def image(self, row: int) -> Tensor:
        """The image in this row: `uint8`, (3, H, W)."""
        ...


@dataclass(frozen=True, eq=False)
class DetectionData:
    """A data set for object detection.

    Attributes:
        name: Its name.
        classes: The names of its classes, in the order of arrival; labels are places in it.
        train: The images to learn from.
        test: The images to evaluate with.
    """

    name: str
    classes: tuple[str, ...]
    train: DetectionSplit
    test: DetectionSplit
