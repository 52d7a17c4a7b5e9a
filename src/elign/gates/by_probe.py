"""A gate that learns to tell old latents from new ones: a logistic probe, fitted by Newton's method."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.gates.base import Gate, Head
from elign.utils.errors import LatentError, OptionError
from elign.utils.fitted import register
from elign.utils.tensors import check_rows

_MAX_STEPS = 50


@register
class ByProbe(Gate):
    """Aligns what a logistic probe on the latents takes for old; needs latents of some old samples (exemplars).

    Args:
        penalty: Weight of the squared norm of the probe's coefficients (on standardised latents).
        soft: Weight each row by its probability of being old instead of a yes or no at one half.

    Example:
        >>> import torch
        >>> from elign import ByProbe
        >>> z_old, z_new = torch.randn(50, 8) + 2, torch.randn(200, 8) - 2
        >>> gate = ByProbe().fit(z_old, z_new)
        >>> gate(z_old).float().mean().item() > 0.9
        True
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, *, penalty: float = 1e-2, soft: bool = False) -> None:
        super().__init__()
        if not (math.isfinite(penalty) and penalty > 0):
            raise OptionError(f"penalty must be a finite number > 0, got {penalty!r}")
        self.penalty = penalty
        self.soft = soft

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("weight", torch.zeros(dim))
        self.register_buffer("bias", torch.zeros(()))

    def fit(self, z_old: Tensor, z_new: Tensor) -> Self:
        """Learn to tell old from new latents of the current model; both groups weigh the same, whatever their sizes."""
        check_rows(z_old, "z_old")
        check_rows(z_new, "z_new")
        if z_old.shape[1] != z_new.shape[1]:
            raise LatentError(f"z_old has dimension {z_old.shape[1]}, z_new {z_new.shape[1]}: same model, same layer?")
        with torch.autocast(z_old.device.type, enabled=False):
            weight, bias = fit_logistic(z_old.detach(), z_new.detach().to(z_old.device), penalty=self.penalty)
        self._set(z_new.shape[1], weight=weight, bias=bias)
        return self

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take rows on the old side of the probe, or the probability of it."""
        score = z.float() @ self.weight.to(z.device, torch.float32) + self.bias.to(z.device)
        return score.sigmoid() if self.soft else score > 0


def fit_logistic(z_old: Tensor, z_new: Tensor, *, penalty: float) -> tuple[Tensor, Tensor]:
    """Return coefficients and intercept of `P(old | z) = sigmoid(w.z + b)`.

    Minimises `0.5 * mean_old log(1 + exp(-s)) + 0.5 * mean_new log(1 + exp(s)) + penalty / 2 * ||v||^2` with
    `s = v.x + c` on standardised latents x, so that a handful of exemplars counts as much as a whole task. Convex and
    small (D + 1 unknowns): Newton's method with a halved step where needed, in float64.
    """
    # On the CPU, since not every accelerator has float64; the problem is small.
    z = torch.cat([z_old.cpu(), z_new.cpu()]).double()
    center, scale = z.mean(dim=0), z.std(dim=0, correction=0)
    # A dimension that varies by no more than its own rounding, or too little for a weight in float32, says nothing: an
    # infinite scale gives it no weight.
    scale = scale.masked_fill(scale <= (1e-9 * center.abs()).clamp(min=1e-30), torch.inf)
    x = torch.cat([(z - center) / scale, z.new_ones(len(z), 1)], dim=1)
    # s enters with the sign of the group: rows of new latents are negated once.
    x[len(z_old) :].neg_()
    share = torch.cat([z.new_full((len(z_old),), 0.5 / len(z_old)), z.new_full((len(z_new),), 0.5 / len(z_new))])
    ridge = torch.full_like(x[0], penalty)
    # The intercept is all but free: a trace of penalty keeps the system solvable when one constant explains all.
    ridge[-1] = 1e-9

    def objective(v: Tensor) -> Tensor:
        return (share * torch.nn.functional.softplus(-(x @ v))).sum() + 0.5 * (ridge * v * v).sum()

    v = torch.zeros_like(ridge)
    for _ in range(_MAX_STEPS):
        p = torch.sigmoid(-(x @ v))
        gradient = -(x.t() @ (share * p)) + ridge * v
        if gradient.abs().max() < 1e-9:
            break
        curvature = (x.t() * (share * p * (1 - p))) @ x + torch.diag(ridge)
        step, before = torch.linalg.solve(curvature, gradient), objective(v)
        while objective(v - step) > before and step.abs().max() > 1e-12:
            step = step / 2
        v = v - step
    weight = v[:-1] / scale
    return weight.float(), (v[-1] - (weight * center).sum()).float()
