"""The one shape every image dataset of the bench has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ImageData:
    """A labelled image dataset, held in memory.

    Args:
        name: The dataset's name.
        train_images: `uint8` images, (N, C, H, W).
        train_labels: `int64` class numbers, (N,).
        test_images: Like `train_images`, with the same C, H and W.
        test_labels: Like `train_labels`.
        classes: The name of each class; a label is a place in this tuple.

    Raises:
        TypeError: A tensor has the wrong dtype.
        ValueError: A tensor has the wrong shape, or a label names no class.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.classes:
            raise ValueError(f"{self.name}: classes is empty")
        self._check_split("train", self.train_images, self.train_labels)
        self._check_split("test", self.test_images, self.test_labels)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError(
                f"{self.name}: train images are {tuple(self.train_images.shape[1:])} (C, H, W), "
                f"test images are {tuple(self.test_images.shape[1:])}"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    def _check_split(self, split: str, images: Tensor, labels: Tensor) -> None:
        where = f"{self.name}: {split}"
        if images.dtype != torch.uint8:
            raise TypeError(f"{where} images must be torch.uint8, not {images.dtype}")
        if labels.dtype != torch.int64:
            raise TypeError(f"{where} labels must be torch.int64, not {labels.dtype}")
        if images.ndim != 4 or images.numel() == 0:
            raise ValueError(f"{where} images must be a filled (N, C, H, W), not {tuple(images.shape)}")
        if labels.shape != images.shape[:1]:
            raise ValueError(f"{where} labels must be ({len(images)},) like the images, not {tuple(labels.shape)}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise ValueError(f"{where} labels must lie in 0..{len(self.classes) - 1}, not {low}..{high}")
