"""Classes read off latents by the nearest class mean, with distances that count less where classes are wide.

Contract: `readout.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.errors import LatentError, OptionError
from elign.langevin import compute_dtype
from elign.prototypes import NearestMean
from elign.readout import Readout

_NO_SPREAD = 1e-12  # mean variance of a dimension of directions, below which it is rounding


class Discriminant(Readout):
    """Fisher's linear discriminant on the directions of latents: class means, and one covariance within classes.

    The score of class c is minus half of the squared Mahalanobis distance to its mean, in units of the mean variance
    and up to a number that is the same for all classes: which makes it a linear function of the direction. The
    covariance is that of the exemplars about the means of their own classes, all classes together, shrunk towards a
    multiple of the identity. `NearestMean` is the same with the identity alone.

    Args:
        shrinkage: Share of the identity, 0 to 1.

    Attributes:
        means: (classes, D) of latents that were scaled to length 1.
        counts: (classes,) how many latents each was made from; 0 for a label that was not among them.
        precision: (D, D) inverse of the covariance.
        scale: Mean variance of a dimension within classes; without it scores would be too large for half precision.
        weights: (classes, D) and `biases` (classes,): the linear function.

    Example:
        >>> import torch
        >>> from elign import Discriminant, NearestMean
        >>> noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
        >>> labels = torch.arange(200) % 2                       # two classes differ in the second number alone
        >>> z = torch.cat([2 * noise, 0.2 * labels.unsqueeze(1) - 0.1, torch.ones(200, 1)], dim=1)
        >>> def right(readout):
        ...     return float((readout(z).argmax(dim=1) == labels).float().mean())
        >>> right(Discriminant(shrinkage=0.01).fit(z, labels)), right(NearestMean().add(z, labels)) < 0.9
        (1.0, True)
    """

    how_to_fit = "fit(...)"
    rows_of: ClassVar[str] = "means"
    means: Tensor
    counts: Tensor
    precision: Tensor
    scale: Tensor
    weights: Tensor
    biases: Tensor

    def __init__(self, *, shrinkage: float = 0.1) -> None:
        super().__init__()
        if not 0 <= shrinkage <= 1:
            raise OptionError(f"shrinkage must be in [0, 1], got {shrinkage!r}")
        self.shrinkage = shrinkage

    def config(self) -> dict[str, Any]:
        """The options this readout was made with."""
        return {"shrinkage": self.shrinkage}

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("means", torch.zeros(self.rows, dim))
        self.register_buffer("counts", torch.zeros(self.rows, dtype=torch.int64))
        self.register_buffer("precision", torch.eye(dim))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("weights", torch.zeros(self.rows, dim))
        self.register_buffer("biases", torch.zeros(self.rows))

    def fit(self, z: Tensor, labels: Tensor, *, classes: int = 0) -> Self:
        """Learn from exemplars of all classes under the current model; made anew after each task.

        Args:
            z: Latents `(N, D)`.
            labels: Their classes `(N,)`: places among the head's outputs.
            classes: How many outputs the head has, if these are more than the classes so far.

        Raises:
            LatentError: If latents and labels do not fit each other, or do not fix a covariance that is not shrunk.
        """
        nearest = NearestMean().add(z, labels, classes=classes)
        # On the CPU, since not every accelerator has float64.
        means, counts = nearest.means.cpu().double(), nearest.counts
        rows = F.normalize(z.detach().cpu().double(), dim=1)
        within = rows - means[labels.cpu().long()]
        covariance = within.t() @ within / len(rows)
        scale, identity = covariance.diagonal().mean(), torch.eye(z.shape[1], dtype=torch.float64, device="cpu")
        shrunk = (1 - self.shrinkage) * covariance + self.shrinkage * scale * identity
        # One latent of each class says nothing of how classes spread (and equal ones differ by rounding alone): what is
        # left is the nearest mean.
        if scale < _NO_SPREAD:
            shrunk, scale = identity, identity.new_ones(())
        factor, failed = torch.linalg.cholesky_ex(shrunk)
        if int(failed):
            raise LatentError(
                f"{len(z)} latents of dimension {z.shape[1]} do not fix a covariance: take a larger shrinkage"
            )
        precision = torch.cholesky_inverse(factor)
        self.rows = len(counts)
        with torch.inference_mode(False):
            self._build(z.shape[1])
            # (z - m)' P (z - m) = z'Pz - 2 z'Pm + m'Pm, and z'Pz is the same for all classes.
            weights = scale * means @ precision
            biases = (weights * means).sum(dim=1) / 2
            made = {"means": means, "precision": precision, "scale": scale, "weights": weights, "biases": biases}
            for name, tensor in made.items():
                # Contiguous, as it is read from a file: products round alike then. A copy, since what was made under
                # inference mode could never be changed again.
                setattr(self, name, tensor.to(z.device, compute_dtype(z)).clone(memory_format=torch.contiguous_format))
            self.counts = counts.clone()
        return self

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Scores `(..., classes)`; minus infinity for labels that were not among the exemplars'."""
        self._check(z)
        return self.scores(z)

    def scores(self, z: Tensor) -> Tensor:
        """What `forward` gives, without any check: tensor operations only."""
        dtype = compute_dtype(z)
        with torch.autocast(z.device.type, enabled=False):
            rows = F.normalize(z.to(dtype), dim=-1)
            weights, biases = (t.to(z.device, dtype) for t in (self.weights, self.biases))
            scores = rows @ weights.t() - biases
            return scores.masked_fill(self.counts.to(z.device) == 0, -torch.inf).to(z.dtype)

    def left_out(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Scores of latents that it was fitted on, each as if it had been fitted without that one.

        Mean and covariance both change (but for the scale of the identity in the latter, which hardly does). Minus
        infinity for the only latent of its class.
        """
        self._check_labelled(z, labels)
        labels = labels.to(z.device).long()
        scale = self.scale.to(z.device, compute_dtype(z))
        rows = F.normalize(z.to(scale), dim=1)
        means, precision = self.means.to(rows), self.precision.to(rows)
        # Whole distances: here what is the same for all classes does not stay so.
        scores = self.scores(z.to(scale)) / scale - ((rows @ precision) * rows).sum(dim=1, keepdim=True) / 2
        counts, total = self.counts.to(z.device)[labels].to(rows), int(self.counts.sum())
        residual = rows - means[labels]
        # Without this row the scatter of its class loses `grown` times the outer product of its residual, and the
        # residual itself is longer by `grown`. The inverse follows by the formula of Sherman and Morrison.
        grown = counts / (counts - 1).clamp(min=1)
        pull = residual @ precision
        share = (1 - self.shrinkage) * grown / total
        stretch = share / (1 - share * (pull * residual).sum(dim=1)).clamp(min=1e-12)
        # pull . (z - m_c) for every class c, then for the own one, whose mean moves away.
        along = (pull * rows).sum(dim=1, keepdim=True) - pull @ means.t()
        own = labels.unsqueeze(1)
        near = (pull * residual).sum(dim=1)
        scores = scores.scatter(1, own, (-(grown**2) * near / 2).unsqueeze(1))
        along = along.scatter(1, own, (grown * near).unsqueeze(1))
        scores = (scores - stretch.unsqueeze(1) * along.square() / 2) * (total - 1) / total
        alone = (counts < 2).unsqueeze(1) & (torch.arange(self.rows, device=z.device) == own)
        return (scale * scores).masked_fill(alone, -torch.inf).to(z.dtype)
