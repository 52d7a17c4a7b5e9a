"""The linear map of SLDC: least squares, shrunk to the identity."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elign.aligners.affine import AffineAligner, solve_ridge
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.fitted import register
from elign.utils.tensors import check_number


@register
class SLDC(AffineAligner):
    """Least squares without an intercept, shrunk to the identity when pairs are few (linear SLDC, AAAI 2026).

    `A = (1 - w) (X'X + penalty I)^-1 X'Y + w I` with `w = exp(-n / (tau d))` for n pairs of dimension d. Transported
    covariances get `floor` times the identity. The paper scales latents to length 1 first: give it such latents and
    statistics. Its text does not fix tau; 1 is ours.

    Args:
        penalty: Of the least squares.
        tau: How many pairs for each dimension count as many.
        floor: What transported covariances get added.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        >>> moved = elign.SLDC(tau=1e6).fit_latents(z, 2 * z, direction="forward").align(torch.ones(1, 3))
        >>> moved.round(decimals=2).tolist()                       # few pairs for so large a tau: nearly the identity
        [[1.0, 1.0, 1.0]]
    """

    def __init__(self, *, penalty: float = 1e-4, tau: float = 1.0, floor: float = 1e-3) -> None:
        super().__init__()
        self.penalty, self.floor = check_number(penalty, "penalty"), check_number(floor, "floor")
        self.tau = check_number(tau, "tau", positive=True)

    def _solve(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        rows, dim = source.shape
        share = math.exp(-rows / (self.tau * dim))
        identity = torch.eye(dim, dtype=source.dtype, device="cpu")
        return (1 - share) * solve_ridge(source, target, self.penalty) + share * identity, None

    def transport(self, statistics: ClassStatistics, *, per_class: int | None = None) -> ClassStatistics:
        """Move statistics as every affine aligner, then add `floor` to their variances."""
        moved = super().transport(statistics, per_class=per_class)
        if moved.form == "none" or not self.floor:
            return moved
        return moved.widened(self.floor * torch.eye(self.require_fitted(), dtype=torch.float64, device="cpu"))
