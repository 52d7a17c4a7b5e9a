"""The generalised least squares map of GATF."""

from __future__ import annotations

import torch
from torch import Tensor

from elign.aligners.affine import AffineAligner
from elign.utils.fitted import register
from elign.utils.tensors import check_number


@register
class GLS(AffineAligner):
    """A linear map that weighs errors by the covariance of the latents it maps to (inside GATF, ECCV 2026).

    For covariances S of the source, T of the target and C between them, A solves the Sylvester equation
    `S A + rho A T = C`: in the eigenbases `S = V diag(s) V'` and `T = U diag(t) U'`, entry (j, i) of `V' A U` is that
    of `V' C U` divided by `s_j + rho t_i`. The map goes through both means, which the paper does not say.

    Args:
        rho: Weight of the target's covariance; the published value is 0.01.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        >>> moved = elign.GLS(rho=1e-9).fit_latents(z, 2 * z + 1, direction="forward").align(torch.ones(1, 3))
        >>> moved.round(decimals=3).tolist()
        [[3.0, 3.0, 3.0]]
    """

    def __init__(self, *, rho: float = 0.01) -> None:
        super().__init__()
        self.rho = check_number(rho, "rho", positive=True)

    def _solve(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        from_mean, to_mean = source.mean(dim=0), target.mean(dim=0)
        x, y = source - from_mean, target - to_mean
        s, v = torch.linalg.eigh(x.t() @ x / len(x))
        t, u = torch.linalg.eigh(y.t() @ y / len(y))
        below = s.clamp(min=0)[:, None] + self.rho * t.clamp(min=0)
        # Directions without any variance on either side have nothing to map.
        inner = (v.t() @ (x.t() @ y / len(x)) @ u) / below.clamp(min=1e-12 * float(below.max()) + 1e-300)
        matrix = v @ inner @ u.t()
        return matrix, to_mean - from_mean @ matrix
