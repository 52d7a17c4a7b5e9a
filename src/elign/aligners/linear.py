"""Affine aligners, all in closed form: no move, one shift for all latents, ridge regression on pairs."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from elign.aligners.base import Aligner, check_size
from elign.utils.errors import OptionError
from elign.utils.fitted import Progress, Shapes, register
from elign.utils.tensors import check_number, check_seed, compute_dtype, product

_PENALTIES: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(2, -9, -1))  # 10 down to 1e-4
_SCAN_ROWS = 1024  # pairs whose left-out error is computed; each penalty takes rows * dim^2 operations


class _Shift(Aligner):
    """Adds one vector to every latent."""

    shapes: ClassVar[Shapes] = {"shift": "D"}
    shift: Tensor

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        return (rows + self.shift.to(rows.device, compute_dtype(rows))).to(rows.dtype)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return I and the shift."""
        return _identity(self.require_fitted()), self.shift.cpu().double()


@register
class Identity(Aligner):
    """Moves nothing: the baseline without any alignment.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(8, 4)
        >>> torch.equal(elign.Identity().fit_latents(z, z).align(z), z)
        True
    """

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        pass

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        return rows.clone()

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return I and 0."""
        identity = _identity(self.require_fitted())
        return identity, torch.zeros_like(identity[0])


@register
class MeanShift(_Shift):
    """Adds the difference of the means, mean(z_prev) - mean(z_cur).

    A linear energy model converges to it, so it shows how much of ELI's gain is more than one constant shift.

    Example:
        >>> import torch, elign
        >>> z_prev = torch.randn(100, 4)
        >>> aligner = elign.MeanShift().fit_latents(z_prev, z_prev + 1)
        >>> bool(torch.allclose(aligner.align(z_prev + 1), z_prev, atol=1e-5))
        True
    """

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        self.shift = z_prev.mean(dim=0) - z_cur.mean(dim=0)
        check_size(self.shift)


@register
class RandomShift(_Shift):
    """Adds a vector of a given length in a random direction: the baseline that shows whether the direction matters.

    Args:
        norm: Length of the shift; by default that of `MeanShift`. To compare with another aligner, give the mean length
            of its moves.
        seed: Of the direction.

    Example:
        >>> import torch, elign
        >>> z = torch.zeros(10, 4)
        >>> aligner = elign.RandomShift(norm=2.0).fit_latents(z, z)
        >>> round(aligner.align(z).norm(dim=1).mean().item(), 4)
        2.0
    """

    def __init__(self, *, norm: float | None = None, seed: int = 0) -> None:
        super().__init__()
        self.norm = None if norm is None else check_number(norm, "norm")
        self.seed = check_seed(seed)

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        direction = torch.randn(z_cur.shape[1], generator=torch.Generator().manual_seed(self.seed), device="cpu")
        mean = z_prev.mean(dim=0) - z_cur.mean(dim=0)
        length = mean.cpu().double().norm().item() if self.norm is None else self.norm
        self.shift = (direction * (length / direction.norm())).to(z_cur)
        check_size(self.shift)


@register
class Ridge(Aligner):
    """Residual ridge regression from current to previous latents of the same inputs.

    `z + (z - m) A + b`, where m is the mean of z_cur and A, b minimise
    `sum ||z_prev - z_cur - (z_cur - m) A - b||^2 + penalty * v * N * ||A||^2`, v being the mean variance of z_cur's
    dimensions. It uses that latents come in pairs, which ELI does not; a large penalty gives `MeanShift`.

    With `penalty="auto"` the penalty is the one of 1e-4, ..., 10 (two in each decade) with the smallest leave-one-out
    error, in closed form: the residual of a pair that is left out is `r_i / (1 - h_i)`, with
    `h_i = 1/N + x_i (X'X + penalty v N)^-1 x_i'` (the PRESS statistic; v and N stay those of all pairs). Of more than
    1,024 pairs, so many are left out in turn. The fitted m, A, b and penalty are `center`, `matrix`, `shift` and
    `chosen_penalty`.

    Example:
        >>> import torch, elign
        >>> z_prev = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> z_cur = z_prev @ torch.diag(torch.tensor([1.0, 2.0, 0.5, 1.0])) + 3
        >>> aligner = elign.Ridge(penalty=1e-6).fit_latents(z_prev, z_cur)
        >>> bool(torch.allclose(aligner.align(z_cur), z_prev, atol=1e-3))
        True
        >>> round(elign.Ridge().fit_latents(z_prev, z_cur).chosen_penalty.item(), 4)         # a map without noise
        0.0001
    """

    shapes: ClassVar[Shapes] = {"center": "D", "matrix": "DD", "shift": "D", "chosen_penalty": ""}
    center: Tensor
    matrix: Tensor
    shift: Tensor
    chosen_penalty: Tensor

    def __init__(self, *, penalty: float | Literal["auto"] = "auto") -> None:
        super().__init__()
        self.penalty: float | Literal["auto"] = penalty
        if penalty != "auto":
            check_number(penalty, 'penalty, if it is not "auto",', positive=True)

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        center, shift = z_cur.mean(dim=0), (z_prev - z_cur).mean(dim=0)
        # On the CPU, since not every accelerator has float64; the problem is small.
        x = (z_cur - center).cpu().double()
        residual = (z_prev - z_cur - shift).cpu().double()
        variance = float(x.square().mean())
        # Latents that are all alike carry no slope: any positive number then gives A = 0.
        unit = variance if variance > 0 else 1.0
        gram, cross = x.t() @ x, x.t() @ residual
        check_size(gram, cross)
        penalty = _best_penalty(x, residual, gram, cross, len(x) * unit) if self.penalty == "auto" else self.penalty
        gram.diagonal().add_(penalty * len(x) * unit)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed:
            raise OptionError(f"penalty={penalty!r} is too small for these latents: they leave slopes undetermined")
        matrix = torch.cholesky_solve(cross, factor)
        # cholesky_solve gives columns in memory, a file gives rows: products with the two would be rounded differently.
        self.center, self.shift, self.matrix = center, shift, matrix.to(z_cur).contiguous()
        self.chosen_penalty = torch.tensor(penalty, dtype=z_cur.dtype, device=z_cur.device)

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        dtype = compute_dtype(rows)
        center, matrix, shift = (t.to(rows.device, dtype) for t in (self.center, self.matrix, self.shift))
        return (rows + product(rows - center, matrix) + shift).to(rows.dtype)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return I + A and b - m A."""
        identity = _identity(self.require_fitted())
        center, matrix, shift = (t.cpu().double() for t in (self.center, self.matrix, self.shift))
        return identity + matrix, shift - center @ matrix


def _best_penalty(x: Tensor, y: Tensor, gram: Tensor, cross: Tensor, unit: float) -> float:
    """Return the penalty with the smallest leave-one-out error; of equal ones the strongest."""
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0)
    every = -(-len(x) // _SCAN_ROWS)
    # In the eigenbasis each penalty is a division.
    inputs, targets, slopes = x[::every] @ vectors, y[::every], vectors.t() @ cross

    def error(penalty: float) -> float:
        scaled = inputs / (values + penalty * unit)
        left = 1 - 1 / len(x) - (scaled * inputs).sum(dim=1)
        residual = (targets - scaled @ slopes).square().sum(dim=1)
        return float((residual / left.clamp(min=1e-12).square()).mean())

    return min(_PENALTIES, key=error)


def _identity(dim: int) -> Tensor:
    return torch.eye(dim, dtype=torch.float64, device="cpu")
