"""Langevin descent of latents down an energy: the sampler that trains the energy model and aligns latents.

`HiddenChain` is an exact fast form for `EnergyModel`: it runs the chain in the space of the first hidden layer. With
u = W1 z + b1, one step z <- z - s W1^T g(u) is u <- u - s (W1 W1^T) g(u). So the whole chain runs on u with the Gram
matrix W1 W1^T, the gradients g are summed, and z moves once at the end: z_L = z_0 - s W1^T (g_0 + ... + g_{L-1}). The
cost of a step does not depend on the latent dimension; no autograd graph is needed. Other energies are differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.energy.model import EnergyModel
from elign.utils.errors import LatentError
from elign.utils.tensors import check_number, check_whole, compute_dtype, standard_normal

# Rows that an energy other than `EnergyModel` sees at once: bounds the memory of its graph.
_BLOCK_ROWS = 2048
# Numbers in one working buffer: a handful of buffers stays in the outer caches, and each operation is long enough to
# hide the cost of calling it (measured; see docs/decisions.md).
_BLOCK_NUMBERS = 131_072
_LEAST_ROWS = 256

# The public names of these two operations cannot write into a given buffer.
_leaky_relu = torch.ops.aten.leaky_relu.out
_times_slope = torch.ops.aten.leaky_relu_backward.grad_input


@dataclass(frozen=True)
class Schedule:
    """How a chain walks: `z <- z - step * dE/dz + kick * N(0, 1)`, `steps` times."""

    steps: int
    step: float
    kick: float

    @classmethod
    def checked(cls, steps: int, step_size: float, noise: float, half_step: bool) -> Schedule:
        """Make one from the options of `descend`; check their ranges."""
        check_number(step_size, "step_size", positive=True)
        kick = check_number(noise, "noise") * math.sqrt(step_size)
        return cls(check_whole(steps, "steps", least=0), step_size / 2 if half_step else step_size, kick)


def descend(
    energy: nn.Module,
    z: Tensor,
    *,
    steps: int = 30,
    step_size: float = 0.1,
    noise: float = 0.0,
    half_step: bool = False,
    trajectory: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Let each latent walk downhill on an energy.

    One step is `z <- z - step_size * dE/dz`, each row on its own. This noise-free full step is what the authors' code
    runs, in training and at inference; the paper's Eq. 4 is `half_step=True, noise=1.0`, that is
    `z <- z - step_size / 2 * dE/dz + sqrt(step_size) * N(0, 1)`.

    Args:
        energy: An `EnergyModel`, which takes an exact shortcut through its first hidden layer, or any other module that
            maps `(N, D)` to `(N,)` or `(N, 1)` row by row, which is differentiated. Its parameters get no gradient.
        z: Latents `(..., D)` of any floating type, on any device.
        steps: Number of steps.
        step_size: Length of a step per unit of gradient.
        noise: Scale of the Gaussian noise, in units of `sqrt(step_size)`; 0 for none.
        half_step: Halve the gradient's step, as in the paper's Eq. 4.
        trajectory: Return the whole walk `(steps + 1, ..., D)`, from the start (index 0) to the result (index -1).
            With noise, the walk is another draw from the same distribution than the call without `trajectory`.
        generator: Source of the noise; the global random state is untouched when it is given.

    Returns:
        The moved latents, detached, with the dtype and device of `z`.

    Example:
        >>> import torch, elign
        >>> energy, z = elign.EnergyModel(8), torch.randn(4, 8)
        >>> bool((energy(elign.descend(energy, z, step_size=0.01)) < energy(z)).all())
        True
        >>> elign.descend(energy, z, steps=30, trajectory=True).shape
        torch.Size([31, 4, 8])
    """
    schedule = Schedule.checked(steps, step_size, noise, half_step)
    if not z.is_floating_point() or z.ndim < 1:
        raise LatentError(f"latents must be a floating-point tensor (..., D), got {z.dtype} of shape {tuple(z.shape)}")
    rows = z.detach().reshape(-1, z.shape[-1])
    once = replace(schedule, steps=1) if trajectory else schedule
    with torch.autocast(z.device.type, enabled=False):
        # A subclass with an energy of its own must not be taken for the one that the shortcut knows.
        if isinstance(energy, EnergyModel) and type(energy).forward is EnergyModel.forward:
            if rows.shape[1] != energy.dim:
                raise LatentError(
                    f"this energy model takes latents of dimension {energy.dim}, got {rows.shape[1]}: "
                    "was it fitted for another layer?"
                )
            move = partial(HiddenChain(energy, once, rows).run, full=trajectory)
        else:
            move = partial(_autograd, energy, once)
        if not trajectory:
            return move(rows, generator).reshape(z.shape)
        # Half precision would lose small steps.
        states = [rows.to(compute_dtype(rows))]
        for _ in range(schedule.steps):
            states.append(move(states[-1], generator))
    with torch.inference_mode(False):
        return torch.stack(states).to(z.dtype).reshape(len(states), *z.shape)


