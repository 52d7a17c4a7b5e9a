"""A logistic probe between two groups of latents, by Newton's method."""

from __future__ import annotations

import torch
from torch import Tensor

_MAX_STEPS = 50


def fit_logistic(z_old: Tensor, z_new: Tensor, *, penalty: float) -> tuple[Tensor, Tensor]:
    """Coefficients and intercept of `P(old | z) = sigmoid(w.z + b)`.

    Minimises `0.5 * mean_old log(1 + exp(-s)) + 0.5 * mean_new log(1 + exp(s)) + penalty / 2 * ||v||^2` with
    `s = v.x + c` on standardised latents x; each group weighs one half, so a handful of exemplars counts as much as a
    whole task. Convex and small (D + 1 unknowns): Newton's method with a halved step where needed, in float64.
    """
    # On the CPU, since not every accelerator has float64; the problem is small.
    z = torch.cat([z_old.cpu(), z_new.cpu()]).double()
    center, scale = z.mean(dim=0), z.std(dim=0, correction=0)
    # A dimension that varies by no more than its own rounding says nothing: an infinite scale gives it no weight.
    scale = scale.masked_fill(scale <= 1e-9 * center.abs(), torch.inf)
    x = torch.cat([(z - center) / scale, z.new_ones(len(z), 1)], dim=1)
    sign = torch.cat([z.new_ones(len(z_old)), -z.new_ones(len(z_new))])
    share = torch.cat([z.new_full((len(z_old),), 0.5 / len(z_old)), z.new_full((len(z_new),), 0.5 / len(z_new))])
    ridge = torch.full_like(x[0], penalty)
    # The intercept is all but free: a trace of penalty keeps the system solvable when one constant explains all.
    ridge[-1] = 1e-9

    def objective(v: Tensor) -> Tensor:
        return (share * torch.nn.functional.softplus(-sign * (x @ v))).sum() + 0.5 * (ridge * v * v).sum()

    v = torch.zeros_like(ridge)
    for _ in range(_MAX_STEPS):
        p = torch.sigmoid(-sign * (x @ v))
        gradient = -(x.t() @ (share * sign * p)) + ridge * v
        if gradient.abs().max() < 1e-9:
            break
        curvature = (x.t() * (share * p * (1 - p))) @ x + torch.diag(ridge)
        step, before = torch.linalg.solve(curvature, gradient), objective(v)
        while objective(v - step) > before and step.abs().max() > 1e-12:
            step = step / 2
        v = v - step
    weight = v[:-1] / scale
    return weight.float(), (v[-1] - (weight * center).sum()).float()
