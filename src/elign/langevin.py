"""Langevin descent of latents down an energy: the sampler that trains the energy model and aligns latents.

`descend` is the one entry: it checks its input and hands the chain to the exact fast form in `hidden_chain.py` when the
energy is an `EnergyModel`, or to plain automatic differentiation for any other module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elign.checks import check_whole
from elign.energy import EnergyModel
from elign.errors import LatentError, OptionError
from elign.hidden_chain import HiddenChain, standard_normal

# Rows that an energy other than `EnergyModel` sees at once: bounds the memory of its graph.
_BLOCK_ROWS = 2048


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


def compute_dtype(z: Tensor) -> torch.dtype:
    """Chains run in float32, or in float64 for float64 latents: half precision loses small steps."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


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

    An `EnergyModel` takes an exact shortcut through its first hidden layer (see `hidden_chain.py`), many times faster
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
