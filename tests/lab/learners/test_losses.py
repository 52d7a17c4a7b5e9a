import math

import pytest
import torch

from elign.lab.learners.losses import distillation, less_forget, margin_ranking


def test_distillation_of_one_sample_by_hand():
    # Teacher log(3), 0 at T = 1: probabilities 3/4 and 1/4. Student 0, 0: 1/2 and 1/2.
    teacher = torch.tensor([[math.log(3.0), 0.0]])
    student = torch.zeros(1, 2)
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert distillation(student, teacher, temperature=1.0).item() == pytest.approx(expected, rel=1e-6)


def test_distillation_divides_by_the_temperature_and_averages_over_the_batch():
    teacher = torch.tensor([[2 * math.log(3.0), 0.0], [0.0, 0.0]])
    student = torch.zeros(2, 2)
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert distillation(student, teacher, temperature=2.0).item() == pytest.approx(expected, rel=1e-6)


def test_distillation_is_zero_for_equal_logits_and_teaches_only_the_student():
    logits = torch.randn(4, 3, requires_grad=True)
    teacher = logits.detach().clone().requires_grad_()
    loss = distillation(logits, teacher + 5, temperature=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert teacher.grad is None


def test_less_forget_by_hand():
    # Cosines 1, 0 and -1: 1 - cos is 0, 1 and 2.
    z = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    teacher = torch.tensor([[5.0, 0.0], [1.0, 0.0], [-4.0, 0.0]])
    assert less_forget(z, teacher).item() == pytest.approx(1.0)


def test_margin_ranking_by_hand():
    # Two old classes, three new; the third sample is of a new class and does not count.
    cosines = torch.tensor(
        [
            [0.9, 0.1, 0.2, 0.6, 0.5],  # own 0.9, top two 0.6 and 0.5: 0.5 - 0.9 + 0.6 = 0.2, 0.1
            [0.0, 0.3, 0.9, -0.5, 0.1],  # own 0.3: 0.5 - 0.3 + 0.9 = 1.1, 0.3
            [0.0, 0.0, 0.9, 0.9, 0.9],
        ]
    )
    labels = torch.tensor([0, 1, 2])
    loss = margin_ranking(cosines, labels, old=2, margin=0.5, top_k=2)
    assert loss.item() == pytest.approx((0.2 + 0.1 + 1.1 + 0.3) / 4)


def test_margin_ranking_is_zero_beyond_the_margin():
    cosines = torch.tensor([[0.9, 0.1, 0.3]])
    assert margin_ranking(cosines, torch.tensor([0]), old=2, margin=0.5, top_k=2).item() == 0


def test_margin_ranking_without_old_samples_is_zero_and_has_a_gradient():
    cosines = torch.randn(3, 4, requires_grad=True)
    loss = margin_ranking(cosines, torch.tensor([2, 3, 2]), old=2, margin=0.5, top_k=2)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(cosines.grad, torch.zeros(3, 4))


def test_margin_ranking_takes_what_new_classes_there_are():
    cosines = torch.tensor([[0.2, 0.1]])
    assert margin_ranking(cosines, torch.tensor([0]), old=1, margin=0.5, top_k=2).item() == pytest.approx(0.4)
