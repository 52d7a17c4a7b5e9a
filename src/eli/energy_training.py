"""Training of the energy model by contrastive divergence on cached pairs of latents (the paper's Algorithm 1).

Imported by `energy_aligner.py` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from eli.aligner import Progress
from eli.energy import EnergyModel
from eli.hidden_chain import HiddenChain
from eli.langevin import Schedule

_ALPHA, _EPSILON = 0.99, 1e-8  # of RMSprop: torch's defaults, which the authors use
_PROGRESS_EVERY = 50


@dataclass(frozen=True)
class Training:
    """Options of a training; see `EnergyAligner`."""

    iterations: int
    learning_rate: float
    batch_size: int
    ema_decay: float
    schedule: Schedule


def train_energy(
    energy: EnergyModel,
    z_prev: Tensor,
    z_cur: Tensor,
    training: Training,
    *,
    generator: torch.Generator,
    progress: Progress | None,
) -> tuple[EnergyModel, Tensor]:
    """Lower the energy of previous latents, raise it where chains from current latents end.

    Each iteration minimises `mean E(z_prev) - mean E(z_sampled)` with RMSprop, where z_sampled is the end of a chain
    from z_cur under the present weights, taken as a constant.

    Returns:
        The exponential moving average of the weights, which is what inference uses, and the loss of each iteration.
    """
    averaged = deepcopy(energy)
    rmsprop = _RMSprop(energy, averaged, training)
    losses = z_cur.new_zeros(training.iterations)
    with torch.inference_mode(False), torch.no_grad():
        for step, rows in enumerate(_batches(len(z_cur), training, generator, z_cur.device), start=1):
            losses[step - 1], gradients = _gradients(energy, z_prev[rows], z_cur[rows], training.schedule, generator)
            rmsprop.step(gradients)
            if progress and (step % _PROGRESS_EVERY == 0 or step == training.iterations):
                progress(step, training.iterations, float(losses[step - 1]))
    return averaged, losses.cpu()


def _gradients(
    energy: EnergyModel, z_prev: Tensor, z_cur: Tensor, schedule: Schedule, generator: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """Loss of one batch, and its gradient for each parameter.

    The first layer's gradient is written by hand: the chain already knows that layer's output for the samples, and so
    each of the large products (with the latent dimension) is done once.
    """
    _, *above = energy.linear_maps()
    chain = HiddenChain(energy, step=schedule.step, device=z_cur.device, dtype=z_cur.dtype)
    sampled = torch.empty_like(z_cur)
    with torch.inference_mode():  # cheaper calls than under no_grad; `cat` then makes an ordinary tensor of it
        noise = chain.noise(schedule.kick, generator)
        hidden = [chain.enter(z_prev), chain.walk(z_cur, schedule.steps, noise, sampled.unsqueeze(0))]
    u = torch.cat(hidden)
    with torch.enable_grad():
        energies = energy.above_first(u.requires_grad_())
        loss = energies[: len(z_prev)].mean() - energies[len(z_prev) :].mean()
        at_u, *gradients = torch.autograd.grad(loss, [u, *(p for pair in above for p in pair)])
    at_prev, at_sampled = at_u[: len(z_prev)], at_u[len(z_prev) :]
    at_weight = torch.addmm(at_prev.t() @ z_prev, at_sampled.t(), sampled)
    return loss.detach(), [at_weight, at_u.sum(dim=0), *gradients]


class _RMSprop:
    """RMSprop with a moving average of the weights.

    `torch.optim` is not used: making its first optimizer imports torch's compiler, which takes longer (about 2 s) than
    a whole fit at latent dimension 64.
    """

    def __init__(self, energy: EnergyModel, averaged: EnergyModel, training: Training) -> None:
        self._slots = [
            (p, a, torch.zeros_like(p)) for p, a in zip(energy.parameters(), averaged.parameters(), strict=True)
        ]
        self._training = training

    def step(self, gradients: list[Tensor]) -> None:
        rate, keep = self._training.learning_rate, self._training.ema_decay
        for (weight, average, square), gradient in zip(self._slots, gradients, strict=True):
            square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
            weight.addcdiv_(gradient, square.sqrt().add_(_EPSILON), value=-rate)
            average.lerp_(weight, 1 - keep)


def _batches(rows: int, training: Training, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """Row numbers of each iteration: shuffled passes without the incomplete last batch, as the authors' loader."""
    size = min(rows, training.batch_size)
    left: list[Tensor] = []
    for _ in range(training.iterations):
        if not left:
            order = torch.randperm(rows, generator=generator).to(device)
            left = list(order[: rows // size * size].view(-1, size))
        yield left.pop()
