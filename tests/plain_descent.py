"""What tests of Langevin descent compare with: gradient descent by autograd, as the definition says it."""

from __future__ import annotations

import torch
from torch import nn

from elign import EnergyModel


class Plain(nn.Module):
    """Hides that it is an `EnergyModel`, so that `descend` differentiates it."""

    def __init__(self, energy: EnergyModel) -> None:
        super().__init__()
        self.inside = energy

    def forward(self, z):
        return self.inside(z)


def by_hand(energy, z, *, steps, step_size, half_step):
    """The definition: each state of `z <- z - step * dE/dz`."""
    walk = [z]
    for _ in range(steps):
        start = walk[-1].clone().requires_grad_()
        (slope,) = torch.autograd.grad(energy(start).sum(), start)
        walk.append(start.detach() - (step_size / 2 if half_step else step_size) * slope)
    return torch.stack(walk)
