"""AANet: LUCIR's losses on two branches of different plasticity (Y. Liu et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.learners.base import LEARNERS
from elign.lab.learners.lucir import Lucir
from elign.lab.models.classifier import Plasticity, TwoBranch

_MOMENTUM, _DECAY = 0.9, 5e-4  # of the shares' SGD, as published


@LEARNERS.register("aanet")
class AANet(Lucir):
    """LUCIR on a `TwoBranch` backbone from the second task on; see there for the kinds of branches.

    After each epoch the shares alpha take a pass of SGD with rate `fusion_rate` over at most `fusion_batches` batches
    of a balanced set, the networks in evaluation mode. The published rate of 1e-8 hardly moves them; 0 skips it.
    Unlike the authors' code, gradients of the networks' own training do not add up in the shares.
    `less_forget=0` is AANet without its explicit regularisation of latents.
    """

    class Options(Lucir.Options):
        """The published values."""

        branch_one: Plasticity = "free"
        branch_two: Plasticity = "scaled"
        fusion_rate: NonNegativeFloat = 1e-8
        fusion_batches: PositiveInt = 501

    options: Options

    def _grow_backbone(self) -> None:
        backbone = self.model.backbone
        if not isinstance(backbone, TwoBranch):
            backbone = TwoBranch(backbone, one=self.options.branch_one, two=self.options.branch_two)
            self.model.backbone = backbone
        # Part of the state, since a task that is interrupted must go on with the same momentum.
        self.register_buffer("fusion_momentum", torch.zeros_like(backbone.alpha))

    def groups(self) -> list[nn.Parameter]:
        """Return all that trains, without the shares: they have their own steps."""
        backbone = self.model.backbone
        shares = backbone.alpha if isinstance(backbone, TwoBranch) else None
        return [p for p in super().groups() if p is not shares]

    def end_epoch(self, balanced: Callable[[], Iterable[tuple[Tensor, Tensor]]], *, rate: float) -> None:
        """Run one pass of SGD for the shares of the branches."""
        backbone = self.model.backbone
        if not isinstance(backbone, TwoBranch) or not self.options.fusion_rate:
            return
        was_training = self.training
        self.eval()
        momentum: Tensor = self.get_buffer("fusion_momentum")
        for images, labels in islice(balanced(), self.options.fusion_batches):
            loss = F.cross_entropy(self.model(images), labels)
            (gradient,) = torch.autograd.grad(loss, [backbone.alpha])
            with torch.no_grad():
                momentum.mul_(_MOMENTUM).add_(gradient + _DECAY * backbone.alpha)
                backbone.alpha.sub_(self.options.fusion_rate * rate * momentum)
        self.train(was_training)
