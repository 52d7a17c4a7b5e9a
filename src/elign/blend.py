"""A weighted sum of several readouts, with weights and offsets chosen on training data. Contract: `readout.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations, pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from elign.accuracy import balanced_accuracy
from elign.checks import check_labels, check_rows, check_whole, whole_numbers
from elign.errors import LatentError, OptionError
from elign.langevin import compute_dtype
from elign.offset import best_offsets, offset_scores
from elign.prototypes import Prototypes
from elign.readout import Readout
from elign.storage import described, remade

_MOST = 20_000  # blends to compare; more parts want fewer steps
_NEVER = -1e6  # a score, in standard deviations, for classes that a part has nothing to say of


class Blend(Readout):
    """Several readouts vote: a convex sum of their scores, and one number for each task taken off its classes'.

    Scores of different parts are comparable after each row is brought to mean 0 and standard deviation 1 over the
    classes that all parts with a vote score (an output of the head that no class has yet is none of these). With two
    classes in all that leaves of each part which one it is for, and nothing of how sure it is. The sum favours newer
    classes as its parts do, and offsets undo that (an offset for each part would come to the same, since weights only
    add them up). Weights and offsets are chosen on labelled training latents: exemplars of all classes, each scored as
    if a `NearestMean` or `Discriminant` had been made without it; or, where none were kept, data of the new classes
    and `Prototypes.stand_ins` for the old ones. A test sample never takes part in the choice::

        means = elign.NearestMean().add(z, labels)  # of exemplars
        aligned = elign.NearestMean().add(aligner.align(z), labels)
        blend = elign.Blend([elign.HeadScores(), means, elign.Aligned(aligner, aligned)], known=50)
        elign.attach(model, "fc", blend.choose(z, labels, logits=model.fc(z)))

    Args:
        parts: The readouts.
        known: Number of old classes, which are the first ones; or, where they came in several tasks, how many there
            were after each of these: `[50, 60, 70]`.
        steps: Weights are multiples of 1 / steps, or equal.
        caution: Of all blends whose balanced accuracy is within so many standard errors of the best one, that nearest
            to equal weights is taken: a few hundred exemplars that the model was trained on do not tell much.
            0 takes the best, infinity equal weights.

    Attributes:
        weights: (parts,) summing to 1.
        offsets: (tasks - 1,) taken off the scores of the classes of each task after the first.

    Example:
        >>> import torch
        >>> from elign import Blend, HeadScores, Prototypes
        >>> z, labels = torch.eye(4).repeat(10, 1), torch.arange(4).repeat(10)
        >>> logits = z + 2 * (torch.arange(4) >= 2)                       # a head that favours the new classes 2 and 3
        >>> blend = Blend([HeadScores(), Prototypes().add(z, labels)], known=2).choose(z, labels, logits=logits)
        >>> bool((blend(z, logits=logits).argmax(dim=1) == labels).all())
        True
    """

    how_to_fit = "choose(...)"
    weights: Tensor
    offsets: Tensor

    def __init__(
        self,
        parts: Sequence[Readout | Mapping[str, Any]],
        *,
        known: int | Sequence[int],
        steps: int = 4,
        caution: float = 1.0,
    ) -> None:
        super().__init__()
        if not parts:
            raise OptionError("a Blend needs at least one part")
        steps = check_whole(steps, "steps", least=1)
        if not caution >= 0:
            raise OptionError(f"caution must be a number >= 0, got {caution!r}")
        if math.comb(steps + len(parts) - 1, steps) > _MOST:
            raise OptionError(f"{len(parts)} parts in {steps} steps are over {_MOST} blends: take fewer steps")
        self.parts = nn.ModuleList(remade(part, Readout) for part in parts)
        self.ends = task_ends(known)
        self.steps = steps
        self.caution = caution

    def config(self) -> dict[str, Any]:
        """The options this blend was made with, its parts described."""
        parts = [described(part) for part in self._parts()]
        return {"parts": parts, "known": self.ends, "steps": self.steps, "caution": self.caution}

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("weights", torch.zeros(len(self.parts)))
        self.register_buffer("offsets", torch.zeros(len(self.ends)))

    @property
    def fitted(self) -> bool:
        """Are all parts, and was a blend of them chosen?"""
        return super().fitted and all(part.fitted for part in self._parts())

    def choose(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Self:
        """Choose weights and offsets.

        Args:
            z: Latents `(N, D)` of labelled training data of old and new classes under the current model.
            labels: Their classes `(N,)`.
            logits: What the head says of them, if a part asks for it.

        Raises:
            LatentError: If there are no old or no new classes among them.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        # Numbers of a small type would be compared with `old` as if it were one of these.
        labels, old = labels.cpu().long(), self.ends[-1]
        if not ((labels < old).any() and (labels >= old).any()):
            raise LatentError(f"a choice between old and new needs latents of both: labels below {old}, and others")
        for part in self._parts():
            part.require_fitted()
        # Minus infinity is what some heads give to outputs that no class has yet.
        if logits is not None and (logits.isnan() | (logits == torch.inf)).any():
            raise LatentError("the logits hold NaN or infinity: check the model or its input")
        with torch.no_grad():
            given = [part.left_out(z, labels.to(z.device), logits=logits) for part in self._parts()]
        *rows, classes = _check_shapes(given)
        if rows != [len(z)]:
            raise LatentError(f"the parts give scores {(*rows, classes)} for {len(z)} latents: are the logits theirs?")
        if int(labels.max()) >= classes:
            raise LatentError(f"there is a label {int(labels.max())}, but the parts score {classes} classes")
        chosen = self._chosen([part.detach().cpu().double() for part in given], labels)
        with torch.inference_mode(False):
            self._build(z.shape[1])
            self.weights = torch.tensor(chosen.weights, device=z.device)
            self.offsets = torch.tensor(chosen.offsets, device=z.device)
        return self

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """The sum, `(..., classes)`; about 0 for a class that no part favours or disfavours."""
        self._check(z)
        weights, parts = self.voters()
        given = [part(z, logits=logits) for part in parts]
        _check_shapes(given)
        return blended(weights, given, offsets=self.offsets.tolist(), ends=self.ends).to(z.dtype)

    @property
    def prototypes(self) -> Prototypes | None:
        """The part that is made of prototypes, if there is one: what to keep for the next task."""
        return next((part for part in self._parts() if type(part) is Prototypes), None)

    def voters(self) -> tuple[list[float], list[Readout]]:
        """The parts that have any weight."""
        weights = self.weights.tolist()
        return [w for w in weights if w], [part for part, w in zip(self._parts(), weights, strict=True) if w]

    def _parts(self) -> Iterator[Readout]:
        for part in self.parts:
            assert isinstance(part, Readout)  # noqa: S101  (for the type checker: a ModuleList forgets)
            yield part

    def _chosen(self, given: Sequence[Tensor], labels: Tensor) -> _Tried:
        standard: dict[tuple[int, ...], Tensor] = {}

        def tried(weights: tuple[float, ...]) -> _Tried:
            # As it will predict: parts without a vote are not asked, which classes they score does not matter.
            voters = tuple(place for place, weight in enumerate(weights) if weight)
            if voters not in standard:
                standard[voters] = _standard([given[place] for place in voters])
            return _Tried.of(weights, standard[voters], labels, ends=self.ends)

        grid = self._grid()
        equal = tried(next(grid))
        if math.isinf(self.caution):
            return equal
        blends = [equal, *map(tried, grid)]
        best = max(blend.accuracy for blend in blends)
        counts = torch.bincount(labels).double()
        # Of a mean over classes, which may have very different numbers of latents.
        error = math.sqrt(best * (1 - best) * float((1 / counts[counts > 0]).sum())) / int((counts > 0).sum())
        # Sums in different order differ by rounding: that is no better accuracy.
        least = best - self.caution * error - 1e-9
        good = (blend for blend in blends if blend.accuracy >= least)
        return min(good, key=lambda blend: (blend.unevenness, -blend.accuracy))

    def _grid(self) -> Iterator[tuple[float, ...]]:
        """Equal weights, and all multiples of 1 / steps that sum to 1."""
        count = len(self.parts)
        yield (1 / count,) * count
        if count == 1:
            return
        # Where the bars stand among steps + count - 1 places says how many steps each part gets.
        places = self.steps + count - 1
        for bars in combinations(range(places), count - 1):
            ends = (-1, *bars, places)
            yield tuple((ends[k + 1] - ends[k] - 1) / self.steps for k in range(count))


