"""The nearest class mean, by the angle between a latent and the mean."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.classifiers.base import LatentClassifier
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.checks import MOST_LATENTS, check_rows, check_whole
from elign.utils.errors import LatentError
from elign.utils.fitted import Ranges, register
from elign.utils.tensors import compute_dtype


@register
class NearestMean(LatentClassifier):
    """Scores classes by the cosine of the angle between a latent and the mean of the class.

    On latents of exemplars with `normalize=True` this is the classifier of iCaRL (Rebuffi et al., CVPR 2017); on
    statistics that an aligner transported, it is that of semantic drift compensation (Yu et al., CVPR 2020).

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

    rows_of: ClassVar[str] = "means"
    ranges: ClassVar[Ranges] = {
        "counts": (0, MOST_LATENTS),
        "fitted_rows": (0, MOST_LATENTS),
    }
    means: Tensor
    counts: Tensor
    fitted_rows: Tensor

    def __init__(self, *, normalize: bool = True) -> None:
        super().__init__()
        self.normalize = normalize

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("means", torch.zeros(self.rows, dim))
        self.register_buffer("counts", torch.zeros(self.rows, dtype=torch.int64))
        self.register_buffer("fitted_rows", torch.zeros(self.rows, dtype=torch.int64))

    def fit(
        self,
        statistics: ClassStatistics | None = None,
        z: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        head: nn.Module | None = None,
        classes: int = 0,
    ) -> Self:
        """Average labelled latents, take over the means of statistics, or both.

        A class in both has the mean of both, weighted by counts; with `normalize`, the mean of the statistics is scaled
        to length 1 for this.

        Args:
            statistics: Statistics of classes in the current model's space.
            z: Latents `(N, D)` of the current model.
            labels: Their classes `(N,)`.
            head: Not used.
            classes: Number of outputs, if there are more than classes so far.

        Raises:
            LatentError: If nothing is given, or latents, labels and statistics do not match.
        """
        classes = check_whole(classes, "classes", least=0)
        fresh = None if z is None and labels is None else self._labelled(z, labels)
        known = statistics.means_only() if statistics else None
        if known and fresh:
            known = known.with_means(F.normalize(known.means, dim=1)) if self.normalize else known
            known = known.merge(fresh)
        known = known or fresh
        like = statistics.means if z is None and statistics is not None else z
        if known is None or like is None:
            raise LatentError("give statistics, or latents z with their labels, or both")
        self.rows = max(int(known.classes.max()) + 1, classes)
        means, counts = (known.per_output(values, self.rows) for values in (known.means, known.counts))
        fitted_rows = fresh.per_output(fresh.counts, self.rows) if fresh else torch.zeros_like(counts)
        self._set(means.shape[1], means=means.to(compute_dtype(like)), counts=counts, fitted_rows=fitted_rows)
        return self.to(like.device)

    def _labelled(self, z: Tensor | None, labels: Tensor | None) -> ClassStatistics:
        if z is None or labels is None:
            raise LatentError("latents z and their labels go together: give both")
        check_rows(z, "latents")
        return ClassStatistics(covariance="none").update(self._averaged(z.detach().cpu().double()), labels)

    def _averaged(self, z: Tensor) -> Tensor:
        """Return latents as they are averaged."""
        return F.normalize(z, dim=1) if self.normalize else z

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the cosines to all means, minus infinity for classes without data, without any check."""
        dtype = compute_dtype(z)
        with torch.autocast(z.device.type, enabled=False):
            means = F.normalize(self.means.to(z.device, dtype), dim=-1)
            scores = F.normalize(z.to(dtype), dim=-1) @ means.t()
            return scores.masked_fill(self.counts.to(z.device) == 0, -torch.inf).to(z.dtype)

    def leave_one_out_scores(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Return the cosines of latents that it was fitted on, to the mean of their own class as it is without them.

        Minus infinity for the only latent of its class. A class that was fitted on statistics alone does not change.

        Args:
            z: Latents `(N, D)`.
            labels: Their classes `(N,)`.
            logits: Not used.
        """
        self._check_labelled(z, labels)
        labels = labels.to(z.device).long()
        scores = self.scores(z.detach().to(compute_dtype(z)))
        means, counts = self.means.to(scores)[labels], self.counts.to(z.device)[labels].unsqueeze(1)
        rows = z.detach().to(scores)
        # Only the direction matters, so the sum will do for the mean.
        rest = counts * means - self._averaged(rows)
        own = F.cosine_similarity(rows, rest, dim=1, eps=1e-12).masked_fill(counts.squeeze(1) < 2, -torch.inf)
        before = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
        own = torch.where(self.fitted_rows.to(z.device)[labels] > 0, own, before)
        return scores.scatter(1, labels.unsqueeze(1), own.unsqueeze(1)).to(z.dtype)
