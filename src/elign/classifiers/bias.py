"""Bias correction: offsets subtracted from the scores of newer classes, chosen on labelled training data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from elign.classifiers.base import LatentClassifier
from elign.utils.errors import OptionError
from elign.utils.fitted import Shapes, register
from elign.utils.tensors import MOST_CLASSES, check_old_classes, whole_numbers

_MOST_TASKS = 10_000
_MOST_ROUNDS = 10  # of `best_offsets`; two or three are usual


def best_offset(logits: Tensor, labels: Tensor, *, old_classes: int) -> float:
    """Return the offset with the best balanced accuracy on exemplars.

    With `d = max_new - max_old` of an exemplar's logits, an offset c makes its prediction an old class if `d <= c`,
    else a new one. Balanced accuracy (the mean over classes of the share that is right) therefore changes only at the
    values of d: one offset from each interval between them is an exact scan. It is 0 in the interval that holds 0, the
    middle of any other one (a margin outside, where no exemplar says how far). Of equally good ones the smallest
    absolute offset is taken. Some of the exemplars must be of the first `old_classes` classes, some of the others.
    """
    logits = logits.double()
    (old_top, as_old), (new_top, as_new) = logits[:, :old_classes].max(dim=1), logits[:, old_classes:].max(dim=1)
    counts = torch.bincount(labels)
    share = 1.0 / (counts[labels] * (counts > 0).sum())
    if_old, if_new = share * (as_old == labels), share * (as_new + old_classes == labels)
    turn, order = (new_top - old_top).sort()
    # Interval k: the k rows with the smallest d are taken for old, the others for new.
    gain = torch.cat([share.new_zeros(1), (if_old - if_new)[order].cumsum(dim=0)]) + if_new.sum()
    offsets = _offsets(turn)
    # Between equal values there is no offset.
    real = torch.cat([turn.new_ones(1, dtype=torch.bool), turn[1:] > turn[:-1], turn.new_ones(1, dtype=torch.bool)])
    # Sums in different order differ by rounding: that is no better accuracy.
    good = real & (gain >= gain[real].max() - 1e-9)
    candidates = offsets[good]
    return float(candidates[candidates.abs().argmin()])


def _offsets(turn: Tensor) -> Tensor:
    """Return one offset for each of the len(turn) + 1 intervals between sorted values: see `best_offset`."""
    spread = (turn[-1] - turn[0]) / len(turn)
    margin = spread if spread > 0 else torch.ones_like(spread)
    low = torch.cat([turn[:1] - 2 * margin, turn])
    high = torch.cat([turn, turn[-1:] + 2 * margin])
    middle = (low + high) / 2
    # Neighbouring numbers have no middle; the lower end belongs to the interval.
    middle = torch.where(middle < high, middle, low)
    inf = turn.new_full((1,), torch.inf)
    # A row at exactly d = c is taken for old, so an interval holds its lower end and not its upper one.
    holds_zero = (torch.cat([-inf, turn]) <= 0) & (torch.cat([turn, inf]) > 0)
    return torch.where(holds_zero, torch.zeros_like(middle), middle)


def best_offsets(scores: Tensor, labels: Tensor, *, boundaries: Sequence[int]) -> tuple[float, ...]:
    """Return one offset for each task after the first, in turns: each the best one while the others stay.

    A model is biased to its last task most, so that one comes first; but also to the one before more than to the first.
    With two tasks this is `best_offset`. A task without any exemplar, or with all of them, has none to choose by: 0. A
    tie between classes counts against the task whose turn it is, whichever of the two comes first.
    """
    scores = scores.double()
    found = [0.0] * len(boundaries)
    turns: list[tuple[int, Tensor, Tensor, int]] = []
    classes = torch.arange(scores.shape[1], device=scores.device)
    for task, (start, stop) in enumerate(pairwise([*boundaries, len(classes)])):
        inside = (labels >= start) & (labels < stop)
        if inside.any() and not inside.all():
            # The task's own classes last: that is where `best_offset` looks for what is new.
            order = torch.cat([classes[:start], classes[stop:], classes[start:stop]])
            turns.append((task, order, order.argsort()[labels], len(classes) - (stop - start)))
    for _ in range(_MOST_ROUNDS):
        before = list(found)
        for task, order, places, others in reversed(turns):
            shifted = offset_scores(scores, found, boundaries=boundaries)
            found[task] += best_offset(shifted[:, order], places, old_classes=others)
        if found == before:
            break
    return tuple(found)


def offset_scores(scores: Tensor, offsets: Sequence[float], *, boundaries: Sequence[int]) -> Tensor:
    """Subtract the offset of each task after the first from the scores `(..., classes)` of its classes."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    steps = torch.zeros(scores.shape[-1], dtype=scores.dtype, device=scores.device)
    for end, offset in zip(boundaries, offsets, strict=True):
        steps = torch.where(places >= end, offset, steps)
    return scores - steps


