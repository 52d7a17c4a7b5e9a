"""A weighted sum of several classifiers, with weights and a bias correction for each task chosen on training data."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from elign.classifiers.base import LatentClassifier
from elign.classifiers.bias import best_offsets, check_boundaries, offset_scores
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import read_logits
from elign.utils.fitted import Ranges, from_config, register
from elign.utils.tensors import balanced_accuracy, check_labels, check_rows, check_whole, compute_dtype

_MOST_CANDIDATES = 20_000  # weightings to compare; more estimators want fewer steps
_MOST_STEPS = 10_000
_LARGEST = 1e15  # a score whose square, summed over classes, is still a number
_NEVER = -1e6  # a score, in standard deviations, for classes that an estimator has no score for


@register
class Voting(LatentClassifier):
    """Several classifiers vote: a convex sum of their scores, with an offset subtracted from each later task's classes.

    The scores of each estimator are standardised in each row: mean 0 and standard deviation 1 over the classes that all
    estimators with a vote score. With two classes in all, this keeps which class an estimator is for, and nothing of
    how sure it is. The sum favours newer classes as its estimators do; the offsets correct that. Weights and offsets
    are chosen on labelled training latents with leave-one-out scores. A test sample never takes part in the choice.

    Args:
        estimators: The classifiers, fitted.
        task_boundaries: Number of classes after each task but the last: `[50, 60, 70]`; a single number for one task.
        steps: Weights are multiples of 1 / steps, or equal.
        standard_errors: The one-standard-error rule: of all weightings whose balanced accuracy is within so many
            standard errors of the best, the one nearest to equal weights is taken, because a few hundred exemplars that
            the model was trained on do not tell much. 0 takes the best, infinity equal weights.

    Attributes:
        weights: (estimators,) summing to 1.
        offsets: (tasks - 1,) subtracted from the scores of the classes of each task after the first.

    Example:
        >>> import torch
        >>> from elign import HeadLogits, NearestMean, Voting
        >>> z, labels = torch.eye(4).repeat(10, 1), torch.arange(4).repeat(10)
        >>> logits = z + 2 * (torch.arange(4) >= 2)                       # a head that favours the new classes 2 and 3
        >>> means = NearestMean().fit(z=z, labels=labels)
        >>> voting = Voting([HeadLogits(), means], task_boundaries=2).fit(z=z, labels=labels, logits=logits)
        >>> bool((voting(z, logits=logits).argmax(dim=1) == labels).all())
        True
    """

    ranges: ClassVar[Ranges] = {"weights": (0.0, 1.0)}
    weights: Tensor
    offsets: Tensor
    _traced: tuple[list[float], list[float]] | None = None  # in a graph: weights and offsets as plain numbers

    def __init__(
        self,
        estimators: Sequence[LatentClassifier | Mapping[str, Any]],
        *,
        task_boundaries: int | Sequence[int],
        steps: int = 4,
        standard_errors: float = 1.0,
    ) -> None:
        super().__init__()
        if not estimators:
            raise OptionError("a Voting needs at least one estimator")
        steps = check_whole(steps, "steps", least=1, most=_MOST_STEPS)
        if not standard_errors >= 0:
            raise OptionError(f"standard_errors must be a number >= 0, got {standard_errors!r}")
        if math.comb(steps + len(estimators) - 1, steps) > _MOST_CANDIDATES:
            raise OptionError(
                f"{len(estimators)} estimators in {steps} steps: over {_MOST_CANDIDATES} weightings, take fewer steps"
            )
        self.estimators = nn.ModuleList(from_config(part, LatentClassifier) for part in estimators)
        self.task_boundaries = check_boundaries(task_boundaries)
        self.steps = steps
        self.standard_errors = standard_errors
        self.needs_logits = any(part.needs_logits for part in self._parts)  # type: ignore[misc]

    def _shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        return {"weights": (len(self.estimators),), "offsets": (len(self.task_boundaries),)}

    def _check_state(self) -> None:
        if abs(float(self.weights.sum()) - 1) > 1e-3:
            raise LatentError(f"the weights sum to {float(self.weights.sum()):g}, not to 1")
        dims = [part.takes for part in self._parts if part.takes not in (None, self.dim)]
        if dims:
            raise LatentError(f"an estimator takes latents of dimension {dims[0]}, the others {self.dim}")

    @property
    def fitted(self) -> bool:
        """Whether weights were chosen and all estimators are fitted."""
        return super().fitted and all(part.fitted for part in self._parts)

    def fit(  # type: ignore[override]
        self, *, z: Tensor, labels: Tensor, logits: Tensor | None = None, head: nn.Module | None = None
    ) -> Self:
        """Choose weights and offsets; the estimators are fitted already.

        Args:
            z: Latents `(N, D)` of labelled training data of old and new classes under the current model.
            labels: Their classes `(N,)`.
            logits: What the head gives for them, if an estimator needs it.
            head: The head itself, in place of `logits`.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        logits = read_logits(head, z) if logits is None and head is not None else logits
        # Numbers of a small type would be compared with `old` as if it were one of these.
        labels, old = labels.cpu().long(), self.task_boundaries[-1]
        if not ((labels < old).any() and (labels >= old).any()):
            raise LatentError(f"a choice between old and new needs latents of both: labels below {old}, and others")
        for part in self._parts:
            part.require_fitted()
        # Minus infinity is what some heads give to outputs that no class has yet.
        if logits is not None and (logits.isnan() | (logits == torch.inf)).any():
            raise LatentError("the logits hold NaN or infinity: check the model or its input")
        with torch.no_grad():
            given = [part.leave_one_out_scores(z, labels.to(z.device), logits=logits) for part in self._parts]
        classes = _check_shapes(given, (len(z),))
        if int(labels.max()) >= classes:
            raise LatentError(f"there is a label {int(labels.max())}, but the estimators score {classes} classes")
        chosen = self._chosen([part.detach().cpu().double() for part in given], labels)
        weights, offsets = (torch.tensor(numbers, device=z.device) for numbers in (chosen.weights, chosen.offsets))
        self._set(z.shape[1], weights=weights, offsets=offsets)
        return self

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Return the sum, `(..., classes)`; about 0 for a class that no estimator favours or disfavours."""
        self._check(z)
        given = [part(z, logits=logits) for part in self.voters()[1]]
        _check_shapes(given, z.shape[:-1])
        return self._summed(given).to(z.dtype)

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Do what `forward` does, without any check: tensor operations only."""
        return self._summed([part.scores(z, logits) for part in self.voters()[1]]).to(z.dtype)

    def _summed(self, given: Sequence[Tensor]) -> Tensor:
        offsets = self._traced[1] if self._traced else self.offsets.tolist()
        return _vote(self.voters()[0], standardised(given), offsets, self.task_boundaries)

    def traceable(self) -> nn.Module:
        """Return a copy of the estimators that have a vote, traceable; weights and offsets are plain numbers in it."""
        made, (weights, parts) = copy.deepcopy(self), self.voters()
        made.estimators = nn.ModuleList(part.traceable() for part in parts)
        made._traced = weights, self.offsets.tolist()
        return made

    def voters(self) -> tuple[list[float], list[LatentClassifier]]:
        """Return the estimators that have any weight, and their weights."""
        weights = self._traced[0] if self._traced else self.weights.tolist()
        return [w for w in weights if w], [part for part, w in zip(self._parts, weights, strict=True) if w]

    @property
    def _parts(self) -> list[LatentClassifier]:
        return list(self.estimators)  # type: ignore[arg-type]

    def _chosen(self, given: Sequence[Tensor], labels: Tensor) -> _Candidate:
        standard: dict[tuple[int, ...], Tensor] = {}

        def tried(weights: tuple[float, ...]) -> _Candidate:
            # As it will predict: estimators without a vote are not asked; which classes they score does not matter.
            voters = tuple(place for place, weight in enumerate(weights) if weight)
            if voters not in standard:
                standard[voters] = standardised([given[place] for place in voters])
            return self._tried(weights, standard[voters], labels)

        grid = self._grid()
        equal = tried(next(grid))
        if math.isinf(self.standard_errors):
            return equal
        candidates = [equal, *map(tried, grid)]
        best = max(candidate.accuracy for candidate in candidates)
        counts = torch.bincount(labels).double()
        # Of a mean over classes, which may have very different numbers of latents.
        error = math.sqrt(best * (1 - best) * float((1 / counts[counts > 0]).sum())) / int((counts > 0).sum())
        # Sums in different order differ by rounding: that is no better accuracy.
        least = best - self.standard_errors * error - 1e-9
        good = (candidate for candidate in candidates if candidate.accuracy >= least)
        return min(good, key=lambda candidate: (candidate.unevenness, -candidate.accuracy))

    def _tried(self, weights: tuple[float, ...], scores: Tensor, labels: Tensor) -> _Candidate:
        """Find the best offsets for these weights of standardised scores, and what they reach together."""
        summed = _vote([weight for weight in weights if weight], scores, (), ())
        # A row whose own class an estimator has no score for cannot be won by any offset: it must not choose one.
        own = scores[:, torch.arange(len(labels), device=labels.device), labels]
        fair = (own > _NEVER / 2).all(dim=0)
        offsets = best_offsets(summed[fair], labels[fair], boundaries=self.task_boundaries)
        right = offset_scores(summed, offsets, boundaries=self.task_boundaries).argmax(dim=1) == labels
        uneven = sum((weight - 1 / len(weights)) ** 2 for weight in weights)
        return _Candidate(weights, offsets, balanced_accuracy(right, labels), round(uneven, 9))

    def _grid(self) -> Iterator[tuple[float, ...]]:
        """Yield equal weights, then all multiples of 1 / steps that sum to 1."""
        count = len(self.estimators)
        yield (1 / count,) * count
        if count == 1:
            return
        # Where the bars stand among steps + count - 1 places says how many steps each estimator gets.
        places = self.steps + count - 1
        for bars in combinations(range(places), count - 1):
            ends = (-1, *bars, places)
            yield tuple((ends[k + 1] - ends[k] - 1) / self.steps for k in range(count))