def _autograd(energy: nn.Module, schedule: Schedule, rows: Tensor, generator: torch.Generator | None) -> Tensor:
    weight = next(energy.parameters(), None)
    dtype = compute_dtype(rows) if weight is None else weight.dtype
    # Leaving inference mode needs a copy: its tensors can never be differentiated.
    with torch.inference_mode(False), torch.enable_grad():
        result = torch.empty_like(rows)
        for block in _blocks(rows, _BLOCK_ROWS):
            z = rows[block].clone().to(dtype)
            for _ in range(schedule.steps):
                z.requires_grad_()
                energies = energy(z)
                if energies.numel() != len(z):
                    raise LatentError(f"the energy must give one value per row, got shape {tuple(energies.shape)}")
                z = z.detach() - schedule.step * torch.autograd.grad(energies.sum(), z)[0]
                if schedule.kick:
                    z = z + schedule.kick * standard_normal(z.shape, z, generator)
            result[block] = z.detach()
    return result


def _blocks(rows: Tensor, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, len(rows), size)]


class HiddenChain:
    """The chain of one energy model, ready to run on latents with the device and the dtype of `like`."""

    def __init__(self, energy: EnergyModel, schedule: Schedule, like: Tensor) -> None:
        self.schedule, self._slope, self._widths = schedule, energy.slope, energy.hidden
        device, dtype = like.device, compute_dtype(like)
        # Not in inference mode: a graph that is recorded cannot hold its tensors.
        with torch.no_grad():
            maps = [(w.detach().to(device, dtype), b.detach().to(device, dtype)) for w, b in energy.linear_maps()]
            self.first, self.first_bias = maps[0]
            output, _ = maps.pop()
            self.up = [(weight.t().contiguous(), bias) for weight, bias in maps[1:]]
            # The output layer is folded into the matrix that the topmost gradient meets next, so that this gradient
            # is just the slope of the activation. A linear energy has no activation: its gradient is 1 times `output`.
            down = [weight for weight, _ in maps]
            self.exit, *self.down = [*down[:-1], down[-1] * output.t()] if down else [output]
            self.descent = (self.exit @ self.first.t()) * -schedule.step

    def run(self, z: Tensor, generator: torch.Generator | None = None, *, full: bool = False) -> Tensor:
        """Walk from each row of `z`; see `descend`."""
        # Allocated outside of inference mode, so that callers get an ordinary tensor back.
        with torch.inference_mode(False):
            result = torch.empty_like(z)
        size = max(_LEAST_ROWS, _BLOCK_NUMBERS // max(self._widths, default=z.shape[1]))
        # Inference mode saves a tenth of the time for a few rows; `torch.compile` cannot record it.
        with torch.no_grad() if torch.compiler.is_compiling() else torch.inference_mode():
            noise = self.noise(generator, full=full)
            for block in _blocks(z, size):
                start = z[block].to(self.first.dtype)
                total = self.walk(self.enter(start), noise)
                origin = start + noise.moved() if noise else start
                # Straight into its place where the types allow that: the copy would take a tenth of the time.
                out = result[block] if result.dtype == origin.dtype else None
                end = torch.addmm(origin, total, self.exit, alpha=-self.schedule.step, out=out)
                if out is None:
                    result[block] = end
        return result

    def unrolled(self, z: Tensor, generator: None = None) -> Tensor:
        """Walk without noise in operations that a graph can hold: no buffers, no blocks of rows, no loop."""
        if not self.schedule.steps:
            return z.clone()
        if not self._widths:
            return z - self.exit * (self.schedule.steps * self.schedule.step)
        u = self.enter(z)
        total = gradient = self._gradient(u)
        for _ in range(self.schedule.steps - 1):
            u = torch.addmm(u, gradient, self.descent)
            gradient = self._gradient(u)
            total = total + gradient
        return torch.addmm(z, total, self.exit, alpha=-self.schedule.step)

    def _gradient(self, u: Tensor) -> Tensor:
        """Return dE/du, without the matrix that `exit` and `descent` already hold."""
        values = [u]
        for weight, bias in self.up:
            values.append(torch.addmm(bias, F.leaky_relu(values[-1], self._slope), weight))
        slopes = [torch.where(value > 0, 1.0, self._slope) for value in values]
        gradient = slopes.pop()
        for weight in reversed(self.down):
            gradient = (gradient @ weight) * slopes.pop()
        return gradient

    def walk(self, u: Tensor, noise: _Noise | None) -> Tensor:
        """Move `u`, values of the first hidden layer from `enter`, in place; return the sum of all gradients."""
        total = torch.zeros_like(u)
        advance = self._stepper(u, total)
        if noise:
            noise.begin(len(u))
        for _ in range(self.schedule.steps):
            advance()
            if noise:
                noise.kick(u)
        if noise:
            noise.add_unseen(self.schedule.steps)
        return total

    def noise(self, generator: torch.Generator | None, *, full: bool = False) -> _Noise | None:
        """Return the noise of `walk`, or None for none."""
        return _Noise(self.first, self.schedule.kick, generator, full=full) if self.schedule.kick else None

    def enter(self, z: Tensor) -> Tensor:
        """Map latents to the first hidden layer: u = W1 z + b1."""
        return torch.addmm(self.first_bias, z, self.first.t())

    def add_moves(self, out: Tensor, left: Tensor, total: Tensor, noise: _Noise | None) -> None:
        """Add `left^T (z_end - z_start)` to `out`, without ever making the latents at the end of the chain."""
        out.addmm_(left.t() @ total, self.exit, alpha=-self.schedule.step)
        if noise:
            out.addmm_(left.t(), noise.moved())

    def _stepper(self, u: Tensor, total: Tensor) -> Callable[[], object]:
        """Return a function that does one step: it adds the gradient at `u` to `total`, and moves `u`.

        All buffers are made here, so that a step allocates nothing; an activation's buffer takes the gradient of the
        same layer later in the step.
        """
        slope, descent = self._slope, self.descent
        if not self._widths:
            return lambda: (total.add_(1), u.add_(descent))
        up, below = [], u
        for weight, bias in self.up:
            active, above = torch.empty_like(below), u.new_empty(len(u), weight.shape[1])
            up.append((below, active, weight, bias, above))
            below = above
        top, top_gradient = below, torch.empty_like(below)
        one = u.new_ones(1, 1).expand_as(top)
        down, gradient = [], top_gradient
        for (below, active, *_), weight in zip(reversed(up), reversed(self.down), strict=True):
            down.append((gradient, weight, active, below))
            gradient = active

        def advance() -> None:
            for below, active, weight, bias, above in up:
                _leaky_relu(below, slope, out=active)
                torch.addmm(bias, active, weight, out=above)
            _times_slope(one, top, slope, False, grad_input=top_gradient)
            for higher, weight, lower, below in down:
                torch.mm(higher, weight, out=lower)
                _times_slope(lower, below, slope, False, grad_input=lower)
            total.add_(gradient)
            u.addmm_(gradient, descent)

        return advance


class _Noise:
    """Gaussian noise of the chain, drawn in the few directions that the energy can see.

    Noise w in latent space is W1 w in hidden space: only its part in the row space of W1 (at most H numbers, not D)
    steers the chain. The rest never meets the energy, so its sum over all steps is drawn once, at the end: the same
    distribution of results. `full` draws all D numbers in each step.
    """

    def __init__(self, first: Tensor, kick: float, generator: torch.Generator | None, *, full: bool) -> None:
        hidden, dim = first.shape
        self._kick, self._generator, self._like = kick, generator, first
        self._basis = None if full or dim <= hidden else torch.linalg.svd(first, full_matrices=False)[2]
        self._to_hidden = (first if self._basis is None else first @ self._basis.t()).t() * kick

    def begin(self, rows: int) -> None:
        self._sum = self._like.new_zeros(rows, self._to_hidden.shape[0])
        self._unseen: Tensor | None = None

    def kick(self, u: Tensor) -> None:
        """Move `u` by the noise of one step."""
        draw = standard_normal(self._sum.shape, self._sum, self._generator)
        self._sum.add_(draw)
        u.addmm_(draw, self._to_hidden)

    def add_unseen(self, steps: int) -> None:
        """Draw what all steps together did outside of the row space of W1."""
        if self._basis is not None:
            shape = len(self._sum), self._basis.shape[1]
            whole = standard_normal(shape, self._sum, self._generator) * math.sqrt(steps)
            self._unseen = whole - (whole @ self._basis.t()) @ self._basis

    def moved(self) -> Tensor:
        """Return how far the noise has moved each latent."""
        seen = self._sum if self._basis is None else self._sum @ self._basis
        return (seen if self._unseen is None else seen + self._unseen) * self._kick
