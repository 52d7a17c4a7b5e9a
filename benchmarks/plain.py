"""The reference: ELI as the authors run it, in plain autograd. What every speed here is a ratio to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn


def plain_align(energy: nn.Module, z: Tensor, *, steps: int = 30, step_size: float = 0.1) -> Tensor:
    """Latents as parameters of an SGD optimizer, one forward and one backward pass for each step."""
    z = z.detach().clone().requires_grad_()
    optimizer = torch.optim.SGD([z], lr=step_size)
    for _ in range(steps):
        optimizer.zero_grad()
        energy(z).sum().backward()
        optimizer.step()
    return z.detach()


def plain_fit(
    energy: nn.Module,
    batch: Callable[[], tuple[Tensor, Tensor]],
    *,
    iterations: int,
    ema_decay: float = 0.89,
) -> nn.Module:
    """Algorithm 1 with torch.optim.RMSprop; `batch` gives previous and current latents of the same inputs."""
    optimizer = torch.optim.RMSprop(energy.parameters(), lr=1e-4, alpha=0.99, eps=1e-8)
    averaged = deepcopy(energy)
    for _ in range(iterations):
        z_prev, z_cur = batch()
        energy.requires_grad_(False)
        sampled = plain_align(energy, z_cur)
        energy.requires_grad_(True)
        loss = energy(z_prev).mean() - energy(sampled).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, weight in zip(averaged.parameters(), energy.parameters(), strict=True):
                average.lerp_(weight, 1 - ema_decay)
    return averaged


def shuffled_rows(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of batches, pass after pass, in the order in which `elign` draws them at the same seed."""
    while True:
        order = torch.randperm(rows, generator=generator)
        yield from reversed(order[: rows // size * size].view(-1, size))
