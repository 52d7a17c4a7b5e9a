"""The offset is the best one there is, and the smallest of the best."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eli.offset import best_offset, offset_scores


def balanced(logits, labels, known, offset):
    """Mean over classes of the share of right predictions, in plain Python; ties go to the first class."""
    right: dict[int, list[bool]] = {}
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        shifted = [v - offset * (c >= known) for c, v in enumerate(row)]
        right.setdefault(label, []).append(shifted.index(max(shifted)) == label)
    return sum(sum(group) / len(group) for group in right.values()) / len(right)


def test_by_hand():
    # One old class, one new. d = new - old: old exemplars at 1 and 2, new ones at 3 and 5.
    logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 5.0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert best_offset(logits, labels, known=1) == pytest.approx(2.5)
    # Nothing to correct: 0 is as good as anything.
    assert best_offset(logits - torch.tensor([0.0, 2.5]), labels, known=1) == 0
    # Old at 1, new at 2 and 0.5: right are 1 of 1 and 1 of 2 from 1 to 2 (0.75), else at most 0.5 and 0.5.
    logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 0.5]])
    assert best_offset(logits, torch.tensor([0, 1, 1]), known=1) == pytest.approx(1.5)


def test_classes_weigh_the_same_whatever_their_number_of_exemplars():
    # Five new exemplars at d = 1, one old at d = 2: plain accuracy would keep all of the new; balanced is a tie, and
    # the smallest offset that ties is 0 (all new right).
    logits = torch.tensor([[0.0, 1.0]] * 5 + [[0.0, 2.0]])
    labels = torch.tensor([1] * 5 + [0])
    assert best_offset(logits, labels, known=1) == 0
    # With a second old class that is right only beyond 2, the offset pays in spite of the five.
    logits = torch.tensor([[0.0, -9.0, 1.0]] * 5 + [[0.0, -9.0, 2.0], [-9.0, 0.0, 2.0]])
    labels = torch.tensor([2] * 5 + [0, 1])
    assert best_offset(logits, labels, known=2) > 2


def test_a_tie_takes_the_smallest_absolute_offset():
    # Old class right above d = -1, new right below d = -3 and between: candidates -2 (middle) and 4 are equally good.
    logits = torch.tensor([[0.0, -1.0], [0.0, -3.0], [0.0, 3.0], [0.0, 5.0]])
    labels = torch.tensor([1, 0, 0, 1])
    assert balanced(logits, labels, 1, -2.0) == balanced(logits, labels, 1, 4.0) == 0.75
    assert best_offset(logits, labels, known=1) == pytest.approx(-2.0)


@st.composite
def exemplars(draw):
    known, new = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    labels = [0, known, *draw(st.lists(st.integers(0, known + new - 1), max_size=12))]
    # Quarters: exact, so that ties occur and the plain computation has no rounding of its own.
    values = st.integers(-12, 12).map(lambda v: v / 4)
    rows = [draw(st.lists(values, min_size=known + new, max_size=known + new)) for _ in labels]
    return torch.tensor(rows), torch.tensor(labels), known


@given(exemplars())
def test_no_offset_is_better_and_of_the_best_it_is_the_smallest(case):
    logits, labels, known = case
    found = best_offset(logits, labels, known=known)
    reached = balanced(logits, labels, known, found)
    assert reached >= balanced(logits, labels, known, 0.0) - 1e-12
    # Values are multiples of 1/4, hence so are the places where predictions turn: eighths visit every interval.
    best = max(balanced(logits, labels, known, k / 8) for k in range(-60, 61))
    assert reached == pytest.approx(best)
    turns = sorted({row[known:].max().item() - row[:known].max().item() for row in logits})
    candidates = [0.0, *((low + high) / 2 for low, high in pairwise(turns))]
    as_good = [c for c in candidates if balanced(logits, labels, known, c) > best - 1e-9]
    assert all(abs(found) <= abs(c) + 1e-12 for c in as_good)
    if turns[0] <= found < turns[-1]:
        assert found in as_good


def test_scores_leave_the_logits_alone():
    logits = torch.ones(2, 3, dtype=torch.float64)
    assert offset_scores(logits, 0.5, known=1).tolist() == [[1.0, 0.5, 0.5]] * 2
    assert logits.tolist() == [[1.0] * 3] * 2
