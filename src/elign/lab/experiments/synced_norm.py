"""Batch norms that see the batches of all processes, so that more of them give the same model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def synchronise(module: nn.Module, device: torch.device) -> None:
    """Make every batch norm of a module take mean and variance over all processes; in place, weights stay the same."""
    if device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return
    # torch's own are for GPUs only.
    for part in module.modules():
        if type(part) is nn.BatchNorm2d:
            part.__class__ = SyncedNorm


class SyncedNorm(nn.BatchNorm2d):
    """A batch norm whose statistics in training are those of all processes, each of which has as many images."""

    def forward(self, input: Tensor) -> Tensor:
        """Feature maps to feature maps."""
        if not self.training:
            return super().forward(input)
        x = input.float()
        count = x.numel() // x.shape[1] * torch.distributed.get_world_size()
        mean = _sum_over_all(x.sum((0, 2, 3))) / count
        centred = x - mean.view(1, -1, 1, 1)
        # In a second step, not as the mean of squares less the square of the mean, which loses digits.
        variance = _sum_over_all(centred.square().sum((0, 2, 3))) / count
        self._remember(mean.detach(), variance.detach() * count / max(count - 1, 1))
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.momentum is not None  # noqa: S101  (for the type checker: no backbone has another)
        for kept, new in ((self.running_mean, mean), (self.running_var, variance)):
            assert kept is not None  # noqa: S101  (likewise)
            kept.lerp_(new, self.momentum)
        assert self.num_batches_tracked is not None  # noqa: S101  (likewise)
        self.num_batches_tracked.add_(1)


class _Sum(torch.autograd.Function):
    """The sum over all processes; what each of them makes of it has a gradient here."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return _all_reduced(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _all_reduced(gradient)


def _sum_over_all(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


def _all_reduced(values: Tensor) -> Tensor:
    values = values.clone()
    torch.distributed.all_reduce(values)
    return values
