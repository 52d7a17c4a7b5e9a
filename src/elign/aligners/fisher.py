"""The shift of EFC: nearness is measured by what the previous head can tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from elign.aligners.kernel import PairShift
from elign.utils.errors import LatentError, OptionError
from elign.utils.fitted import Progress, Shapes, register
from elign.utils.tensors import check_number


@register
class FisherShift(PairShift):
    """Adds a weighted mean of drifts, near in the Fisher metric of the previous head (EFC, S. Magistri, ICLR 2024).

    With `E = mean_z W' (diag p - p p') W` over the latents learned from, p the head's softmax: distances
    `(z - a_i)' E (z - a_i)` are scaled to [0, 1] for each z, and weights are `exp(-distance / (2 width^2))`. The paper
    moves means of classes.

    Args:
        head: The previous model's linear head; not needed to load a fitted one.
        width: Of the weights; the published value is 0.2.
        anchors: Most pairs to remember; drawn at random where there are more.
        seed: Of that draw.

    Example:
        >>> import torch, elign
        >>> z = torch.eye(3)
        >>> aligner = elign.FisherShift(head=torch.nn.Linear(3, 2)).fit_latents(z, z + 1, direction="forward")
        >>> aligner.align(z)[0].round(decimals=4).tolist()
        [2.0, 1.0, 1.0]
    """

    shapes: ClassVar[Shapes] = {**PairShift.shapes, "metric": "DD"}
    metric: Tensor

    def __init__(
        self, *, head: nn.Linear | None = None, width: float = 0.2, anchors: int = 5000, seed: int = 0
    ) -> None:
        super().__init__(anchors=anchors, seed=seed)
        if head is not None and not isinstance(head, nn.Linear):
            raise OptionError(f"head must be the previous model's nn.Linear, got {type(head).__name__}")
        # Not a part of this module: files hold the metric, not the head.
        self._head = (head,)
        self.width = check_number(width, "width", least=1e-3)

    @property
    def head(self) -> None:
        """None: what was learned does not hold the head."""

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        head = self._head[0]
        if head is None or head.in_features != z_cur.shape[1]:
            raise LatentError(f"FisherShift needs the previous head, of {z_cur.shape[1]} inputs: FisherShift(head=...)")
        super()._learn(z_prev, z_cur, progress)
        weight = head.weight.detach().cpu().double()
        bias = 0 if head.bias is None else head.bias.detach().cpu().double()
        p = (self.points.cpu().double() @ weight.t() + bias).softmax(dim=1)
        inner = p.mean(dim=0).diag() - p.t() @ p / len(p)
        self.metric = (weight.t() @ inner @ weight).to(z_cur)

    def _weigher(self, points: Tensor) -> Callable[[Tensor], Tensor]:
        center = points.mean(dim=0)
        points = points - center
        measured = points @ self.metric.to(points)
        lengths = (measured * points).sum(dim=1)

        def weights(some: Tensor) -> Tensor:
            # Without the term of z alone, which the scaling to [0, 1] takes off.
            distance = lengths - 2 * (some - center) @ measured.t()
            low, high = distance.amin(dim=1, keepdim=True), distance.amax(dim=1, keepdim=True)
            scaled = (distance - low) / (high - low).clamp(min=torch.finfo(distance.dtype).tiny)
            found: Tensor = (-scaled / (2 * self.width**2)).softmax(dim=1)
            return found

        return weights
