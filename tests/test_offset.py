"""The offset is the best one there is, and the smallest of the best."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign.offset import best_offset, best_offsets, offset_scores


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


def test_each_task_has_an_offset_of_its_own():
    # One class in each of three tasks; the second is favoured by 2, the third by 6.
    scores = 3 * torch.eye(3).repeat(4, 1) + torch.tensor([0.0, 2.0, 6.0])
    labels = torch.arange(3).repeat(4)
    second, third = best_offsets(scores, labels, ends=[1, 2])
    right = offset_scores(scores, [second, third], ends=[1, 2]).argmax(dim=1) == labels
    assert right.all()
    assert -1 < second < 5
    assert 3 < third < 9
    # One number for both later tasks cannot do that.
    one = best_offset(scores, labels, known=1)
    assert not (offset_scores(scores, [one], ends=[1]).argmax(dim=1) == labels).all()


def test_a_task_without_exemplars_has_nothing_to_be_chosen_by():
    scores, labels = torch.tensor([[0.0, 1.0, 3.0], [0.0, 1.0, 5.0]]), torch.tensor([0, 2])
    assert best_offsets(scores, labels, ends=[1, 2])[0] == 0
    assert best_offsets(scores, torch.tensor([2, 2]), ends=[1, 2]) == (0, 0)
    assert best_offsets(scores[:0], labels[:0], ends=[1, 2]) == (0, 0)


@given(st.data())
def test_several_offsets_cannot_be_bettered_one_by_one_and_two_tasks_are_the_plain_case(data):
    logits, labels, known = data.draw(exemplars())
    assert best_offsets(logits, labels, ends=[known]) == (best_offset(logits, labels, known=known),)
    # Every class is there, and no two scores are equal: a tie goes to the class that comes first, whatever its task.
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    classes = data.draw(st.integers(2, 5))
    labels = torch.arange(4 * classes) % classes
    logits = torch.randn(4 * classes, classes, generator=generator, dtype=torch.float64)
    ends = data.draw(st.lists(st.integers(1, classes - 1), min_size=1, max_size=3, unique=True).map(sorted))
    found = best_offsets(logits, labels, ends=ends)

    def reached(offsets):
        return balanced(offset_scores(logits, offsets, ends=ends), labels, 0, 0)

    assert reached(found) >= reached([0.0] * len(ends)) - 1e-9
    for place in range(len(ends)):
        for change in (-4.0, -1.0, -0.25, 0.25, 1.0, 4.0):
            other = [offset + change * (number == place) for number, offset in enumerate(found)]
            assert reached(other) <= reached(found) + 1e-9


def test_scores_leave_the_logits_alone():
    logits = torch.ones(2, 3, dtype=torch.float64)
    assert offset_scores(logits, [0.5], ends=[1]).tolist() == [[1.0, 0.5, 0.5]] * 2
    assert offset_scores(logits, [0.5, -1.0], ends=[1, 2]).tolist() == [[1.0, 0.5, 2.0]] * 2
    assert logits.tolist() == [[1.0] * 3] * 2
