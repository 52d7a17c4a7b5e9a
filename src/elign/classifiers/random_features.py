"""Ridge regression on random features: RanPAC."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from elign.classifiers.base import Given, RefittedClassifier
from elign.utils.fitted import register
from elign.utils.tensors import check_number, check_seed, check_whole, compute_dtype, product

_PENALTIES = tuple(10.0**power for power in range(-8, 9))
_HELD_OUT = 5  # one in so many latents chooses the penalty


@register
class RandomFeatures(RefittedClassifier):
    """Ridge regression of one-hot classes on `relu(z R)`, R random (RanPAC, M. McDonnell et al., NeurIPS 2023).

    `W = (H'H + penalty I)^-1 H'Y`. RanPAC keeps the sums `H'H` and `H'Y` of a frozen backbone; here classes of the
    statistics are sampled, so that these sums follow a model that drifts. Latents are
    divided by their root mean square first. Every class has the same weight.

    Args:
        width: Number of random features; 10,000 in the paper.
        penalty: `auto` takes that of 1e-8, ..., 1e8 with the smallest squared error on a fifth of the latents; the
            paper takes this fifth of the newest task.
        samples_per_class: Samples of statistics, and most labelled latents, used for each class.
        seed: Of R and the samples.

    Attributes:
        projection: (D, width), `weight` (classes, width), `counts` (classes,) 0 for a class without data.

    Example:
        >>> import torch, elign
        >>> z, labels = torch.eye(2).repeat(10, 1), torch.arange(2).repeat(10)
        >>> elign.RandomFeatures(width=50).fit(z=z, labels=labels)(z[:2]).argmax(dim=1)
        tensor([0, 1])
    """

    rows_of: ClassVar[str] = "weight"
    projection: Tensor
    weight: Tensor

    def __init__(
        self,
        *,
        width: int = 2000,
        penalty: float | Literal["auto"] = "auto",
        samples_per_class: int = 200,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if penalty != "auto":
            check_number(penalty, 'penalty, if it is not "auto",', positive=True)
        self.penalty: float | Literal["auto"] = penalty
        self.width = check_whole(width, "width", least=1, most=100_000)
        self.samples_per_class = check_whole(samples_per_class, "samples_per_class", least=2, most=1_000_000)
        self.seed = check_seed(seed)

    def _shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        return {"projection": (dim, self.width), "weight": (self.rows, self.width)}

    def _learn(self, given: Given) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        parts = []
        if given.labelled is not None:
            z, labels = given.labelled[0].cpu().double(), given.labelled[1].cpu().long()
            order = torch.randperm(len(z), generator=generator, device="cpu")
            chosen = [order[labels[order] == label][: self.samples_per_class] for label in sorted(set(labels.tolist()))]
            parts.append((z[torch.cat(chosen)], labels[torch.cat(chosen)]))
        if given.statistics is not None:
            drawn, classes = given.statistics.sample(self.samples_per_class, generator)
            parts.append((drawn.cpu().double(), classes.cpu().long()))
        z, labels = (torch.cat(each) for each in zip(*parts, strict=True))
        counts = torch.bincount(labels, minlength=given.classes)
        self.rows = len(counts)
        size = z.square().mean().sqrt().clamp(min=1e-30)
        projection = torch.randn(z.shape[1], self.width, generator=generator, device="cpu").double() / size
        shares = (1 / counts[labels].double()).sqrt()[:, None] * math.sqrt(len(z) / int((counts > 0).sum()))
        h = (z @ projection).relu() * shares
        y = torch.eye(self.rows, dtype=torch.float64, device="cpu")[labels] * shares
        penalty = self._best_penalty(h, y, generator) if self.penalty == "auto" else self.penalty
        weight = _solve(h.t() @ h, h.t() @ y, penalty).t()
        dtype = compute_dtype(given.like)
        self._set(z.shape[1], projection=projection.to(dtype), weight=weight.to(dtype), counts=counts)

    def _best_penalty(self, h: Tensor, y: Tensor, generator: torch.Generator) -> float:
        out = torch.randperm(len(h), generator=generator, device="cpu") % _HELD_OUT == 0
        values, vectors = torch.linalg.eigh(h[~out].t() @ h[~out])
        inputs, slopes = h[out] @ vectors, vectors.t() @ (h[~out].t() @ y[~out])

        def error(penalty: float) -> float:
            return float((inputs / (values.clamp(min=0) + penalty) @ slopes - y[out]).square().mean())

        return min(_PENALTIES, key=error)

    def _row_scores(self, rows: Tensor) -> Tensor:
        return product(product(rows, self.projection.to(rows)).relu(), self.weight.to(rows).t())


def _solve(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    gram = gram.clone()
    # Random features of few latents leave directions empty: a share of the mean keeps the smallest penalties solvable.
    gram.diagonal().add_(penalty + 1e-10 * float(gram.diagonal().mean()))
    return torch.cholesky_solve(cross, torch.linalg.cholesky(gram))
