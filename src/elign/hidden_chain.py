"""The exact fast sampler: the Langevin chain of an `EnergyModel`, run in the space of its first hidden layer.

With u = W1 z + b1, one step z <- z - s W1^T g(u) is u <- u - s (W1 W1^T) g(u). So the whole chain runs on u with the
Gram matrix W1 W1^T, the gradients g are summed, and z moves once at the end: z_L = z_0 - s W1^T (g_0 + ... + g_{L-1}).
A step costs the same whatever the latent dimension is, needs no autograd graph, and works in preallocated buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from elign.energy import EnergyModel

# Numbers in one working buffer. 131072 floats are 0.5 MB: a handful of buffers stays in the outer caches, and each
# operation is long enough to hide the cost of calling it and to be worth splitting over threads (measured; see
# docs/decisions.md).
_BLOCK_NUMBERS = 131_072
_LEAST_ROWS = 256

# The public names of these two operations cannot write into a given buffer.
_leaky_relu = torch.ops.aten.leaky_relu.out
_times_slope = torch.ops.aten.leaky_relu_backward.grad_input


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


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gaussian numbers with the dtype and device of `like`; a generator may live on another device (say, the CPU)."""
    device = generator.device if generator else like.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)
