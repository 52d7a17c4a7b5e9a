"""What the training and evaluation code knows of images: a split hands out batches.

`memory_split.py` serves small images from memory, `folder_split.py` large ones from files; nobody else may care which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor


class Split(Protocol):
    """The training or the test images of a dataset, in a fixed order; a row is a place in that order."""

    labels: Tensor
    """Class of each image, `int64` (N,), numbered in the order of arrival."""

    def batches(self, rows: Tensor, *, size: int, augment: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the images in these rows, in the order of `rows`; the last batch may be smaller.

        Args:
            rows: Places of the images, `int64` (M,); a place may occur more than once.
            size: Images per batch.
            augment: Seed of the random augmentation; equal seeds and rows give equal batches. None for no
                augmentation: what evaluation sees.

        Yields:
            Normalised images, `float32` (B, C, H, W), and their labels, `int64` (B,), both on the CPU.
        """
        ...
