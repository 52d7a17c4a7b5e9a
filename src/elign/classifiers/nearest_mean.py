"""The nearest class mean, by the angle between a latent and the mean."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.classifiers.base import Given, MeansClassifier
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.fitted import register
from elign.utils.tensors import compute_dtype


@register
class NearestMean(MeansClassifier):
    """Scores classes by the cosine of the angle between a latent and the mean of the class.

    On latents of exemplars with `normalize=True` this is the classifier of iCaRL (Rebuffi et al., CVPR 2017); on
    statistics that an aligner transported, it is that of semantic drift compensation (Yu et al., CVPR 2020). A class
    with statistics and labelled latents has the mean of both, weighted by counts; with `normalize`, the mean of the
    statistics is scaled to length 1 for this.

    Args:
        normalize: Whether latents are scaled to length 1 before they are averaged.

    Attributes:
        means: (classes, D).
        counts: (classes,) number of latents behind each mean; 0 for a class without data.
        fitted_rows: (classes,) how many of these were given as labelled latents.

    Example:
        >>> import torch
        >>> from elign import NearestMean
        >>> z, labels = torch.tensor([[9.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> classifier = NearestMean().fit(z=z, labels=labels)
        >>> classifier.means
        tensor([[0.8000, 0.4000],
                [0.0000, 1.0000]])
        >>> classifier(torch.tensor([[0.0, 5.0]])).argmax(dim=1)
        tensor([1])
    """

    needs_covariance: ClassVar[bool] = False

    def __init__(self, *, normalize: bool = True) -> None:
        super().__init__()
        self.normalize = normalize

    def _learn(self, given: Given) -> None:
        known = given.statistics.means_only() if given.statistics else ClassStatistics(covariance="none")
        if known.fitted and given.labelled is not None:
            known = known.with_means(self._points(known.means))
        known, counts = self._collected(known, given)
        means = known.per_output(known.means, self.rows)
        self._set(means.shape[1], means=means.to(compute_dtype(given.like)), **counts)

    def _row_scores(self, rows: Tensor) -> Tensor:
        return F.normalize(rows, dim=-1) @ F.normalize(self.means.to(rows), dim=-1).t()

    def leave_one_out_scores(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Return the cosines of latents that it was fitted on, to the mean of their own class as it is without them.

        Minus infinity for the only latent of its class. A class that was fitted on statistics alone does not change.
        """
        self._check_labelled(z, labels)
        labels = labels.to(z.device).long()
        rows = z.detach().to(compute_dtype(z))
        scores = self.scores(rows)
        means, counts = self.means.to(rows)[labels], self.counts.to(z.device)[labels]
        # Only the direction matters, so the sum divided by the old count will do for the mean.
        rest = means - self._points(rows) / counts.clamp(min=1).unsqueeze(1)
        own = F.cosine_similarity(rows, rest, dim=1, eps=1e-12).masked_fill(counts < 2, -torch.inf)
        inside = (self.fitted_rows.to(z.device)[labels] > 0).unsqueeze(1)
        mine = torch.arange(self.rows, device=z.device) == labels.unsqueeze(1)
        return torch.where(inside & mine, own.unsqueeze(1), scores).to(z.dtype)
