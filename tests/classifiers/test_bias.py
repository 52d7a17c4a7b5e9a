"""The offset is the best one there is, and the smallest of the best."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elign import OptionError, WeightAligned
from elign.classifiers.bias import best_offset, best_offsets, check_boundaries, offset_scores


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
    assert best_offset(logits, labels, old_classes=1) == pytest.approx(2.5)
    # Nothing to correct: 0 is as good as anything.
    assert best_offset(logits - torch.tensor([0.0, 2.5]), labels, old_classes=1) == 0
    # Old at 1, new at 2 and 0.5: right are 1 of 1 and 1 of 2 from 1 to 2 (0.75), else at most 0.5 and 0.5.
    logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 0.5]])
    assert best_offset(logits, torch.tensor([0, 1, 1]), old_classes=1) == pytest.approx(1.5)


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
    found = best_offset(logits, labels, old_classes=known)
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
    second, third = best_offsets(scores, labels, boundaries=[1, 2])
    right = offset_scores(scores, [second, third], boundaries=[1, 2]).argmax(dim=1) == labels
    assert right.all()
    assert -1 < second < 5
    assert 3 < third < 9
    # One number for both later tasks cannot do that.
    one = best_offset(scores, labels, old_classes=1)
    assert not (offset_scores(scores, [one], boundaries=[1]).argmax(dim=1) == labels).all()


def test_a_task_without_exemplars_has_nothing_to_be_chosen_by():
    scores, labels = torch.tensor([[0.0, 1.0, 3.0], [0.0, 1.0, 5.0]]), torch.tensor([0, 2])
    assert best_offsets(scores, labels, boundaries=[1, 2])[0] == 0
    assert best_offsets(scores, torch.tensor([2, 2]), boundaries=[1, 2]) == (0, 0)
    assert best_offsets(scores[:0], labels[:0], boundaries=[1, 2]) == (0, 0)


@given(st.data())
def test_several_offsets_cannot_be_bettered_one_by_one_and_two_tasks_are_the_plain_case(data):
    logits, labels, known = data.draw(exemplars())
    assert best_offsets(logits, labels, boundaries=[known]) == (best_offset(logits, labels, old_classes=known),)
    # Every class is there, and no two scores are equal: a tie goes to the class that comes first, whatever its task.
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    classes = data.draw(st.integers(2, 5))
    labels = torch.arange(4 * classes) % classes
    logits = torch.randn(4 * classes, classes, generator=generator, dtype=torch.float64)
    ends = data.draw(st.lists(st.integers(1, classes - 1), min_size=1, max_size=3, unique=True).map(sorted))
    found = best_offsets(logits, labels, boundaries=ends)

    def reached(offsets):
        return balanced(offset_scores(logits, offsets, boundaries=ends), labels, 0, 0)

    assert reached(found) >= reached([0.0] * len(ends)) - 1e-9
    for place in range(len(ends)):
        for change in (-4.0, -1.0, -0.25, 0.25, 1.0, 4.0):
            other = [offset + change * (number == place) for number, offset in enumerate(found)]
            assert reached(other) <= reached(found) + 1e-9


def test_scores_leave_the_logits_alone():
    logits = torch.ones(2, 3, dtype=torch.float64)
    assert offset_scores(logits, [0.5], boundaries=[1]).tolist() == [[1.0, 0.5, 0.5]] * 2
    assert offset_scores(logits, [0.5, -1.0], boundaries=[1, 2]).tolist() == [[1.0, 0.5, 2.0]] * 2
    assert logits.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    "given_", [3, [3], (1, 2, 5), np.array([2, 4]), torch.tensor([2, 4]), np.int64(3), torch.tensor(3)]
)
def test_boundaries_are_numbers_of_classes_that_grow(given_):
    found = check_boundaries(given_)
    assert found == np.atleast_1d(np.asarray(given_)).tolist()
    assert {type(number) for number in found} == {int}


@pytest.mark.parametrize(
    "given_", [0, -1, [], [0, 2], [2, 2], [3, 2], 1.5, [1.5], True, None, "3", 10**7, [1, 10**7]], ids=str
)
def test_what_is_no_boundary_is_refused(given_):
    with pytest.raises(OptionError, match="task_boundaries"):
        check_boundaries(given_)


# --- weight aligning -------------------------------------------------------------------------------------


def head_of(bias=True, dtype=torch.float32):
    head = nn.Linear(3, 5, bias=bias).to(dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
        head.weight[3:] *= 4
    return head


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("old_classes", "old"), [(3, [0, 1, 2]), ([0, 4], [0, 4]), (torch.tensor([1]), [1])])
def test_weight_aligning_is_a_head_whose_new_weights_are_as_long_as_its_old_ones(bias, old_classes, old):
    head, z = head_of(bias), torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    aligned = copy.deepcopy(head)
    new = [place for place in range(5) if place not in old]
    with torch.no_grad():
        lengths = aligned.weight.norm(dim=1)
        aligned.weight[new] *= lengths[old].mean() / lengths[new].mean()
        assert aligned.weight[new].norm(dim=1).mean() == pytest.approx(lengths[old].mean().item(), rel=1e-6)
        found = WeightAligned().fit(head=head, old_classes=old_classes)(z, logits=head(z))
        torch.testing.assert_close(found, aligned(z))


def test_the_default_device_does_not_matter_to_weight_aligning():
    head = head_of()
    expected = WeightAligned().fit(head=head, old_classes=2)
    with torch.device("meta"):
        found = WeightAligned().fit(head=head, old_classes=2)
    assert torch.equal(found.factors, expected.factors)
    assert torch.equal(found.shifts, expected.shifts)


@pytest.mark.parametrize("old_classes", [0, 5, 6, [0, 1, 2, 3, 4], [5], [], None])
def test_weight_aligning_needs_old_and_new_classes_of_a_linear_head(old_classes):
    with pytest.raises(OptionError, match="old_classes"):
        WeightAligned().fit(head=head_of(), old_classes=old_classes)
    with pytest.raises(OptionError, match="Linear"):
        WeightAligned().fit(head=nn.Sequential(head_of()), old_classes=2)