def task_ends(known: int | Sequence[int]) -> list[int]:
    """`known` as it may be given to a `Blend`, checked: how many classes there were after each task but the last."""
    try:
        found = whole_numbers(known)
    except TypeError:
        found = []
    ends = [found] if isinstance(found, int) else found
    if not ends or any(a >= b for a, b in pairwise([0, *ends])):
        raise OptionError(f"known must be a whole number >= 1, or several that grow, got {known!r}")
    return ends


class _Tried(NamedTuple):
    """One blend and what it reaches on the training data it is chosen on."""

    weights: tuple[float, ...]
    offsets: tuple[float, ...]
    accuracy: float
    unevenness: float

    @classmethod
    def of(cls, weights: tuple[float, ...], scores: Tensor, labels: Tensor, *, ends: Sequence[int]) -> _Tried:
        """From the standard scores of the parts that have a vote."""
        summed = _sum([weight for weight in weights if weight], scores)
        # A row whose own class a part has no score for cannot be won by any offset: it must not choose one.
        own = scores[:, torch.arange(len(labels), device=labels.device), labels]
        fair = (own > _NEVER / 2).all(dim=0)
        offsets = best_offsets(summed[fair], labels[fair], ends=ends)
        right = offset_scores(summed, offsets, ends=ends).argmax(dim=1) == labels
        uneven = sum((weight - 1 / len(weights)) ** 2 for weight in weights)
        return cls(weights, offsets, balanced_accuracy(right, labels), round(uneven, 9))


