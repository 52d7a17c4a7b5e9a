"""Aligners that any claim about ELI must be compared with: simpler ways to use the same pairs of latents.

Same contract as `EnergyAligner` (see `aligner.py`); all are closed forms.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from elign.aligner import Aligner, FitReport, Progress
from elign.checks import check_seed
from elign.errors import OptionError
from elign.langevin import compute_dtype


class Identity(Aligner):
    """Moves nothing: the base model as it is.

    Example:
        >>> import torch
        >>> from elign import Identity
        >>> z = torch.randn(8, 4)
        >>> torch.equal(Identity().fit_latents(z, z).align(z), z)
        True
    """

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        return _report(z_cur)

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        return rows.clone()


class _Shift(Aligner):
    """Adds one learned vector to every latent."""

    shift: Tensor

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("shift", torch.zeros(dim))

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        return (rows + self.shift.to(rows.device, compute_dtype(rows))).to(rows.dtype)


class MeanShift(_Shift):
    """Adds the difference of the means, mean(z_prev) - mean(z_cur).

    It is what a linear energy model converges to: how much of ELI's gain is more than one constant shift?

    Example:
        >>> import torch
        >>> from elign import MeanShift
        >>> z_prev = torch.randn(100, 4)
        >>> aligner = MeanShift().fit_latents(z_prev, z_prev + 1)
        >>> bool(torch.allclose(aligner.align(z_prev + 1), z_prev, atol=1e-5))
        True
    """

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        self.shift = z_prev.mean(dim=0) - z_cur.mean(dim=0)
        return _report(z_cur)


class RandomShift(_Shift):
    """Adds a vector of a given length in a random direction: does the direction matter at all?

    Args:
        norm: Length of the shift; by default as long as `MeanShift`'s. Give the mean length of another aligner's moves
            to be its control.
        seed: Of the direction.

    Example:
        >>> import torch
        >>> from elign import RandomShift
        >>> z = torch.zeros(10, 4)
        >>> aligner = RandomShift(norm=2.0).fit_latents(z, z)
        >>> round(aligner.align(z).norm(dim=1).mean().item(), 4)
        2.0
    """

    def __init__(self, *, norm: float | None = None, seed: int = 0) -> None:
        super().__init__()
        if norm is not None and not (math.isfinite(norm) and norm >= 0):
            raise OptionError(f"norm must be a finite number >= 0, or None, got {norm!r}")
        self.norm = norm
        self.seed = check_seed(seed)

    def config(self) -> dict[str, Any]:
        """The options this aligner was made with."""
        return {"norm": self.norm, "seed": self.seed}

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        direction = torch.randn(z_cur.shape[1], generator=torch.Generator().manual_seed(self.seed), device="cpu")
        mean = z_prev.mean(dim=0) - z_cur.mean(dim=0)
        length = mean.norm().item() if self.norm is None else self.norm
        self.shift = (direction * (length / direction.norm())).to(z_cur)
        return _report(z_cur)


class Ridge(Aligner):
    """Residual ridge regression from current to previous latents of the same inputs.

    `z + (z - m) A + b`, where m is the mean of z_cur and A, b minimise
    `sum ||z_prev - z_cur - (z_cur - m) A - b||^2 + penalty * v * N * ||A||^2`, v being the mean variance of z_cur's
    dimensions. It uses that latents come in pairs, which ELI does not; a large penalty gives `MeanShift`.

    Args:
        penalty: Strength of the penalty, relative to the variance of the latents.

    Example:
        >>> import torch
        >>> from elign import Ridge
        >>> z_prev = torch.randn(200, 4)
        >>> z_cur = z_prev @ torch.diag(torch.tensor([1.0, 2.0, 0.5, 1.0])) + 3
        >>> aligner = Ridge(penalty=1e-6).fit_latents(z_prev, z_cur)
        >>> bool(torch.allclose(aligner.align(z_cur), z_prev, atol=1e-3))
        True
    """

    center: Tensor
    matrix: Tensor
    shift: Tensor

    def __init__(self, *, penalty: float = 0.1) -> None:
        super().__init__()
        if not (math.isfinite(penalty) and penalty > 0):
            raise OptionError(f"penalty must be a finite number > 0, got {penalty!r}")
        self.penalty = penalty

    def config(self) -> dict[str, Any]:
        """The options this aligner was made with."""
        return {"penalty": self.penalty}

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("center", torch.zeros(dim))
        self.register_buffer("matrix", torch.zeros(dim, dim))
        self.register_buffer("shift", torch.zeros(dim))

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport:
        center, shift = z_cur.mean(dim=0), (z_prev - z_cur).mean(dim=0)
        # On the CPU, since not every accelerator has float64; the problem is small.
        x = (z_cur - center).cpu().double()
        residual = (z_prev - z_cur - shift).cpu().double()
        variance = x.square().mean()
        # Latents that are all alike carry no slope: any positive number then gives A = 0.
        strength = self.penalty * len(x) * (variance if variance > 0 else 1.0)
        gram = x.t() @ x + strength * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed:
            raise OptionError(
                f"penalty={self.penalty!r} is too small for these latents: they leave slopes undetermined"
            )
        matrix = torch.cholesky_solve(x.t() @ residual, factor)
        # cholesky_solve gives columns in memory, a file gives rows: products with the two would be rounded differently.
        self.center, self.shift, self.matrix = center, shift, matrix.to(z_cur).contiguous()
        return _report(z_cur)

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        dtype = compute_dtype(rows)
        center, matrix, shift = (t.to(rows.device, dtype) for t in (self.center, self.matrix, self.shift))
        return (rows + (rows - center) @ matrix + shift).to(rows.dtype)


def _report(z_cur: Tensor) -> FitReport:
    return FitReport(rows=len(z_cur), dim=z_cur.shape[1])
