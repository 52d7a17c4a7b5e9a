"""Training of the energy model by contrastive divergence on cached pairs of latents (the paper's Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.energy.model import EnergyModel
from elign.energy.sampler import HiddenChain, Schedule
from elign.utils.fitted import Progress, ProgressLine

_ALPHA, _EPSILON = 0.99, 1e-8  # of RMSprop: torch's defaults, which the authors use
_PROGRESS_EVERY = 50


def train_energy(
    energy: EnergyModel,
    z_prev: Tensor,
    z_cur: Tensor,
    schedule: Schedule,
    *,
    iterations: int,
    learning_rate: float,
    batch_size: int,
    ema_decay: float,
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
    # By hand: the first optimizer of a process imports torch's compiler, which takes about 2 s.
    state = [(p, a, torch.zeros_like(p)) for p, a in zip(energy.parameters(), averaged.parameters(), strict=True)]
    losses = z_cur.new_zeros(iterations)
    size = min(len(z_cur), batch_size)
    pairs = z_cur.new_empty(2 * size, z_cur.shape[1])
    # No autograd at all, hence inference mode: its calls are cheaper. The weights stay ordinary tensors.
    with torch.inference_mode(), ProgressLine("energy model, iteration") as line:
        show = progress or line
        for step, rows in enumerate(_batches(z_cur, size, iterations, generator), start=1):
            torch.index_select(z_prev, 0, rows, out=pairs[:size])
            torch.index_select(z_cur, 0, rows, out=pairs[size:])
            losses[step - 1], gradients = _gradients(energy, pairs, schedule, generator)
            for (weight, average, square), gradient in zip(state, gradients, strict=True):
                square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
                weight.addcdiv_(gradient, square.sqrt().add_(_EPSILON), value=-learning_rate)
                average.lerp_(weight, 1 - ema_decay)
            if step % _PROGRESS_EVERY == 0 or step == iterations:
                show(step, iterations, float(losses[step - 1]))
    return averaged, losses.cpu()


def _gradients(
    energy: EnergyModel, pairs: Tensor, schedule: Schedule, generator: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of a batch, and its gradient for each of `energy.parameters()`.

    Written by hand, since the chain already has what autograd would compute again: the first layer's output for the
    samples, and their move as a sum of few-dimensional gradients. Only two large products (with the latent dimension)
    are left: one into the first layer and one for its gradient. `pairs` (2 B, D) are previous latents in the first
    half of the rows, current ones in the second.
    """
    size = len(pairs) // 2
    chain = HiddenChain(energy, schedule, pairs)
    noise = chain.noise(generator)
    u = chain.enter(pairs)
    total = chain.walk(u[size:], noise)

    inputs, active, above = [u], [], energy.linear_maps()[1:]
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


def _batches(z: Tensor, size: int, iterations: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield numbers of rows of `z`: shuffled passes without the incomplete last batch, as the authors' loader."""
    left: list[Tensor] = []
    for _ in range(iterations):
        if not left:
            order = torch.randperm(len(z), generator=generator, device=generator.device).to(z.device)
            left = list(order[: len(z) // size * size].view(-1, size))
        yield left.pop()
