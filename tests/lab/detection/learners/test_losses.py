import math

import pytest
import torch

from elign.lab.detection.learners.losses import (
    centred_logit_distance,
    delta_distance,
    draw_lowest,
    lost_features,
    lost_regions,
    old_deltas,
    softened_divergence,
)


def test_draw_lowest_draws_from_the_pool_alone_and_differently_each_time():
    values = torch.tensor([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0])
    drawn = [frozenset(draw_lowest(values, pool=4, count=2).tolist()) for _ in range(60)]
    assert all(len(places) == 2 for places in drawn)
    assert frozenset.union(*drawn) == {1, 3, 5, 7}
    assert len(set(drawn)) == 6  # each pair out of four came up


def test_draw_lowest_takes_what_there_is():
    assert sorted(draw_lowest(torch.tensor([2.0, 1.0]), pool=128, count=64).tolist()) == [0, 1]
    assert draw_lowest(torch.zeros(0), pool=128, count=64).tolist() == []


def test_centred_logit_distance_by_hand():
    # Two old classes; the columns of new classes and of the unknown do not count.
    teacher = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])  # centred: 2, -1, -1 and 0, 0, 0
    student = torch.tensor([[0.0, 3.0, 0.0, 99.0], [5.0, 5.0, 2.0, -7.0]])  # centred: -1, 2, -1 and 1, 1, -2
    expected = (3**2 + 3**2 + 0 + 1 + 1 + 2**2) / 6
    assert centred_logit_distance(student, teacher, old=2).item() == pytest.approx(expected)


def test_centred_logit_distance_does_not_see_a_shift_of_all_logits():
    logits = torch.randn(5, 4)
    assert centred_logit_distance(logits + 7, logits, old=3).item() == pytest.approx(0, abs=1e-10)


def test_delta_distance_by_hand():
    teacher = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    student = torch.tensor([[0.5, 0.0, -3.0, 0.0], [1.0, 1.0, 1.0, 2.0]])
    # Smooth L1: 0.5 * 0.25 = 0.125, 3 - 0.5 = 2.5, and 0.5; squares: 0.25, 9 and 1. Mean over two regions.
    assert delta_distance(student, teacher, old=2, smooth=True).item() == pytest.approx((0.125 + 2.5 + 0.5) / 2)
    assert delta_distance(student, teacher, old=2, smooth=False).item() == pytest.approx((0.25 + 9 + 1) / 2)


def test_delta_distance_of_each_class_counts_old_classes_alone():
    teacher = torch.zeros(1, 3, 4)
    student = torch.full((1, 4, 4), 100.0)
    student[0, 1] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    student[0, 2] = torch.tensor([2.0, 1.0, 0.0, 0.0])
    # Squares: 1 and 5, mean over two old classes; background (column 0) and the new class (column 3) are left out.
    assert delta_distance(student, teacher, old=2, smooth=False).item() == pytest.approx(3)


def test_old_deltas_have_the_same_form_for_both_kinds():
    assert old_deltas(torch.zeros(5, 4), old=2).shape == (5, 1, 4)
    assert old_deltas(torch.zeros(5, 9, 4), old=2).shape == (5, 2, 4)


def test_lost_features_by_hand_image_by_image():
    teacher = torch.tensor([[[[0.0, 4.0]]], [[[2.0, 2.0]]]])  # minus their means: -2, 2 and 0, 0
    student = torch.tensor([[[[1.0, 3.0]]], [[[6.0, 0.0]]]])  # minus their means: -1, 1 and 3, -3
    # Teacher minus student: -1, 1 and -3, 3; what is negative does not count.
    assert lost_features(student, teacher).item() == pytest.approx((1 + 3) / 4)


def test_lost_regions_by_hand():
    # Two anchors at one place. The teacher is surer of the first by 0.5, of the second by 0.05.
    teacher_objectness = torch.tensor([1.0, 0.05]).view(1, 2, 1, 1)
    objectness = torch.tensor([0.5, 0.0]).view(1, 2, 1, 1)
    deltas = torch.arange(8.0).view(1, 8, 1, 1)
    teacher_deltas = deltas + torch.tensor([1.0, 2.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0]).view(1, 8, 1, 1)
    loss = lost_regions(objectness, deltas, teacher_objectness, teacher_deltas, threshold=0.1)
    assert loss.item() == pytest.approx((0.25 + 1 + 4 + 0.0025) / 2)


def test_lost_regions_leaves_a_surer_student_alone():
    zero, deltas = torch.zeros(1, 1, 2, 2), torch.randn(1, 4, 2, 2)
    assert lost_regions(zero + 3, deltas, zero, deltas + 1, threshold=0.1).item() == 0


def test_softened_divergence_by_hand():
    # Old classes are columns 1 and 2. At T = 2 the teacher's probabilities are 3/4 and 1/4, the student's 1/2 each.
    teacher = torch.tensor([[50.0, 2 * math.log(3.0), 0.0], [0.0, 1.0, 1.0]])
    student = torch.tensor([[-50.0, 4.0, 4.0, 77.0], [0.0, 0.0, 0.0, 5.0]])
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    loss = softened_divergence(student, teacher, old=2, temperature=2.0)
    assert loss.item() == pytest.approx(4 * divergence / 2, rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda ours, theirs: centred_logit_distance(ours, theirs, old=3),
        lambda ours, theirs: delta_distance(ours, theirs, old=3, smooth=True),
        lambda ours, theirs: delta_distance(ours, theirs, old=3, smooth=False),
        lambda ours, theirs: lost_features(ours.view(1, 5, 2, 2), theirs.view(1, 5, 2, 2)),
        lambda ours, theirs: softened_divergence(ours, theirs, old=3, temperature=6.0),
        lambda ours, theirs: lost_regions(
            ours[:1].view(1, 1, 2, 2),
            ours[1:].view(1, 4, 2, 2),
            theirs[:1].view(1, 1, 2, 2),
            theirs[1:].view(1, 4, 2, 2),
            threshold=0.1,
        ),
    ],
)
def test_every_term_teaches_the_student_alone(loss):
    torch.manual_seed(0)
    ours, theirs = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss(ours, theirs).backward()
    assert theirs.grad is None
    assert ours.grad.abs().sum() > 0
    assert loss(theirs.detach(), theirs).item() == pytest.approx(0, abs=1e-7)


def test_without_regions_the_terms_are_zero_and_can_be_minimised():
    logits, deltas = torch.zeros(0, 4, requires_grad=True), torch.zeros(0, 4, requires_grad=True)
    total = centred_logit_distance(logits, logits, old=2) + delta_distance(deltas, deltas, old=2, smooth=True)
    total.backward()
    assert total.item() == 0
