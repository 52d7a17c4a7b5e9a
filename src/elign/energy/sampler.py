"""Langevin descent of latents down an energy: the sampler that trains the energy model and aligns latents.

`descend` checks its input and hands the chain to the exact fast form, `HiddenChain`, when the energy is an
`EnergyModel`, or to plain automatic differentiation for any other module.

The fast form runs the chain in the space of the first hidden layer. With u = W1 z + b1, one step
z <- z - s W1^T g(u) is u <- u - s (W1 W1^T) g(u). So the whole chain runs on u with the Gram matrix W1 W1^T, the
gradients g are summed, and z moves once at the end: z_L = z_0 - s W1^T (g_0 + ... + g_{L-1}). A step costs the same
whatever the latent dimension is, needs no autograd graph, and works in preallocated buffers. `TracedChain` is the same
chain unrolled for an exported graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.energy.model import EnergyModel
from elign.utils.checks import check_whole
from elign.utils.errors import LatentError, OptionError
from elign.utils.tensors import compute_dtype, standard_normal

# Rows that an energy other than `EnergyModel` sees at once: bounds the memory of its graph.
_BLOCK_ROWS = 2048
# Numbers in one working buffer. 131072 floats are 0.5 MB: a handful of buffers stays in the outer caches, and each
# operation is long enough to hide the cost of calling it and to be worth splitting over threads (measured; see
# docs/decisions.md).
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
        """From the options of `descend`, with their ranges checked."""
        steps = check_whole(steps, "steps", least=0)
        if not (math.isfinite(step_size) and step_size > 0):
            raise OptionError(f"step_size must be a finite number > 0, got {step_size!r}")
        if not (math.isfinite(noise) and noise >= 0):
            raise OptionError(f"noise must be a finite number >= 0, got {noise!r}")
        return cls(steps, step_size / 2 if half_step else step_size, noise * math.sqrt(step_size))


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
    block_rows: int | None = None,
) -> Tensor:
    """Let each latent walk downhill on an energy.

    One step is `z <- z - step_size * dE/dz`, each row on its own. This noise-free full step is what the authors' code
    runs, in training and at inference; the paper's Eq. 4 is `half_step=True, noise=1.0`, that is
    `z <- z - step_size / 2 * dE/dz + sqrt(step_size) * N(0, 1)`.

    An `EnergyModel` takes an exact shortcut through its first hidden layer (see `HiddenChain`), many times faster
    than automatic differentiation, with working memory that does not grow with the number of rows. Any other module
    that maps `(N, D)` to `(N,)` or `(N, 1)` is differentiated; its rows must not depend on each other.

    Args:
        energy: What to descend; its parameters are never changed and get no gradient.
        z: Latents `(..., D)` of any floating type, on any device. Works under `no_grad`, `inference_mode`, autocast.
        steps: Number of steps.
        step_size: Length of a step per unit of gradient.
        noise: Scale of the Gaussian noise, in units of `sqrt(step_size)`; 0 for none.
        half_step: Halve the gradient's step, as in the paper's Eq. 4.
        trajectory: Return the whole walk `(steps + 1, ..., D)`, from the start (index 0) to the result (index -1).
            With noise, the walk is another draw from the same distribution than the call without `trajectory`.
        generator: Source of the noise; the global random state is untouched when it is given.
        block_rows: Rows that walk together (default: sized for the cache). Never changes the result beyond rounding;
            chains with noise always use the default, so that their random numbers do not depend on it.

    Returns:
        The moved latents, detached, with the dtype and device of `z`.

    Raises:
        LatentError: If `z` is not floating point, has no rows' dimension, or does not fit the energy.
        OptionError: If an option is out of range.

    Example:
        >>> import torch
        >>> from elign import EnergyModel, descend
        >>> energy, z = EnergyModel(8), torch.randn(4, 8)
        >>> bool((energy(descend(energy, z, step_size=0.01)) < energy(z)).all())
        True
        >>> descend(energy, z, steps=30, trajectory=True).shape
        torch.Size([31, 4, 8])
    """
    schedule = Schedule.checked(steps, step_size, noise, half_step)
    if not z.is_floating_point() or z.ndim < 1:
        raise LatentError(f"latents must be a floating-point tensor (..., D), got {z.dtype} of shape {tuple(z.shape)}")
    block_rows = None if block_rows is None else check_whole(block_rows, "block_rows", least=1)
    rows = z.detach().reshape(-1, z.shape[-1])
    with torch.autocast(z.device.type, enabled=False):
        # A subclass with an energy of its own must not be taken for the one that the shortcut knows.
        if isinstance(energy, EnergyModel) and type(energy).forward is EnergyModel.forward:
            walk = _hidden(energy, rows, schedule, trajectory, generator, block_rows)
        else:
            walk = _autograd(energy, rows, schedule, trajectory, generator, block_rows)
    return walk.reshape(*walk.shape[:-2], *z.shape)


def _hidden(
    energy: EnergyModel,
    rows: Tensor,
    schedule: Schedule,
    trajectory: bool,
    generator: torch.Generator | None,
    block_rows: int | None,
) -> Tensor:
    if rows.shape[1] != energy.dim:
        raise LatentError(
            f"this energy model takes latents of dimension {energy.dim}, got {rows.shape[1]}: "
            "was it fitted for another layer?"
        )
    chain = HiddenChain(energy, step=schedule.step, device=rows.device, dtype=compute_dtype(rows))
    return chain.run(
        rows, schedule.steps, kick=schedule.kick, trajectory=trajectory, generator=generator, block_rows=block_rows
    )


def _autograd(
    energy: nn.Module,
    rows: Tensor,
    schedule: Schedule,
    trajectory: bool,
    generator: torch.Generator | None,
    block_rows: int | None,
) -> Tensor:
    weight = next(energy.parameters(), None)
    dtype = compute_dtype(rows) if weight is None else weight.dtype
    size = block_rows if block_rows and not schedule.kick else _BLOCK_ROWS
    # Leaving inference mode needs a copy: its tensors can never be differentiated.
    with torch.inference_mode(False), torch.enable_grad():
        result = rows.new_empty(schedule.steps + 1 if trajectory else 1, *rows.shape)
        for block in (slice(first, first + size) for first in range(0, len(rows), size)):
            z = rows[block].clone().to(dtype)
            for step in range(schedule.steps):
                if trajectory:
                    result[step, block] = z.detach().to(rows.dtype)
                z = z.detach() - schedule.step * _slope(energy, z)
                if schedule.kick:
                    z = z + schedule.kick * standard_normal(z.shape, z, generator)
            result[-1, block] = z.detach().to(rows.dtype)
    return result if trajectory else result[0]


def _slope(energy: nn.Module, z: Tensor) -> Tensor:
    """dE/dz of each row."""
    z = z.detach().requires_grad_()
    energies = energy(z)
    if energies.numel() != len(z):
        raise LatentError(f"the energy must give one value per row, got shape {tuple(energies.shape)}")
    return torch.autograd.grad(energies.sum(), z)[0]


class HiddenChain:
    """The chain of one energy model at one step size, ready to run on any number of latents.

    Args:
        energy: The energy to descend.
        step: The factor of the gradient in each step.
        device: Where the latents are; weights are brought there.
        dtype: float32 or float64, the precision of the chain.
    """

    def __init__(self, energy: EnergyModel, *, step: float, device: torch.device, dtype: torch.dtype) -> None:
        self._step = step
        self._slope = energy.slope
        self._widths = energy.hidden
        with _without_graph():
            maps = [(w.detach().to(device, dtype), b.detach().to(device, dtype)) for w, b in energy.linear_maps()]
            self._first, self._first_bias = maps[0]
            output, _ = maps.pop()
            self._up = [(weight.t().contiguous(), bias) for weight, bias in maps[1:]]
            # The output layer is folded into the matrix that the topmost gradient meets next, so that this gradient
            # is just the slope of the activation. A linear energy has no activation: its gradient is 1 times `output`.
            down = [weight for weight, _ in maps]
            self._exit, *self._down = [*down[:-1], down[-1] * output.t()] if down else [output]
            self._descent = (self._exit @ self._first.t()) * -step

    def run(
        self,
        z: Tensor,
        steps: int,
        *,
        kick: float = 0.0,
        trajectory: bool = False,
        generator: torch.Generator | None = None,
        block_rows: int | None = None,
    ) -> Tensor:
        """Walk `steps` steps from each row of `z`, with Gaussian noise of scale `kick`; see `descend` for the rest."""
        # Allocated outside of inference mode, so that callers get an ordinary tensor back.
        with torch.inference_mode(False):
            result = z.new_empty(steps + 1 if trajectory else 1, *z.shape)
        size = block_rows if block_rows and not kick else self._block_rows()
        with _without_graph():
            noise = self.noise(kick, generator, full=trajectory)
            for rows in (slice(first, first + size) for first in range(0, len(z), size)):
                self._run_block(z[rows].to(self._first.dtype), steps, noise, result[:, rows])
        return result if trajectory else result[0]

    def _run_block(self, start: Tensor, steps: int, noise: _Noise | None, out: Tensor) -> None:
        """The chain of a block of latents; `out` takes each of its states, or only the last one."""

        def leave(step: int, total: Tensor) -> None:
            origin = start + noise.moved() if noise else start
            if out.dtype == origin.dtype:
                torch.addmm(origin, total, self._exit, alpha=-self._step, out=out[step])
            else:
                out[step].copy_(torch.addmm(origin, total, self._exit, alpha=-self._step))

        total = self.walk(self.enter(start), steps, noise, leave if len(out) > 1 else None)
        leave(-1, total)

    def walk(
        self, u: Tensor, steps: int, noise: _Noise | None, before: Callable[[int, Tensor], None] | None = None
    ) -> Tensor:
        """Move `u`, values of the first hidden layer, by `steps` steps in place.

        Args:
            u: Values of the first hidden layer, from `enter`.
            steps: Number of steps.
            noise: From `noise`, if there is to be any.
            before: Called before each step with its number and the sum of gradients so far.

        Returns:
            The sum of all gradients, which says how far the latents have moved; see `add_moves`.
        """
        total = torch.zeros_like(u)
        advance = self._stepper(u, total)
        if noise:
            noise.begin(len(u))
        for step in range(steps):
            if before:
                before(step, total)
            advance()
            if noise:
                noise.kick(u)
        if noise:
            noise.add_unseen(steps)
        return total

    def noise(self, kick: float, generator: torch.Generator | None, *, full: bool = False) -> _Noise | None:
        """The noise of `walk`, or None for none."""
        return _Noise(self._first, kick, generator, full=full) if kick else None

    def enter(self, z: Tensor) -> Tensor:
        """From latents to the first hidden layer: u = W1 z + b1."""
        return torch.addmm(self._first_bias, z, self._first.t())

    def add_moves(self, out: Tensor, left: Tensor, total: Tensor, noise: _Noise | None) -> None:
        """Add `left^T (z_end - z_start)` to `out`, without ever making the latents at the end of the chain."""
        out.addmm_(left.t() @ total, self._exit, alpha=-self._step)
        if noise:
            out.addmm_(left.t(), noise.moved())

    def _stepper(self, u: Tensor, total: Tensor) -> Callable[[], object]:
        """A function that does one step: adds the gradient at `u` to `total`, and moves `u`.

        All its buffers are made here, so that a step allocates nothing; an activation's buffer takes the gradient of
        the same layer later in the step.
        """
        slope, descent = self._slope, self._descent
        if not self._widths:
            return lambda: (total.add_(1), u.add_(descent))
        up, below = [], u
        for weight, bias in self._up:
            active, above = torch.empty_like(below), u.new_empty(len(u), weight.shape[1])
            up.append((below, active, weight, bias, above))
            below = above
        top, top_gradient = below, torch.empty_like(below)
        one = u.new_ones(1, 1).expand_as(top)
        down, gradient = [], top_gradient
        for (below, active, *_), weight in zip(reversed(up), reversed(self._down), strict=True):
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

    def _block_rows(self) -> int:
        return max(_LEAST_ROWS, _BLOCK_NUMBERS // max(self._widths, default=self._first.shape[1]))


class _Noise:
    """Gaussian noise of the chain, drawn in the few directions that the energy can see.

    Noise w in latent space is W1 w in hidden space: only its part in the row space of W1 (at most H numbers, not D)
    steers the chain. The rest never meets the energy, so its sum over all steps is drawn once, at the end: the same
    distribution for the result. `full` draws all D numbers in each step, for whoever looks at the states between.
    """

    def __init__(self, first: Tensor, kick: float, generator: torch.Generator | None, *, full: bool) -> None:
        hidden, dim = first.shape
        self._kick = kick
        self._generator = generator
        self._like = first
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
            whole = standard_normal((len(self._sum), self._basis.shape[1]), self._sum, self._generator) * math.sqrt(
                steps
            )
            self._unseen = whole - (whole @ self._basis.t()) @ self._basis

    def moved(self) -> Tensor:
        """How far the noise has moved each latent."""
        seen = self._sum if self._basis is None else self._sum @ self._basis
        return (seen if self._unseen is None else seen + self._unseen) * self._kick


def _without_graph() -> AbstractContextManager[object]:
    """Inference mode, which saves a tenth of the time for a few rows; `torch.compile` cannot record it."""
    return torch.no_grad() if torch.compiler.is_compiling() else torch.inference_mode()


class TracedChain(nn.Module):
    """The noise-free chain of an `EnergyModel`, unrolled in the space of its first hidden layer.

    The form of `HiddenChain`: u = W1 z + b1 walks by the Gram matrix, gradients are summed, z moves once at the
    end. A loop inside the graph would be shorter to write down, but runtimes neither fuse nor plan across it.
    """

    entry: Tensor
    entry_bias: Tensor
    descent: Tensor
    exit: Tensor
    up_slope: Tensor
    down_slope: Tensor

    def __init__(self, energy: EnergyModel, *, steps: int, step: float) -> None:
        super().__init__()
        self.steps = steps
        self.slope = energy.slope
        self.layers = len(energy.hidden)
        # As tensors, not numbers: torch would record two more operations for each place that uses them.
        self.register_buffer("up_slope", torch.tensor(1.0))
        self.register_buffer("down_slope", torch.tensor(energy.slope))
        with torch.no_grad():
            maps = [(weight.detach().float(), bias.detach().float()) for weight, bias in energy.linear_maps()]
            first, first_bias = maps[0]
            output, _ = maps.pop()
            # As in `HiddenChain`: the output layer is folded into the topmost matrix on the way down.
            down = [weight for weight, _ in maps]
            first_exit, *rest = [*down[:-1], down[-1] * output.t()] if down else [output]
            self.register_buffer("entry", first.t().contiguous())
            self.register_buffer("entry_bias", first_bias.clone())
            self.register_buffer("exit", first_exit * -step)
            self.register_buffer("descent", (first_exit @ first.t()) * -step)
            for number, (weight, bias) in enumerate(maps[1:]):
                self.register_buffer(f"up{number}", weight.t().contiguous())
                self.register_buffer(f"up_bias{number}", bias.clone())
                self.register_buffer(f"down{number}", rest[number].clone())

    def forward(self, z: Tensor) -> Tensor:
        """Latents (N, D) to latents (N, D)."""
        if self.steps == 0:
            return z.clone()
        if self.layers == 0:
            return z + self.exit * self.steps
        u = torch.addmm(self.entry_bias, z, self.entry)
        total = gradient = self._gradient(u)
        for _ in range(self.steps - 1):
            u = torch.addmm(u, gradient, self.descent)
            gradient = self._gradient(u)
            total = total + gradient
        return torch.addmm(z, total, self.exit)

    def _gradient(self, u: Tensor) -> Tensor:
        """dE/du, without the matrix that `exit` and `descent` already hold."""
        values = [u]
        for number in range(self.layers - 1):
            active = F.leaky_relu(values[-1], self.slope)
            values.append(torch.addmm(self._at("up_bias", number), active, self._at("up", number)))
        gradient = self._slopes(values[-1])
        for number in reversed(range(self.layers - 1)):
            gradient = (gradient @ self._at("down", number)) * self._slopes(values[number])
        return gradient

    def _slopes(self, value: Tensor) -> Tensor:
        return torch.where(value > 0, self.up_slope, self.down_slope)

    def _at(self, name: str, number: int) -> Tensor:
        found: Tensor = getattr(self, f"{name}{number}")
        return found
