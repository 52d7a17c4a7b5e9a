"""The dual projection of DPCR: one map for all classes, and one projection for each."""

from __future__ import annotations

import torch
from torch import Tensor

from elign.aligners.affine import AffineAligner, solve_ridge
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.fitted import register
from elign.utils.tensors import check_number


@register
class DPCR(AffineAligner):
    """Least squares without an intercept, after a projection on the span of each class (R. He et al., ICML 2025).

    With `P = (X'X + 1e-9 I)^-1 X'Y` and U_c the eigenvectors of the uncentred second moment `F_c = S_c + m m'` of class
    c, means become `m U U' P` and second moments `P' U U' F_c U U' P`. Eigenvectors count whose eigenvalue is above
    `tolerance` of the largest. The released code counts all above 0, which rounding makes nearly all. With the exact
    span, the projection changes nothing: the mean and the second moment of a class lie in it.

    Args:
        tolerance: Smallest eigenvalue in U_c, relative to the largest.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        >>> statistics = elign.ClassStatistics().update(z, torch.zeros(100, dtype=torch.int64))
        >>> moved = elign.DPCR().fit_latents(z, 2 * z, direction="forward").transport(statistics)
        >>> bool(torch.allclose(moved.covariances, 4 * statistics.covariances, atol=1e-4))
        True
    """

    def __init__(self, *, tolerance: float = 1e-6) -> None:
        super().__init__()
        self.tolerance = check_number(tolerance, "tolerance", most=0.999)

    def _solve(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        return solve_ridge(source, target, 1e-9), None

    def transport(self, statistics: ClassStatistics, *, per_class: int | None = None) -> ClassStatistics:
        """Project the statistics of each class on its span, then map them; only full covariances have a span."""
        if statistics.fitted and statistics.form == "full":
            means, covariances = [], []
            for label, mean in zip(statistics.classes.tolist(), statistics.means.cpu().double(), strict=True):
                covariance = statistics.covariance_of(label)
                values, vectors = torch.linalg.eigh(covariance + torch.outer(mean, mean))
                kept = vectors[:, values > self.tolerance * values.amax()]
                projector = kept @ kept.t()
                means.append(projector @ mean)
                # F U U' - (U U' m)(U U' m)' is the covariance, projected.
                covariances.append(projector @ covariance @ projector)
            statistics = statistics._changed(means=torch.stack(means), covariances=torch.stack(covariances))
        return super().transport(statistics, per_class=per_class)
