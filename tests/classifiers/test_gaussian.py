"""The Gaussian classifier: densities by their definition, scikit-learn's LDA and QDA, and latents left out in turn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from torch.nn import functional as F

from elign import ClassStatistics, Gaussian, LatentError

CLASSES, DIM = 4, 5


def latents(seed=0, *, rows=48, dim=DIM, dtype=torch.float64):
    """Latents of classes that spread differently, far from the origin."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % CLASSES
    centers = torch.randn(CLASSES, dim, generator=generator, dtype=torch.float64)
    mix = torch.randn(CLASSES, dim, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    return (8 + centers[labels] + (noise.unsqueeze(1) @ mix[labels]).squeeze(1)).to(dtype), labels


def log_densities(z, labels, rows, a, b, *, without=None):
    """Log-densities of rows, in a plain loop; `without` one latent, under the convention of the closed form."""
    keep = torch.arange(len(z)) != (-1 if without is None else without)
    means, scatters, counts = [], [], torch.bincount(labels)
    for label in range(CLASSES):
        inside = z[keep & (labels == label)]
        means.append(inside.mean(dim=0))
        scatters.append((inside - means[-1]).t() @ (inside - means[-1]))
    whole = sum((z[labels == c] - z[labels == c].mean(dim=0)).square().sum() for c in range(CLASSES))
    variance = whole / z.numel()
    pooled, found = sum(scatters) / len(z), []
    for mean, scatter, count in zip(means, scatters, counts, strict=True):
        covariance = (1 - b) * ((1 - a) * scatter / count + a * pooled) + b * variance * torch.eye(z.shape[1]).double()
        covariance = covariance if without is None else covariance * len(z) / (len(z) - 1)
        found.append(torch.distributions.MultivariateNormal(mean, covariance).log_prob(rows))
    return torch.stack(found, dim=-1), variance


def relative(scores):
    return scores - scores.amax(dim=-1, keepdim=True)


DIALS = st.sampled_from([(0.0, 0.1), (0.5, 0.3), (1.0, 0.1), (1.0, 1.0), (0.3, 0.0), (1.0, 0.0)])


@settings(max_examples=15)
@given(st.integers(0, 10**6), DIALS)
def test_scores_are_log_densities_up_to_what_all_classes_share(seed, dials):
    z, labels = latents(seed)
    a, b = dials
    expected, _ = log_densities(z, labels, z[:9] + 1, a, b)
    for found in (
        Gaussian(shared=a, shrinkage=b).fit(z=z, labels=labels),
        Gaussian(shared=a, shrinkage=b).fit(ClassStatistics().update(z, labels)),
        Gaussian(shared=a, shrinkage=b).fit(ClassStatistics().update(z[:20], labels[:20]), z[20:], labels[20:]),
    ):
        torch.testing.assert_close(found(z[:9] + 1), relative(expected))


@settings(max_examples=15)
@given(st.integers(0, 10**6), DIALS, st.booleans())
def test_leaving_out_is_a_fit_without_the_latent(seed, dials, normalize):
    z, labels = latents(seed, rows=24)
    a, b = dials[0], max(0.05, dials[1])
    found = Gaussian(shared=a, shrinkage=b, normalize=normalize).fit(z=z, labels=labels)
    left_out = found.leave_one_out_scores(z, labels)
    rows = F.normalize(z, dim=1) if normalize else z
    for place in range(0, 24, 5):
        expected, variance = log_densities(rows, labels, rows[place], a, b, without=place)
        expected = variance * expected if normalize else expected
        torch.testing.assert_close(relative(left_out[place]), relative(expected), rtol=1e-6, atol=1e-6)


def test_with_statistics_only_the_latents_that_were_given_are_left_out():
    z, labels = latents()
    old, new = labels < 2, labels >= 2
    found = Gaussian(shared=0.5, shrinkage=0.3).fit(ClassStatistics().update(z[old], labels[old]), z[new], labels[new])
    left_out = found.leave_one_out_scores(z, labels)
    torch.testing.assert_close(left_out[old], found(z[old]))
    assert (left_out[new] - found(z[new])).abs().amax(dim=1).min() > 0
    torch.testing.assert_close(
        left_out[new], Gaussian(shared=0.5, shrinkage=0.3).fit(z=z, labels=labels).leave_one_out_scores(z, labels)[new]
    )


def test_it_is_the_lda_and_the_qda_of_scikit_learn():
    z, labels = latents(rows=200)
    priors = [1 / CLASSES] * CLASSES
    lda = LinearDiscriminantAnalysis(solver="lsqr", priors=priors, shrinkage=None).fit(z.numpy(), labels.numpy())
    found = Gaussian(shared=1.0, shrinkage=0.0).fit(z=z, labels=labels)(z).softmax(dim=1)
    torch.testing.assert_close(found, torch.from_numpy(lda.predict_proba(z.numpy())))
    qda = QuadraticDiscriminantAnalysis(priors=priors).fit(z.numpy(), labels.numpy())
    # Its covariances are divided by n - 1.
    probabilities = torch.from_numpy(qda.predict_proba(z.numpy()))
    found = Gaussian(shared=0.0, shrinkage=0.0).fit(z=z, labels=labels)(z).softmax(dim=1)
    torch.testing.assert_close(found, probabilities, atol=0.05, rtol=0)


def test_full_shrinkage_is_the_nearest_mean():
    z, labels = latents()
    means = ClassStatistics().update(z, labels).means
    found = Gaussian(shrinkage=1.0).fit(z=z, labels=labels)(z)
    assert torch.equal(found.argmax(dim=1), torch.cdist(z, means).argmin(dim=1))


def test_directions_of_statistics_are_close_to_those_of_latents():
    z, labels = latents(rows=400, dtype=torch.float32)
    from_latents = Gaussian(normalize=True, shared=0.5, shrinkage=0.1).fit(z=z, labels=labels)
    from_statistics = Gaussian(normalize=True, shared=0.5, shrinkage=0.1).fit(ClassStatistics().update(z, labels))
    agree = from_latents(z).argmax(dim=1) == from_statistics(z).argmax(dim=1)
    assert agree.float().mean() > 0.9


@pytest.mark.parametrize("shared", [0.5, 1.0])
def test_single_and_half_precision_far_from_the_origin_choose_as_double_precision(shared):
    z, labels = latents(rows=400, dim=64)
    z = z + 100
    exact = Gaussian(shared=shared, shrinkage=0.1).fit(z=z, labels=labels)
    single = Gaussian(shared=shared, shrinkage=0.1).fit(z=z.float(), labels=labels)
    torch.testing.assert_close(single(z.float()).double(), exact(z), rtol=1e-3, atol=0.02)
    half = exact(z.half())
    assert half.dtype == torch.float16
    assert (half.argmax(dim=1) == exact(z.half().double()).argmax(dim=1)).float().mean() > 0.99


def test_few_latents_in_many_dimensions_are_well_conditioned():
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(30, 600, generator=generator)
    labels = torch.arange(120) % 30
    z = centers[labels] + torch.randn(120, 600, generator=generator)
    found = Gaussian().fit(z=z, labels=labels)
    assert found.whitening.shape == (1, 600, 600)
    assert found.weights.shape == (30, 600)
    new = centers + torch.randn(30, 600, generator=generator)
    assert torch.equal(found(new).argmax(dim=1), torch.arange(30))
    assert found.leave_one_out_scores(z, labels).isfinite().all()


def test_more_classes_than_are_in_memory_at_once_are_scored_alike(monkeypatch):
    z, labels = latents()
    found = Gaussian(shared=0.5, shrinkage=0.1).fit(z=z, labels=labels)
    expected, left_out = found(z), found.leave_one_out_scores(z, labels)
    monkeypatch.setattr("elign.classifiers.gaussian._BLOCK", 1)
    torch.testing.assert_close(found(z.reshape(2, 24, DIM)).reshape(48, -1), expected)
    torch.testing.assert_close(found.leave_one_out_scores(z, labels), left_out)
    # A graph has blocks of another size.
    monkeypatch.setattr("elign.classifiers.gaussian._WIDTH", 1)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    torch.testing.assert_close(found(z), expected)


def test_far_classes_stay_finite_in_half_precision_when_latents_are_left_out():
    z, labels = latents()
    z = z + 2000 * labels.unsqueeze(1)
    for shared in (0.5, 1.0):
        found = Gaussian(shared=shared, shrinkage=0.1).fit(z=z.half(), labels=labels)
        assert found.leave_one_out_scores(z.half(), labels).isfinite().all()


def test_automatic_dials_suit_the_form_of_the_statistics():
    z, labels = latents(rows=400)
    quadratic = Gaussian().fit(ClassStatistics().update(z, labels))
    assert len(quadratic.whitening) == CLASSES
    for form in ("low-rank", "diagonal"):
        linear = Gaussian().fit(ClassStatistics(covariance=form).update(z, labels))
        assert len(linear.whitening) == 1
        assert linear.chosen_shrinkage >= 0.1 - 1e-6
    # One latent for each dimension says little: more shrinkage.
    few = Gaussian(shared=1.0).fit(z=z[:8], labels=labels[:8])
    assert few.chosen_shrinkage > Gaussian(shared=1.0).fit(z=z, labels=labels).chosen_shrinkage


def test_too_few_latents_for_covariances_that_are_not_shrunk_are_refused():
    z, labels = latents(rows=8)
    with pytest.raises(LatentError, match="shrinkage"):
        Gaussian(shared=0.0, shrinkage=0.0).fit(z=z, labels=labels)
