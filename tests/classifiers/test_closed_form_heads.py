"""Classifiers of other methods, each against its formula written out."""

import numpy as np
import pytest
import torch

import elign
from elign import ClassStatistics


def labelled(rows=150, dim=4, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    means = 2 * torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return means[labels] + torch.randn(rows, dim, generator=generator, dtype=torch.float64), labels


CLASSIFIERS = [elign.RidgeHead(), elign.RandomFeatures(width=60), elign.FeCAM(), elign.FeCAM(power=0.5)]


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda each: type(each).__name__)
def test_statistics_latents_or_both_tell_classes_apart(classifier):
    z, labels = labelled()
    statistics, last = ClassStatistics().update(z, labels), labels == 2
    for given in ((statistics,), (None, z, labels), (statistics.select([0, 1]), z[last], labels[last])):
        assert (classifier.fit(*given)(z).argmax(1) == labels).double().mean() > 0.8


@pytest.mark.parametrize("normalize", [True, False])
def test_ridge_head_is_ridge_regression_on_one_hot_classes(normalize):
    z, labels = labelled()
    x, y = z.numpy(), np.eye(3)[labels.numpy()]
    weight = np.linalg.solve(x.T @ x + 7.0 * np.eye(4), x.T @ y).T
    if normalize:
        weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    made = elign.RidgeHead(penalty=7.0, normalize=normalize)
    for given in ({"statistics": ClassStatistics().update(z, labels)}, {"z": z, "labels": labels}):
        assert made.fit(**given)(z).numpy() == pytest.approx(x @ weight.T, abs=1e-6)


def test_random_features_are_ridge_regression_on_them():
    z, labels = labelled()
    made = elign.RandomFeatures(width=40, penalty=2.0, samples_per_class=1000).fit(z=z, labels=labels)
    h, y = np.maximum(z.numpy() @ made.projection.numpy(), 0), np.eye(3)[labels.numpy()]
    weight = np.linalg.solve(h.T @ h + 2.0 * np.eye(40), h.T @ y)
    assert made(z).numpy() == pytest.approx(h @ weight, abs=1e-5)


def test_random_features_balance_classes_and_repeat():
    z, labels = labelled(rows=300)
    few = (labels != 2) | (torch.arange(300) < 60)
    one, two = (elign.RandomFeatures(width=80, seed=3).fit(z=z[few], labels=labels[few]) for _ in range(2))
    assert torch.equal(one(z), two(z))
    assert (one(z).argmax(1) == labels)[labels == 2].double().mean() > 0.7
    assert not torch.equal(elign.RandomFeatures(width=80, seed=4).fit(z=z[few], labels=labels[few])(z), one(z))


@pytest.mark.parametrize("rest", [1.0, 0.0])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_fecam_against_plain_loops(rest, power):
    z, labels = labelled()
    made = elign.FeCAM(shrink_diagonal=0.7, shrink_rest=rest, power=power).fit(z=z, labels=labels)

    def ladder(x):
        return np.sign(x) * np.abs(x) ** power

    x = ladder(z.numpy())
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    off = 1 - np.eye(4)
    for label in range(3):
        own = z.numpy()[labels.numpy() == label]
        mean, covariance = ladder(own.mean(0)), np.cov(ladder(own).T, bias=True)
        for _ in range(2):
            variance, other = covariance.diagonal().mean(), covariance[off == 1].mean()
            covariance = covariance + 0.7 * variance * np.eye(4) + rest * other * off
        deviations = np.sqrt(covariance.diagonal())
        inverse = np.linalg.inv(covariance / np.outer(deviations, deviations))
        d = x - mean / np.linalg.norm(mean)
        expected = -np.einsum("ni,ij,nj->n", d, inverse, d)
        assert made(z)[:, label].numpy() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_bic_has_the_smallest_cross_entropy():
    z, labels = labelled(classes=4)
    means = ClassStatistics().update(z, labels).means.double()
    head = torch.nn.Linear(4, 4).double()
    head.load_state_dict({"weight": means, "bias": -means.square().sum(dim=1) / 2})
    head.bias.data[2:] += 3.0  # the bias towards new classes
    logits = head(z).detach()
    found = elign.BiC().fit(z, labels, head=head, old_classes=2)
    alpha, beta = float(found.factors[3]), float(found.shifts[3])
    assert found.factors[:2].tolist() == [1.0, 1.0]
    assert beta < -1

    def loss(a, b):
        scores = torch.cat([logits[:, :2], a * logits[:, 2:] + b], dim=1)
        each = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
        return float(torch.stack([each[labels == label].mean() for label in range(4)]).mean())

    best = loss(alpha, beta)
    assert all(best <= loss(alpha + da, beta + db) for da in (-0.01, 0, 0.01) for db in (-0.01, 0, 0.01))
    assert torch.allclose(found(z, logits=logits)[:, 2:], alpha * logits[:, 2:] + beta)


def test_bic_stays_finite_on_separable_classes_and_refuses_one_sided_ones(tmp_path):
    head = torch.nn.Linear(2, 2, bias=False)
    head.weight.data.copy_(torch.eye(2))
    z, labels = torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1])
    found = elign.BiC().fit(z, labels, head=head, old_classes=[0])
    again = elign.LatentClassifier.load(found.save(tmp_path / "bic.safetensors"))
    assert again(z, logits=head(z)).argmax(dim=1).tolist() == [0, 1]
    with pytest.raises(elign.LatentError, match="old and of new"):
        elign.BiC().fit(z[:1], labels[:1], head=head, old_classes=1)
