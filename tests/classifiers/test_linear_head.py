"""The retrained head: the minimum that scikit-learn finds, balanced classes, samples in place of latents, its start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F

from elign import ClassStatistics, LinearHead
from elign.utils.tensors import balanced_accuracy


def latents(rows=60, *, classes=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % classes
    centers = torch.randn(classes, 4, generator=generator, dtype=dtype)
    spread = torch.tensor([1.0, 5.0, 0.01, 1.0], dtype=dtype)
    return spread * (centers[labels] + torch.randn(rows, 4, generator=generator, dtype=dtype)) + 3, labels


def uneven(z, labels):
    """Ten latents of the class 0, all of the others."""
    kept = (labels != 0) | (torch.arange(len(z)) < 30)
    return z[kept], labels[kept]


def test_it_is_balanced_logistic_regression():
    z, labels = uneven(*latents())
    found = LinearHead(steps=500, weight_decay=0.01).fit(z=z, labels=labels)
    weights = 1 / torch.bincount(labels)[labels].double()
    weights = weights / weights.sum()
    center = weights @ z
    x = (z - center) / (weights @ (z - center).square()).sqrt()
    sklearn = LogisticRegression(C=1 / 0.01, tol=1e-10, max_iter=10_000)
    sklearn.fit(x.numpy(), labels.numpy(), sample_weight=weights.numpy())
    expected = torch.from_numpy(sklearn.predict_proba(x.numpy()))
    torch.testing.assert_close(found(z).softmax(dim=1), expected, atol=2e-3, rtol=0)


def test_the_pull_is_towards_the_head_it_starts_from():
    z, labels = latents()
    head = nn.Linear(4, 5, dtype=torch.float64)
    kept = LinearHead(weight_decay=1e6).fit(z=z, labels=labels, head=head)
    torch.testing.assert_close(kept.weight, head.weight[:3].detach(), atol=1e-4, rtol=0)
    small, other = nn.Linear(4, 2, dtype=torch.float64), nn.Linear(7, 3)
    kept = LinearHead(weight_decay=1e6).fit(z=z, labels=labels, head=small)
    torch.testing.assert_close(kept.weight[:2], small.weight.detach(), atol=1e-4, rtol=0)
    torch.testing.assert_close(kept.weight[2], torch.zeros(4).double(), atol=1e-4, rtol=0)
    # Whatever does not fit is not used.
    plain = LinearHead().fit(z=z, labels=labels)
    assert torch.equal(LinearHead().fit(z=z, labels=labels, head=other).weight, plain.weight)


def test_the_start_does_not_matter_to_where_it_ends():
    z, labels = latents()
    head = nn.Linear(4, 3, dtype=torch.float64)
    found = LinearHead(steps=1000, weight_decay=1e-9).fit(z=z, labels=labels, head=head)
    loss = F.cross_entropy(found(z), labels)
    assert loss <= F.cross_entropy(LinearHead(steps=20).fit(z=z, labels=labels)(z), labels) + 1e-3


def test_digits_are_classified_as_well_as_by_scikit_learn():
    images, digits = load_digits(return_X_y=True)
    z, labels = torch.from_numpy(images).float(), torch.from_numpy(digits).long()
    train = torch.arange(len(z)) % 9 == 0  # 20 a class
    sklearn = LogisticRegression(max_iter=2000).fit(images[train.numpy()] / 16, digits[train.numpy()])
    expected = np.mean(sklearn.predict(images[~train.numpy()] / 16) == digits[~train.numpy()])
    found = LinearHead().fit(z=z[train], labels=labels[train])
    test, truth = z[~train], labels[~train]
    assert balanced_accuracy(found(test).argmax(dim=1) == truth, truth) > expected - 0.01
    sampled = LinearHead().fit(ClassStatistics().update(z[train], labels[train]))
    assert balanced_accuracy(sampled(test).argmax(dim=1) == truth, truth) > expected - 0.02


def test_statistics_and_latents_share_the_weight_of_a_class():
    z, labels = latents(600)
    far = z + torch.tensor([9.0, 0, 0, 0])
    statistics = ClassStatistics().update(far, labels).select([0, 1])
    found = LinearHead().fit(statistics, z, labels, classes=4)
    assert found.counts.tolist() == [400, 400, 200, 0]
    assert found(z)[:, 3].isneginf().all()
    assert (found(far)[:, :2].argmax(dim=1) == labels)[labels < 2].float().mean() > 0.7


def test_smoothing_makes_samples_wider_where_they_are_narrow():
    z, labels = latents(600)
    statistics = ClassStatistics().update(z * torch.tensor([1.0, 1, 1e-6, 1]), labels)
    plain, smooth = (LinearHead(smoothing=b)._sampled(statistics)[0] for b in (0.0, 0.1))
    variance = statistics.pooled().diagonal().mean()
    assert plain[:, 2].var() < 1e-6
    torch.testing.assert_close(smooth[:, 2].var(), 0.1 * variance, rtol=0.2, atol=0)


def test_seeds_decide_and_many_latents_are_drawn_from():
    z, labels = latents(600, dtype=torch.float32)
    one, same, other = (LinearHead(samples_per_class=20, seed=s).fit(z=z, labels=labels) for s in (0, 0, 1))
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.counts.tolist() == [20, 20, 20]


@pytest.mark.parametrize("big", [False, True])
def test_dead_units_and_large_numbers_give_numbers(monkeypatch, big):
    if big:  # then in single precision
        monkeypatch.setattr("elign.classifiers.linear_head._EXACT_UP_TO", 0)
    z, labels = latents(dtype=torch.float32)
    z = torch.cat([1e4 * z, torch.zeros(60, 1), 1e-8 * z[:, :1]], dim=1)
    found = LinearHead().fit(z=z, labels=labels)
    assert found.weight.isfinite().all()
    assert (found(z).argmax(dim=1) == labels).float().mean() > 0.7
    equal = LinearHead().fit(z=torch.ones(4, 2), labels=torch.tensor([0, 0, 1, 1]))
    assert equal(torch.ones(1, 2)).isfinite().all()
