"""Aligners that move each latent by the drift of stored pairs near it: what they share, and the local shift."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.utils.fitted import Progress, Ranges, Shapes, register
from elign.utils.tensors import check_number, check_seed, check_whole, compute_dtype

_NARROWEST = 1e-6  # squares of much narrower widths would be 0, and weights no numbers
_FARTHEST = 1e25  # widths from the anchors
_BLOCK = 4096  # rows whose distances to all anchors are in memory at one time


class PairShift(Aligner):
    """Adds a weighted mean of the drifts of stored pairs; a subclass says which pairs count (`_weigher`)."""

    rows_of: ClassVar[str] = "points"
    shapes: ClassVar[Shapes] = {"points": "RD", "drifts": "RD"}
    points: Tensor
    drifts: Tensor

    def __init__(self, *, anchors: int, seed: int) -> None:
        super().__init__()
        self.anchors = check_whole(anchors, "anchors", least=1)
        self.seed = check_seed(seed)

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        order = torch.randperm(len(z_cur), generator=torch.Generator().manual_seed(self.seed), device="cpu")
        chosen = order[: self.anchors].sort().values.to(z_cur.device)
        self.points = z_cur[chosen]
        self.drifts = z_prev[chosen] - z_cur[chosen]
        self.rows = len(self.points)

    def _weigher(self, points: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from rows (N, D) to the weights of all points (N, points)."""
        raise NotImplementedError

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        dtype = compute_dtype(rows)
        points, drifts = (t.to(rows.device, dtype) for t in (self.points, self.drifts))
        weigh = self._weigher(points)
        # A graph that is recorded for any number of rows has no loop over them.
        blocks = (rows,) if torch.compiler.is_compiling() else torch.split(rows, _BLOCK)
        return torch.cat([(some + weigh(some) @ drifts).to(rows.dtype) for some in (b.to(dtype) for b in blocks)])


@register
class LocalShift(PairShift):
    """Adds a weighted mean of the drifts of nearby pairs: near ones count, far ones do not.

    `z + sum_i w_i d_i`, where the anchor a_i is a latent that was learned from, d_i how it drifted, and
    `w_i ~ exp(-|z - a_i|^2 / (2 s^2))`, summing to 1. The width s is `bandwidth` times the root mean square distance
    between anchors. A large bandwidth gives `MeanShift`; a tiny one moves z as its nearest anchor moved. Fitted
    forward on prototypes this is the drift compensation of Yu et al. (CVPR 2020).

    Args:
        bandwidth: Width of the neighbourhood, relative to the distances between anchors.
        anchors: Most pairs to remember; drawn at random where there are more.
        seed: Of that draw.

    Example:
        >>> import torch, elign
        >>> left, right = torch.randn(50, 4) - 5, torch.randn(50, 4) + 5
        >>> z_cur = torch.cat([left, right])
        >>> z_prev = torch.cat([left + 1, right - 1])                # each side drifted its own way
        >>> aligner = elign.LocalShift(bandwidth=0.1).fit_latents(z_prev, z_cur)
        >>> (aligner.align(z_cur) - z_cur)[[0, -1], 0].round(decimals=3).tolist()
        [1.0, -1.0]
    """

    ranges: ClassVar[Ranges] = {"width": (1e-45, math.inf)}
    shapes: ClassVar[Shapes] = {**PairShift.shapes, "width": ""}
    width: Tensor

    def __init__(self, *, bandwidth: float = 0.3, anchors: int = 2000, seed: int = 0) -> None:
        super().__init__(anchors=anchors, seed=seed)
        self.bandwidth = check_number(bandwidth, "bandwidth", least=_NARROWEST)

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        super()._learn(z_prev, z_cur, progress)
        # The mean squared distance between two anchors is twice their variance, summed over dimensions. In float64 on
        # the CPU: squares of huge or tiny latents would be infinite or 0.
        spread = 2 * (self.points - self.points.mean(dim=0)).cpu().double().square().sum(dim=1).mean()
        # Anchors that are all alike: any width weighs them equally.
        width = self.bandwidth * torch.where(spread > 0, spread.sqrt(), 1.0)
        self.width = width.clamp(min=torch.finfo(z_cur.dtype).tiny).to(z_cur)

    def _weigher(self, points: Tensor) -> Callable[[Tensor], Tensor]:
        width = self.width.to(points)
        # Seen from the anchors' mean and in widths: distances of latents far from the origin are differences of large
        # numbers, and squares of huge or tiny ones are infinite or 0.
        center = points.mean(dim=0)
        points = (points - center) / width
        lengths = points.square().sum(dim=1)

        def weights(some: Tensor) -> Tensor:
            # |z - a|^2 without |z|^2, which is the same for all anchors and falls out of the weights.
            nearness = ((some - center) / width).clamp(-_FARTHEST, _FARTHEST) @ points.t() - lengths / 2
            return nearness.softmax(dim=1)

        return weights
