"""An energy of pairs, E(current, previous): a trial. Low for true pairs; alignment descends it in the second one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elign import Aligner, FitReport
from elign.aligner import Progress

_BATCH, _RATE, _STEPS, _STEP_SIZE, _DECAY = 128, 1e-4, 30, 0.1, 0.89


class PairedEnergy(Aligner):
    """`EnergyAligner` with its published options and so many iterations; the energy also sees where the latent is now.

    Unlike ELI's, such an energy knows which previous latent belongs to which current one.

    Args:
        iterations: Of its training.
    """

    def __init__(self, iterations: int = 1500) -> None:
        super().__init__()
        self.iterations = iterations

    def config(self) -> dict[str, Any]:
        """What was chosen."""
        return {"iterations": self.iterations}

    def _build(self, dim: int) -> None:
        super()._build(dim)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.energy = nn.Sequential(
                nn.Linear(2 * dim, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
            )

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        parameters = list(self.energy.parameters())
        optimizer = torch.optim.RMSprop(parameters, lr=_RATE)
        average = [parameter.detach().clone() for parameter in parameters]
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.iterations):
            rows = torch.randint(len(z_cur), (_BATCH,), generator=generator)
            now, before = z_cur[rows], z_prev[rows]
            made = self._move(now, None)
            loss = self.energy(torch.cat([now, before], 1)).mean() - self.energy(torch.cat([now, made], 1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for kept, parameter in zip(average, parameters, strict=True):
                kept.lerp_(parameter.detach(), 1 - _DECAY)
        with torch.no_grad():
            for kept, parameter in zip(average, parameters, strict=True):
                parameter.copy_(kept)
        return FitReport(rows=len(z_cur), dim=z_cur.shape[1])

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        moved = rows.clone()
        with torch.enable_grad():
            for _ in range(_STEPS):
                moved.requires_grad_()
                energy = self.energy(torch.cat([rows, moved], 1)).sum()
                (gradient,) = torch.autograd.grad(energy, moved)
                moved = (moved - _STEP_SIZE * gradient).detach()
        return moved
