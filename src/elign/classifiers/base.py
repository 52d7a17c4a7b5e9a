"""The contract of all classifiers on latents; the head's own logits; a classifier behind an aligner."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.aligners.base import Aligner
from elign.statistics.class_statistics import ClassStatistics, check_statistics
from elign.utils.errors import LatentError, OptionError
from elign.utils.fitted import FittedModule, Ranges, Shapes, from_config, register
from elign.utils.tensors import (
    MOST_LATENTS,
    check_finite,
    check_labels,
    check_rows,
    check_whole,
    compute_dtype,
    fixed_generator,
    rounded,
)

_FOLDS = 5


class Given(NamedTuple):
    """The arguments of a fit, checked."""

    statistics: ClassStatistics | None
    labelled: tuple[Tensor, Tensor] | None
    head: nn.Module | None
    classes: int
    like: Tensor
    """Has the type and the device of latents."""


class LatentClassifier(FittedModule):
    """Scores of all classes for latents of the current model: `classifier(z, logits=...)`; the highest score wins.

    It sees no label of the latents that it scores. A subclass gives `scores`, tensor operations only, so that it can be
    exported; `forward` checks its input and calls it. If it learns, it also gives `_learn`, which `fit` calls, and
    `shapes` of the tensors that it learns.

    Example:
        >>> import torch
        >>> from elign import LatentClassifier
        >>> class HalfLogits(LatentClassifier):                              # a classifier of your own
        ...     learns = False
        ...     def scores(self, z, logits=None):
        ...         return logits / 2
        >>> HalfLogits()(torch.zeros(1, 8), logits=torch.tensor([[2.0, 4.0]]))
        tensor([[1., 2.]])
    """

    needs_logits: ClassVar[bool] = False
    """Whether the scores depend on the head's logits."""
    needs_covariance: ClassVar[bool] = False
    """Whether statistics that it is fitted on must hold covariances."""

    @property
    def takes(self) -> int | None:
        """Dimension of the latents that it scores; None if it does not matter."""
        return self.dim

    @property
    def aligners(self) -> list[Aligner]:
        """All aligners inside of it."""
        return [part for part in self.modules() if isinstance(part, Aligner)]

    def fit(
        self,
        statistics: ClassStatistics | None = None,
        z: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        head: nn.Module | None = None,
        classes: int = 0,
    ) -> Self:
        """Fit on statistics of classes, on labelled latents of the current model, or on both.

        Args:
            statistics: What is remembered of classes, in the current model's space.
            z: Latents `(N, D)` of the current model.
            labels: Their classes `(N,)`: places among the head's outputs.
            head: The model's head, an `nn.Linear`, if the classifier starts from it; rows that it lacks start at 0.
            classes: Number of the head's outputs, if there are more than classes so far.

        Raises:
            LatentError: If nothing is given, latents, labels and statistics do not match, or latents are too large or
                leave a covariance singular.
        """
        classes = check_whole(classes, "classes", least=0)
        if (z is None) != (labels is None) or (z is None and statistics is None):
            raise LatentError("give statistics, or latents z with their labels, or both")
        labelled = None
        if z is not None and labels is not None:
            check_rows(z, "latents")
            check_labels(labels, len(z))
            labelled = z.detach(), labels
        if statistics is not None:
            check_statistics(statistics, None if z is None else z.shape[1])
        like: Tensor = statistics.means if z is None else z  # type: ignore[union-attr]
        given = Given(statistics, labelled, head, classes, like)
        self._learn(given)
        if not all(bool(tensor.isfinite().all()) for tensor in self.buffers()):
            self._forget()
            raise LatentError(f"these latents are too large, or too close, for {compute_dtype(like)}: scale them")
        self._keep(given)
        return self.to(like.device)

    def _learn(self, given: Given) -> None:
        """Do what `fit` does, with checked arguments."""
        raise NotImplementedError

    def _keep(self, given: Given) -> None:
        """Keep what is needed of the arguments once they are learned from."""

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Score latents `(..., D)`: `(..., classes)`. `logits` are what the head gives for them."""
        self._check(z)
        if self.needs_logits and logits is None:
            raise LatentError(f"{type(self).__name__} needs the head's logits: pass logits=head(z)")
        return self.scores(z, logits)

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Do what `forward` does, without any check: tensor operations only."""
        raise NotImplementedError

    def leave_one_out_scores(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Score labelled training latents `(N, D)`, each as if this classifier had been fitted without it.

        A choice on training data must not be made on the data that made the scores. A classifier that was not fitted
        on these latents scores them like any others.
        """
        return self.forward(z, logits=logits)

    def _check(self, z: Tensor) -> None:
        """Raise if these are not latents that it scores."""
        self.require_fitted()
        check_finite(z, "latents")
        if self.takes is not None and z.shape[-1:] != (self.takes,):
            name = type(self).__name__
            raise LatentError(f"this {name} takes latents of dimension {self.takes}, got shape {tuple(z.shape)}")

    def _check_labelled(self, z: Tensor, labels: Tensor) -> None:
        """Raise if these are not labelled latents of the classes that it has rows for."""
        check_rows(z, "latents")
        self._check(z)
        check_labels(labels, len(z))
        if int(labels.max()) >= self.rows:
            raise LatentError(f"there is a label {int(labels.max())}, but only {self.rows} classes")


class CountedClassifier(LatentClassifier):
    """Base of classifiers that count the latents behind each class; classes without any score minus infinity.

    A subclass gives `_row_scores` in place of `scores`.
    """

    needs_covariance: ClassVar[bool] = True
    ranges: ClassVar[Ranges] = {"counts": (0, MOST_LATENTS)}
    counts: Tensor

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("counts", torch.zeros(self.rows, dtype=torch.int64))

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Do what `forward` does, without any check: tensor operations only."""
        with torch.autocast(z.device.type, enabled=False):
            return rounded(self._finished(self._row_scores(z.to(compute_dtype(z)))), z.dtype)

    def _row_scores(self, rows: Tensor) -> Tensor:
        """Score latents in float32 or float64, classes without data in any way."""
        raise NotImplementedError

    def _finished(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(self.counts.to(scores.device) == 0, -torch.inf)


class RefittedClassifier(CountedClassifier):
    """Base of classifiers without a closed form for what a latent adds: they are fitted again without it."""

    _fitted_with: tuple[ClassStatistics | None, nn.Module | None] = (None, None)

    def _keep(self, given: Given) -> None:
        self._fitted_with = (given.statistics, given.head)

    def leave_one_out_scores(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Score latents by classifiers that were fitted without them, in five folds.

        These are fitted on the same statistics and from the same head as this one, if it was not loaded from a file:
        files hold neither, and then the given latents are all there is to learn from.
        """
        self._check_labelled(z, labels)
        statistics, head = self._fitted_with
        labels = labels.to(z.device).long()
        order = labels.argsort(stable=True)
        folds = torch.empty_like(order).index_copy_(0, order, places_in_order(labels[order]) % _FOLDS)
        scores = torch.full((len(z), self.rows), -torch.inf, dtype=z.dtype, device=z.device)
        for fold in range(int(folds.max()) + 1):
            out = folds == fold
            if statistics is not None or not out.all():
                inside = (None, None) if out.all() else (z[~out], labels[~out])
                fitted = type(self)(**self.config()).fit(statistics, *inside, head=head, classes=self.rows)
                scores[out] = fitted.scores(z[out])
        return scores


def places_in_order(ordered: Tensor) -> Tensor:
    """Return the place of each entry among the equal entries of a sorted tensor."""
    counts = torch.bincount(ordered)
    return torch.arange(len(ordered), device=ordered.device) - (counts.cumsum(0) - counts)[ordered]


class MeansClassifier(CountedClassifier):
    """Base of classifiers that hold the means of classes, of statistics and labelled latents together."""

    rows_of: ClassVar[str] = "means"
    shapes: ClassVar[Shapes] = {"means": "RD"}
    ranges: ClassVar[Ranges] = {**CountedClassifier.ranges, "fitted_rows": (0, MOST_LATENTS)}
    normalize: bool
    means: Tensor
    fitted_rows: Tensor

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("fitted_rows", torch.zeros(self.rows, dtype=torch.int64))

    def _points(self, z: Tensor) -> Tensor:
        """Return latents as they are averaged."""
        return F.normalize(z, dim=-1) if self.normalize else z

    def _collected(
        self, known: ClassStatistics, given: Given, dtype: torch.dtype = torch.float64
    ) -> tuple[ClassStatistics, dict[str, Tensor]]:
        """Add labelled latents to statistics, fitted or not; return them with `counts` and `fitted_rows`.

        Sets the number of outputs.
        """
        fitted_rows = torch.zeros(0, dtype=torch.int64, device="cpu")
        if given.labelled is not None:
            z, labels = given.labelled
            fresh = ClassStatistics(covariance=known.covariance, rank=known.rank)
            fresh.update(self._points(z.cpu().double()).to(dtype), labels)
            known = known.merge(fresh) if known.fitted else fresh
            fitted_rows = labels.cpu().long()
        self.rows = max(int(known.classes.max()) + 1, given.classes)
        counts = known.per_output(known.counts, self.rows)
        return known, {"counts": counts, "fitted_rows": fitted_rows.bincount(minlength=self.rows).to(counts.device)}


@register
class HeadLogits(LatentClassifier):
    """The head's own logits: an estimator of a `Voting`.

    Example:
        >>> import torch
        >>> from elign import HeadLogits
        >>> HeadLogits()(torch.zeros(1, 8), logits=torch.tensor([[2.0, 4.0]]))
        tensor([[2., 4.]])
    """

    learns = False
    needs_logits = True

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the logits."""
        if logits is None:
            raise LatentError("HeadLogits needs the head's logits: pass logits=head(z)")
        return logits


@register
class Aligned(LatentClassifier):
    """Classifies aligned latents with another classifier.

    Args:
        aligner: A fitted aligner.
        classifier: What scores the latents once they are aligned; fitted on aligned latents, if on any.

    Example:
        >>> import torch
        >>> from elign import Aligned, MeanShift, NearestMean
        >>> z, labels = torch.eye(2).repeat(5, 1), torch.arange(2).repeat(5)
        >>> aligner = MeanShift().fit_latents(z, z + 3)
        >>> Aligned(aligner, NearestMean().fit(z=z, labels=labels))(z[:2] + 3).argmax(dim=1)
        tensor([0, 1])
    """

    learns = False
    how_to_fit = "fit(...) of its aligner and of its classifier"

    def __init__(self, aligner: Aligner | Mapping[str, Any], classifier: LatentClassifier | Mapping[str, Any]) -> None:
        super().__init__()
        self.aligner = from_config(aligner, Aligner)
        self.classifier = from_config(classifier, LatentClassifier)
        self.needs_logits = self.classifier.needs_logits  # type: ignore[misc]

    @property
    def fitted(self) -> bool:
        """Whether both parts are."""
        return self.aligner.fitted and self.classifier.fitted

    @property
    def takes(self) -> int | None:
        """What the aligner takes."""
        return self.aligner.dim

    def _check_state(self) -> None:
        if self.classifier.takes not in (None, self.aligner.dim):
            dims = f"{self.aligner.dim}, the classifier takes {self.classifier.takes}"
            raise LatentError(f"the aligner gives latents of dimension {dims}")

    def _check(self, z: Tensor) -> None:
        self._check_state()
        if self.aligner.direction == "forward":
            raise OptionError('Aligned needs an aligner that was fitted with direction="backward"')
        super()._check(z)

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Score the aligned latents."""
        return self.classifier.scores(self._aligned(z), logits)

    def leave_one_out_scores(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Return those of the classifier, for the aligned latents."""
        self._check(z)
        return self.classifier.leave_one_out_scores(self._aligned(z), labels, logits=logits)

    def _aligned(self, z: Tensor) -> Tensor:
        # The same batch gets the same noise, where an aligner uses any; a row in another place gets another.
        generator = None if torch.compiler.is_compiling() else fixed_generator(z)
        return self.aligner.align(z, generator=generator)

    def traceable(self) -> nn.Module:
        """Return a copy with both parts in their traceable forms."""
        # A copy: this one may stand in two places, and is asked for its form in each.
        made = copy.deepcopy(self)
        made.aligner, made.classifier = self.aligner.traceable(), self.classifier.traceable()  # type: ignore[assignment]
        return made
