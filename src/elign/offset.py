"""Numbers taken off the scores of new classes, chosen on labelled training data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

_MOST_ROUNDS = 10  # of `best_offsets`; two or three are usual


def best_offset(logits: Tensor, labels: Tensor, *, known: int) -> float:
    """The offset with the best balanced accuracy on exemplars.

    With `d = max_new - max_old` of an exemplar's logits, an offset c makes its prediction an old class if `d <= c`,
    else a new one. Balanced accuracy (the mean over classes of the share that is right) therefore changes only at the
    values of d: one offset from each interval between them is an exact scan. It is 0 in the interval that holds 0, the
    middle of any other one (a margin outside, where no exemplar says how far). Of equally good ones the smallest
    absolute offset is taken.

    Args:
        logits: Of exemplars of old and new classes, (K, seen).
        labels: Their labels, (K,).
        known: Number of old classes; some exemplars must be of these, some of the others.
    """
    logits = logits.double()
    (old_top, as_old), (new_top, as_new) = logits[:, :known].max(dim=1), logits[:, known:].max(dim=1)
    counts = torch.bincount(labels)
    share = 1.0 / (counts[labels] * (counts > 0).sum())
    if_old, if_new = share * (as_old == labels), share * (as_new + known == labels)
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
    """One offset for each of the len(turn) + 1 intervals between sorted values: see `best_offset`."""
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


def best_offsets(scores: Tensor, labels: Tensor, *, ends: Sequence[int]) -> tuple[float, ...]:
    """One offset for each task after the first, in turns: each the best one while the others stay as they are.

    A model is biased to its last task most, so that one comes first; but also to the one before more than to the first.
    With two tasks this is `best_offset`.

    Args:
        scores: Of exemplars, (K, classes).
        labels: Their labels, (K,).
        ends: How many classes there were after each task but the last.

    Returns:
        As many offsets as `ends`. A task without any exemplar, or with all of them, has none to choose by: 0. A tie
        between classes counts against the task whose turn it is, whichever of the two comes first.
    """
    scores = scores.double()
    found = [0.0] * len(ends)
    turns: list[tuple[int, Tensor, Tensor, int]] = []
    classes = torch.arange(scores.shape[1], device=scores.device)
    for task, (start, stop) in enumerate(pairwise([*ends, len(classes)])):
        inside = (classes >= start) & (classes < stop)
        if inside[labels].any() and not inside[labels].all():
            # The task's own classes last: that is where `best_offset` looks for what is new.
            order = torch.cat([classes[~inside], classes[inside]])
            turns.append((task, order, order.argsort()[labels], len(classes) - (stop - start)))
    for _ in range(_MOST_ROUNDS):
        changed = False
        for task, order, places, known in reversed(turns):
            shifted = offset_scores(scores, found, ends=ends)
            more = best_offset(shifted[:, order], places, known=known)
            found[task] += more
            changed = changed or more != 0
        if not changed:
            break
    return tuple(found)


def offset_scores(scores: Tensor, offsets: Sequence[float], *, ends: Sequence[int]) -> Tensor:
    """Scores `(..., classes)`, from those of the classes of each task after the first its offset is taken off."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    steps = torch.zeros(scores.shape[-1], dtype=scores.dtype, device=scores.device)
    for end, offset in zip(ends, offsets, strict=True):
        steps = torch.where(places >= end, offset, steps)
    return scores - steps
