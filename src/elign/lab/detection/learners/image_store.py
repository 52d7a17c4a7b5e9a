"""Which training images iOD keeps for its warp steps: the last few of each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elign.lab.seeds import derive_seed


class ImageStore(nn.Module):
    """Row numbers of the last images of each class; an image counts for the class of one of its objects, by chance.

    All choices come from `seed` and a counter that is part of the state, so that a learner that goes on from a state
    makes the same choices as one that was never interrupted, whatever else draws random numbers.

    Args:
        per_class: How many images of each class are kept.
        seed: Decides all choices.
    """

    rows: Tensor
    draws: Tensor

    def __init__(self, *, per_class: int, seed: int) -> None:
        super().__init__()
        self._seed = seed
        # Oldest first; -1 is an empty place. Row numbers, not images: the training set still has these.
        self.register_buffer("rows", torch.full((0, per_class), -1, dtype=torch.int64))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def grow(self, new: int) -> None:
        """Make room for `new` more classes."""
        self.rows = torch.cat([self.rows, self.rows.new_full((new, self.rows.shape[1]), -1)])

    def add(self, rows: Tensor, labels: list[Tensor]) -> None:
        """Keep images; the oldest one of a class goes when its places are full.

        Args:
            rows: Where the images stand in the training set, (B,).
            labels: Of the objects on each, from 1. An image without objects is not kept.
        """
        for row, of_image in zip(rows.tolist(), labels, strict=True):
            if len(of_image):
                kept = self.rows[int(of_image[self._order(len(of_image))[0]]) - 1]
                kept.copy_(torch.cat([kept[1:], kept.new_tensor([row])]))

    def draw(self, count: int) -> Tensor:
        """Rows of at most `count` different images that are kept, in any class, by chance: `int64`, on the CPU."""
        kept = torch.tensor(sorted({row for row in self.rows.flatten().tolist() if row >= 0}), dtype=torch.int64)
        return kept[self._order(len(kept))[:count]]

    def _order(self, length: int) -> Tensor:
        number = int(self.draws)
        self.draws += 1
        generator = torch.Generator().manual_seed(derive_seed(self._seed, f"choice {number} of the image store"))
        return torch.randperm(length, generator=generator)
