"""Hopfield drift compensation: a softmax over the cosines to stored pairs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.aligners.kernel import PairShift
from elign.utils.fitted import register
from elign.utils.tensors import check_number, check_whole


@register
class HopfieldShift(PairShift):
    """Adds a softmax-weighted mean of the drifts of stored pairs (HopDC, arXiv 2602.00144).

    `z + share sum_i w_i (b_i - a_i)`, w the softmax of `cos(z, a_i) / temperature` over the `top` largest cosines. The
    paper also takes unlabelled images as anchors; here they are the pairs of the fit.

    Args:
        temperature: Of the softmax.
        top: Anchors that count for a latent.
        share: How much of the move is made.
        anchors: Most pairs to remember; drawn at random where there are more.
        seed: Of that draw.

    Example:
        >>> import torch, elign
        >>> z = torch.eye(3)
        >>> elign.HopfieldShift(share=1.0).fit_latents(z, z + 1, direction="forward").align(z)[0].tolist()
        [2.0, 1.0, 1.0]
    """

    def __init__(
        self, *, temperature: float = 0.1, top: int = 1000, share: float = 0.9, anchors: int = 5000, seed: int = 0
    ) -> None:
        super().__init__(anchors=anchors, seed=seed)
        self.temperature = check_number(temperature, "temperature", least=1e-6)
        self.share = check_number(share, "share", most=1)
        self.top = check_whole(top, "top", least=1)

    def _weigher(self, points: Tensor) -> Callable[[Tensor], Tensor]:
        points = F.normalize(points, dim=1)

        def weights(some: Tensor) -> Tensor:
            nearness = F.normalize(some, dim=1) @ points.t() / self.temperature
            if self.top < len(points):
                least = nearness.topk(self.top, dim=1).values[:, -1:]
                nearness = nearness.masked_fill(nearness < least, -torch.inf)
            found: Tensor = self.share * nearness.softmax(dim=1)
            return found

        return weights
