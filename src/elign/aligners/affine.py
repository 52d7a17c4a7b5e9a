"""Base of aligners that learn one matrix and one shift."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from elign.aligners.base import Aligner, check_size
from elign.utils.fitted import Progress, Shapes
from elign.utils.tensors import compute_dtype, product


class AffineAligner(Aligner):
    """Maps latents to `z A + b`; a subclass gives `_solve`."""

    shapes: ClassVar[Shapes] = {"matrix": "DD", "shift": "D"}
    matrix: Tensor
    shift: Tensor

    def _solve(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return A and b (None for 0) from pairs of rows, in float64 on the CPU."""
        raise NotImplementedError

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        try:
            matrix, shift = self._solve(z_cur.cpu().double(), z_prev.cpu().double())
        except RuntimeError:  # of a solver that finds infinite numbers
            matrix, shift = torch.full((1,), torch.nan), None
        check_size(matrix)
        self.matrix = matrix.to(z_cur).contiguous()
        self.shift = torch.zeros_like(z_cur[0]) if shift is None else shift.to(z_cur)

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        dtype = compute_dtype(rows)
        matrix, shift = (t.to(rows.device, dtype) for t in (self.matrix, self.shift))
        return (product(rows.to(dtype), matrix) + shift).to(rows.dtype)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return A and b."""
        self.require_fitted()
        return self.matrix.cpu().double(), self.shift.cpu().double()


def solve_ridge(source: Tensor, target: Tensor, penalty: float) -> Tensor:
    """Return `(X'X + penalty I)^-1 X'Y`; where X'X is singular, the solution of smallest norm."""
    gram = source.t() @ source
    gram.diagonal().add_(penalty)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        found: Tensor = torch.linalg.pinv(gram, hermitian=True) @ (source.t() @ target)
        return found
    return torch.cholesky_solve(source.t() @ target, factor)
