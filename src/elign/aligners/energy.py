"""ELI itself: an aligner that learns an energy of the previous model's latents and lets latents descend it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.aligners.base import Aligner, FitReport, TracedAligner
from elign.energy.model import EnergyModel, check_widths
from elign.energy.sampler import HiddenChain, Schedule, descend
from elign.utils.errors import LatentError, OptionError
from elign.utils.fitted import Progress, ProgressLine, register
from elign.utils.tensors import check_finite, check_number, check_seed, check_whole

_MOST_STEPS, _MOST_ITERATIONS = 100_000, 10_000_000
_ALPHA, _EPSILON = 0.99, 1e-8  # of RMSprop: torch's defaults, which the authors use
_PROGRESS_EVERY = 50


@register
class EnergyAligner(Aligner):
    """Energy-based latent aligner (ELI, CVPR 2022); the defaults are the paper's for CIFAR-100.

    Learning (Algorithm 1): minimise `mean E(z_prev) - mean E(z_sampled)` by RMSprop, where z_sampled ends a Langevin
    chain that starts at z_cur and is taken as a constant: energy becomes low where the previous model put the task's
    data, high where the current one does.
    Alignment (Algorithm 2): `z <- z - step_size * dE/dz`, `steps` times, with the moving average of the weights.

    Args:
        hidden: Widths of the energy model's hidden layers; `()` makes alignment a constant shift.
        learning_rate: Of RMSprop.
        batch_size: Rows per iteration; with fewer rows than this, all of them.
        steps: Langevin steps, in training and in alignment.
        noise: Langevin noise in units of sqrt(step_size); 0 as in the authors' code, 1 as in the paper's Eq. 4.
        half_step: Half the gradient's step, as in the paper's Eq. 4.
        ema_decay: Decay of the moving average of the weights.
        seed: Of initial weights, batches and noise: equal seeds give equal fits, bit for bit, on one machine.

    Attributes:
        energy: The fitted `EnergyModel`; `aligner.energy(z)` gives energies.
        report: The `FitReport` of the last fit (not stored in files).

    Example:
        >>> import torch, elign
        >>> z_prev = torch.randn(512, 16)
        >>> z_cur = z_prev + 1.0                                          # every latent drifted by 1
        >>> aligner = elign.EnergyAligner(iterations=200).fit_latents(z_prev, z_cur)
        >>> aligner.report.energy_previous < aligner.report.energy_current
        True
        >>> aligner.align(z_cur).shape
        torch.Size([512, 16])
    """

    energy: EnergyModel

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (64, 64),
        iterations: int = 1500,
        learning_rate: float = 1e-4,
        batch_size: int = 128,
        steps: int = 30,
        step_size: float = 0.1,
        noise: float = 0.0,
        half_step: bool = False,
        ema_decay: float = 0.89,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.hidden = check_widths(hidden)
        self.iterations = check_whole(iterations, "iterations", least=1, most=_MOST_ITERATIONS)
        self.learning_rate = check_number(learning_rate, "learning_rate", positive=True)
        self.batch_size = check_whole(batch_size, "batch_size", least=1)
        self.steps = check_whole(steps, "steps", least=0, most=_MOST_STEPS)
        self.step_size, self.noise, self.half_step = step_size, noise, half_step
        Schedule.checked(**self._walk())  # raises if an option is out of range
        if not 0 <= ema_decay < 1:
            raise OptionError(f"ema_decay must be in [0, 1), got {ema_decay!r}")
        self.ema_decay = ema_decay
        self.seed = check_seed(seed)
        self.energy = None  # type: ignore[assignment]  # until the fit

    def trajectory(self, z: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the walk of each latent to where `align` puts it, (steps + 1, ..., D); index 0 is unmoved."""
        self.require_fitted()
        check_finite(z, "latents")
        return self._move(z, generator, trajectory=True)

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.energy = EnergyModel(dim, self.hidden, generator=torch.Generator().manual_seed(self.seed))

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        # One stream: the batches continue where the initial weights end.
        generator = torch.Generator().manual_seed(self.seed)
        energy = EnergyModel(z_cur.shape[1], self.hidden, generator=generator).to(z_cur.device, z_cur.dtype)
        self.energy = deepcopy(energy)  # the moving average of its weights, which inference uses
        # By hand: the first optimizer of a process imports torch's compiler, which takes about 2 s.
        weights = zip(energy.parameters(), self.energy.parameters(), strict=True)
        state = [(weight, average, torch.zeros_like(weight)) for weight, average in weights]
        loss = z_cur.new_zeros(self.iterations)
        size = min(len(z_cur), self.batch_size)
        pairs = z_cur.new_empty(2 * size, z_cur.shape[1])
        schedule = Schedule.checked(**self._walk())
        # No autograd at all, hence inference mode: its calls are cheaper. The weights stay ordinary tensors.
        with torch.inference_mode(), ProgressLine("energy model, iteration") as line:
            show = progress or line
            for step, rows in enumerate(_batches(z_cur, size, self.iterations, generator), start=1):
                torch.index_select(z_prev, 0, rows, out=pairs[:size])
                torch.index_select(z_cur, 0, rows, out=pairs[size:])
                loss[step - 1], gradients = _gradients(energy, pairs, schedule, generator)
                for (weight, average, square), gradient in zip(state, gradients, strict=True):
                    square.mul_(_ALPHA).addcmul_(gradient, gradient, value=1 - _ALPHA)
                    weight.addcdiv_(gradient, square.sqrt().add_(_EPSILON), value=-self.learning_rate)
                    average.lerp_(weight, 1 - self.ema_decay)
                if step % _PROGRESS_EVERY == 0 or step == self.iterations:
                    show(step, self.iterations, float(loss[step - 1]))
        if not loss.isfinite().all():
            raise LatentError(
                "the energies became NaN or infinite while learning: the latents are too large (scale them), or "
                f"learning_rate={self.learning_rate} or step_size={self.step_size} is"
            )
        return FitReport(rows=len(z_cur), dim=z_cur.shape[1], loss=loss.cpu())

    def _move(self, rows: Tensor, generator: torch.Generator | None, *, trajectory: bool = False) -> Tensor:
        return descend(self.energy, rows, **self._walk(), trajectory=trajectory, generator=generator)

    def _walk(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("steps", "step_size", "noise", "half_step")}

    def traceable(self) -> nn.Module:
        """Return the noise-free chain, unrolled."""
        if type(self)._move is not EnergyAligner._move:
            return super().traceable()
        if type(self.energy).forward is not EnergyModel.forward:
            raise OptionError(
                f"only the chain of an EnergyModel can be exported, not of a {type(self.energy).__name__}"
            )
        chain = HiddenChain(self.energy, Schedule.checked(**self._walk()), self.energy.linear_maps()[0][0])
        return TracedAligner(self, chain.unrolled)

    def _row_values(self, z_prev: Tensor, z_cur: Tensor, aligned: Tensor) -> dict[str, Tensor]:
        previous, current = (z_cur, z_prev) if self.is_forward else (z_prev, z_cur)
        latents = {"energy_previous": previous, "energy_current": current, "energy_aligned": aligned}
        energies = {name: self.energy(z) for name, z in latents.items()}
        return super()._row_values(z_prev, z_cur, aligned) | energies


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