def blended(
    weights: Sequence[float], scores: Sequence[Tensor], *, offsets: Sequence[float], ends: Sequence[int]
) -> Tensor:
    """A blend's scores from those of its parts: tensor operations only."""
    return offset_scores(_sum(weights, _standard(scores)), offsets, ends=ends)


def _check_shapes(given: Sequence[Tensor]) -> torch.Size:
    """The shape of all parts' scores; an error if they have several."""
    widths = sorted({scores.shape[-1] for scores in given})
    if len(widths) > 1:
        raise LatentError(
            f"the parts of a blend score {widths} classes: all parts, and the head, must have the same ones"
        )
    shapes = {scores.shape for scores in given}
    if len(shapes) > 1:
        listed = " and ".join(str(tuple(shape)) for shape in sorted(shapes))
        raise LatentError(f"the parts of a blend give scores {listed}: the head's must be of the same latents")
    return given[0].shape


def _standard(given: Sequence[Tensor]) -> Tensor:
    """All parts' scores in one tensor, each row with mean 0 and standard deviation 1 over the classes all score."""
    dtype = reduce(torch.promote_types, (compute_dtype(scores) for scores in given))
    scores = torch.stack([scores.to(dtype) for scores in given])
    # Minus infinity is "nothing to say"; what is no number stays none, as with any head. A class that one part says
    # nothing of cannot win, and must not decide how much the others' words weigh: outputs of a head that are still
    # free may be anything.
    there = (scores != -torch.inf).all(dim=0)
    count = there.sum(dim=-1, keepdim=True).clamp(min=1)
    # Nothing infinite is computed with, and no root of 0 taken: gradients would be no numbers.
    kept = torch.where(there, scores, 0.0)
    centred = torch.where(there, kept - kept.sum(dim=-1, keepdim=True) / count, 0.0)
    variance = centred.square().sum(dim=-1, keepdim=True) / count
    # A row of equal scores says nothing, and must not become noise.
    return torch.where(there, centred / variance.clamp(min=1e-24).sqrt(), _NEVER)


def _sum(weights: Sequence[float], scores: Tensor) -> Tensor:
    return torch.stack([weight * part for weight, part in zip(weights, scores.unbind(), strict=True)]).sum(dim=0)