class _Candidate(NamedTuple):
    """One weighting and what it reaches on the training data it is chosen on."""

    weights: tuple[float, ...]
    offsets: tuple[float, ...]
    accuracy: float
    unevenness: float


def _check_shapes(given: Sequence[Tensor], rows: Sequence[int]) -> int:
    """Return how many classes all estimators score; raise if they differ, or score others than these rows."""
    shapes = sorted({tuple(scores.shape) for scores in given})
    if len(shapes) > 1 or shapes[0][:-1] != tuple(rows):
        raise LatentError(
            f"the estimators of a Voting score {' and '.join(map(str, shapes))} for latents {tuple(rows)}: all of "
            "them, and the head, must score the same latents and classes"
        )
    return shapes[0][-1]


def standardised(given: Sequence[Tensor]) -> Tensor:
    """Stack scores of several classifiers, each row with mean 0 and deviation 1 over the classes that all score."""
    dtype = reduce(torch.promote_types, (compute_dtype(scores) for scores in given))
    scores = torch.stack([scores.to(dtype) for scores in given])
    # Minus infinity is "nothing to say"; NaN stays NaN, as with any head. A class that one estimator says nothing of
    # cannot win, and must not decide how much the others weigh: outputs of a head that are still free may be anything.
    there = (scores != -torch.inf).all(dim=0)
    count = there.sum(dim=-1, keepdim=True).clamp(min=1)
    # Nothing infinite is computed with, and no root of 0 taken: gradients would be NaN.
    kept = torch.where(there, scores, 0.0).clamp(max=torch.finfo(dtype).max)
    # A head in half precision may give infinity: it wins its row, whose numbers must have squares.
    largest = kept.detach().abs().amax(dim=-1, keepdim=True)
    kept = kept * (_LARGEST / largest.clamp(min=_LARGEST))
    centred = torch.where(there, kept - kept.sum(dim=-1, keepdim=True) / count, 0.0)
    variance = centred.square().sum(dim=-1, keepdim=True) / count
    # A row of equal scores says nothing, and must not become noise.
    return torch.where(there, centred / variance.clamp(min=1e-24).sqrt(), _NEVER)


def _vote(weights: Sequence[float], scores: Tensor, offsets: Sequence[float], boundaries: Sequence[int]) -> Tensor:
    """Return the weighted sum of standardised scores, with the offsets subtracted."""
    parts = [weight * part for weight, part in zip(weights, scores.unbind(), strict=True)]
    return offset_scores(torch.stack(parts).sum(dim=0), offsets, boundaries=boundaries)