def new_outputs(old_classes: int | Sequence[int], outputs: int) -> Tensor:
    """Return which of a head's outputs are new classes; raise if none is, or old ones are missing."""
    _, old = check_old_classes(old_classes)
    if max(old) >= outputs or len(set(old)) == outputs:
        raise OptionError(f"old_classes={str(old_classes)[:80]} leave no new class of {outputs} outputs")
    new = torch.ones(outputs, dtype=torch.bool, device="cpu")
    new[old] = False
    return new


def check_boundaries(given: int | Sequence[int]) -> list[int]:
    """Return task boundaries as a list: how many classes there were after each task but the last.

    Raises:
        OptionError: If they are not whole numbers that grow.
    """
    try:
        found = whole_numbers(given)
    except TypeError:
        found = []
    boundaries = [found] if isinstance(found, int) else found
    grow = all(a < b for a, b in pairwise([0, *boundaries]))
    if not (1 <= len(boundaries) <= _MOST_TASKS and grow and boundaries[-1] <= MOST_CLASSES):
        raise OptionError(
            "task_boundaries must be a whole number >= 1, or several that grow (how many classes there were after each "
            f"task but the last), got {str(given)[:80]}"
        )
    return boundaries


@register
class WeightAligned(LatentClassifier):
    """Weight aligning (WA, Zhao et al., CVPR 2020): the new classes' logits shrink to the scale of the old classes'.

    The weights of new classes in a head are longer than those of old ones. Their logits (without the bias) are
    multiplied by `mean |w_old| / mean |w_new|`; this needs no data at all.

    Example:
        >>> import torch
        >>> from elign import WeightAligned
        >>> head = torch.nn.Linear(2, 2, bias=False)
        >>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
        >>> z = torch.tensor([[1.0, 0.5]])
        >>> WeightAligned().fit(head=head, old_classes=1)(z, logits=head(z))
        tensor([[1.0000, 0.5000]], grad_fn=<AddBackward0>)
    """

    needs_logits = True
    rows_of: ClassVar[str] = "factors"
    shapes: ClassVar[Shapes] = {"factors": "R", "shifts": "R"}
    factors: Tensor
    shifts: Tensor

    def fit(self, *, head: nn.Module, old_classes: int | Sequence[int]) -> Self:  # type: ignore[override]
        """Compare the weights of old and new classes.

        Args:
            head: The current model's head, an `nn.Linear`.
            old_classes: Number of old classes, if they are the first ones, or their indices.

        Raises:
            OptionError: If the head is no linear layer, or has no new classes.
        """
        if not isinstance(head, nn.Linear):
            raise OptionError(f"weight aligning needs a head that is an nn.Linear, got {type(head).__name__}")
        weight = head.weight.detach()
        lengths = weight.cpu().double().norm(dim=1)
        new = new_outputs(old_classes, len(lengths))
        factor = lengths[~new].mean() / lengths[new].mean().clamp(min=1e-30)
        bias = torch.zeros_like(lengths) if head.bias is None else head.bias.detach().cpu().double()
        return self._corrected(weight, torch.where(new, factor, 1.0), torch.where(new, bias * (1 - factor), 0.0))

    def _corrected(self, like: Tensor, factors: Tensor, shifts: Tensor) -> Self:
        """Become fitted for latents of the type, device and dimension of `like` (N, D)."""
        self.rows = len(factors)
        self._set(like.shape[1], factors=factors.to(like), shifts=shifts.to(like))
        return self.to(like.device)

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the rescaled logits."""
        assert logits is not None  # noqa: S101  (`forward` sees to it)
        return logits * self.factors.to(logits) + self.shifts.to(logits)
