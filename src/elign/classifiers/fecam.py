"""Mahalanobis distances to class means with shrunk correlations: FeCAM."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.classifiers.base import Given, RefittedClassifier
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.fitted import Shapes, register
from elign.utils.tensors import check_number, compute_dtype


@register
class FeCAM(RefittedClassifier):
    """Distances `(z - m_c)' R_c^-1 (z - m_c)` of directions, R_c shrunk correlations (D. Goswami et al., NeurIPS 2023).

    `S + shrink_diagonal v I + shrink_rest w (1 - I)`, v the mean variance and w the mean of the other entries, is
    applied to the covariance of each class twice, as in the released code; then it is divided by its deviations, which
    makes it a correlation. No log-determinant. With `power` p < 1, latents and means become `sign(z) |z|^p` first
    (Tukey's ladder; p = 0.5 in the paper, for latents after a ReLU); covariances of statistics follow through samples.
    Latents and means, but not what the covariances are computed from, are then scaled to length 1.

    Args:
        shrink_diagonal: The paper has 1.
        shrink_rest: The paper has 1 for ResNets and 0 for ViTs.
        power: 1 leaves latents as they are.

    Attributes:
        means: (classes, D), `inverses` (classes, D, D), `counts` (classes,) 0 for a class without data.

    Example:
        >>> import torch, elign
        >>> z, labels = torch.eye(2).repeat(5, 1), torch.arange(2).repeat(5)
        >>> elign.FeCAM().fit(z=z, labels=labels)(z[:2]).argmax(dim=1)
        tensor([0, 1])
    """

    rows_of: ClassVar[str] = "means"
    shapes: ClassVar[Shapes] = {"means": "RD", "inverses": "RDD"}
    means: Tensor
    inverses: Tensor

    def __init__(self, *, shrink_diagonal: float = 1.0, shrink_rest: float = 1.0, power: float = 1.0) -> None:
        super().__init__()
        self.shrink_diagonal = check_number(shrink_diagonal, "shrink_diagonal")
        self.shrink_rest = check_number(shrink_rest, "shrink_rest")
        self.power = check_number(power, "power", most=1, positive=True)

    def _ladder(self, z: Tensor) -> Tensor:
        return z if self.power == 1 else z.sign() * z.abs().pow(self.power)

    def _points(self, z: Tensor) -> Tensor:
        return F.normalize(self._ladder(z), dim=-1)

    def _learn(self, given: Given) -> None:
        plain, raised = ClassStatistics(covariance="none"), ClassStatistics(covariance="full")
        if given.statistics is not None:
            generator = torch.Generator().manual_seed(0)
            plain = given.statistics.means_only()
            moved = given.statistics.resampled(lambda z: self._ladder(z.double()).to(z), generator=generator)
            tensors = {name: getattr(moved, name) for name in ("classes", "counts", "means")}
            covariances = torch.stack([moved.covariance_of(label) for label in moved.classes.tolist()])
            raised = raised._made({**tensors, "covariances": covariances}, moved.means.dtype)
        if given.labelled is not None:
            z, labels = given.labelled
            plain.update(z, labels)
            raised.update(self._ladder(z.double()), labels)
        self.rows = max(int(plain.classes.max()) + 1, given.classes)
        inverses = torch.stack([self._inverse(raised.covariance_of(label)) for label in raised.classes.tolist()])
        tensors = {"means": self._points(plain.means.double()), "inverses": inverses}
        dtype = compute_dtype(given.like)
        made = {name: plain.per_output(t.cpu(), self.rows).to(dtype) for name, t in tensors.items()}
        self._set(plain.means.shape[1], **made, counts=plain.per_output(plain.counts, self.rows))

    def _inverse(self, covariance: Tensor) -> Tensor:
        dim = len(covariance)
        identity = torch.eye(dim, dtype=covariance.dtype, device="cpu")
        for _ in range(2):
            variance = covariance.diagonal().mean()
            rest = (covariance.sum() - covariance.diagonal().sum()) / max(1, dim * (dim - 1))
            covariance = covariance + self.shrink_diagonal * variance * identity
            covariance = covariance + self.shrink_rest * rest * (1 - identity)
        deviations = covariance.diagonal().clamp(min=1e-30).sqrt()
        correlation = covariance / torch.outer(deviations, deviations)
        # A dimension without any variance has no correlations.
        correlation.diagonal().fill_(1.0)
        found: Tensor = torch.linalg.pinv(correlation, hermitian=True)
        return found

    def _row_scores(self, rows: Tensor) -> Tensor:
        points, inverses = self._points(rows), self.inverses.to(rows)
        away = [points - mean for mean in self.means.to(rows)]
        return torch.stack([-(d @ r * d).sum(dim=-1) for d, r in zip(away, inverses, strict=True)], dim=-1)
