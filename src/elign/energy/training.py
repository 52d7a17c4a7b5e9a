"""Training of the energy model by contrastive divergence on cached pairs of latents (the paper's Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.energy.model import EnergyModel
from elign.energy.sampler import HiddenChain, Schedule
from elign.utils.tensors import Progress

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
    size = min(len(z_cur), training.batch_size)
    pairs = z_cur.new_empty(2 * size, z_cur.shape[1])
    # No autograd at all, hence inference mode: its calls are cheaper. The weights stay ordinary tensors.
    with torch.inference_mode():
        for step, rows in enumerate(_batches(len(z_cur), size, training.iterations, generator, z_cur.device), start=1):
            torch.index_select(z_prev, 0, rows, out=pairs[:size])
            torch.index_select(z_cur, 0, rows, out=pairs[size:])
            losses[step - 1], gradients = _gradients(energy, pairs, training.schedule, generator)
            rmsprop.step(gradients)
            if progress and (step % _PROGRESS_EVERY == 0 or step == training.iterations):
                progress(step, training.iterations, float(losses[step - 1]))
    return averaged, losses.cpu()


def _gradients(
    energy: EnergyModel, pairs: Tensor, schedule: Schedule, generator: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """Loss of one batch, and its gradient for each parameter, in the order of `energy.parameters()`.

    Written by hand, since the chain already has what autograd would compute again: the first layer's output for the
    samples, and their move as a sum of few-dimensional gradients. Only two large products (with the latent dimension)
    are left: one into the first layer and one for its gradient.

    Args:
        energy: The model.
        pairs: Previous latents in the first half of the rows, current ones in the second: (2 B, D).
        schedule: Of the chains.
        generator: Of their noise.
    """
    size = len(pairs) // 2
    chain = HiddenChain(energy, step=schedule.step, device=pairs.device, dtype=pairs.dtype)
    noise = chain.noise(schedule.kick, generator)
    u = chain.enter(pairs)
    total = chain.walk(u[size:], schedule.steps, noise)

    inputs, above = [u], energy.linear_maps()[1:]
    active = []
    for weight, bias in above:
        active.append(F.leaky_relu(inputs[-1], energy.slope))
        inputs.append(F.linear(active[-1], weight, bias))
    loss = inputs[-1][:size].mean() - inputs[-1][size:].mean()

    at = pairs.new_full((2 * size, 1), 1 / size)
    at[size:].neg_()
    gradients: list[Tensor] = []
    for below, value, (weight, _) in zip(inputs[-2::-1], reversed(active), reversed(above), strict=True):
        gradients = [at.t() @ value, at.sum(dim=0), *gradients]
        at = torch.ops.aten.leaky_relu_backward(at @ weight, below, energy.slope, False)
    at_first = at.t() @ pairs
    chain.add_moves(at_first, at[size:], total, noise)
    return loss, [at_first, at.sum(dim=0), *gradients]


class _RMSprop:
    """RMSprop with a moving average of the weights.

    `torch.optim` is not used: making the first optimizer of a process imports torch's compiler, which takes about 2 s.
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


def _batches(
    rows: int, size: int, iterations: int, generator: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Row numbers of each iteration: shuffled passes without the incomplete last batch, as the authors' loader."""
    left: list[Tensor] = []
    for _ in range(iterations):
        if not left:
            order = torch.randperm(rows, generator=generator, device=generator.device).to(device)
            left = list(order[: rows // size * size].view(-1, size))
        yield left.pop()
