"""The discriminant: scores by their definition, and what it would say of a latent that it had not seen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from elign import Discriminant, LatentError, NearestMean, NotFittedError, OptionError, Readout


def made(seed=0, *, rows=60, dim=5, classes=4, dtype=torch.float64):
    """Latents of some classes, all present, that spread more along the first coordinate."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centers = torch.randn(classes, dim, generator=generator, dtype=dtype)
    spread = torch.linspace(2, 0.3, dim, dtype=dtype)
    return centers[labels] + spread * torch.randn(rows, dim, generator=generator, dtype=dtype), labels


def by_hand(z, labels, rows, *, shrinkage, scale=None):
    """Minus half of the squared Mahalanobis distances of `rows`, in a plain loop, in units of the mean variance."""
    z, rows = F.normalize(z, dim=1), F.normalize(rows, dim=1)
    classes = range(int(labels.max()) + 1)
    means = torch.stack([z[labels == label].mean(dim=0) for label in classes])
    covariance = sum(torch.outer(d, d) for d in z - means[labels]) / len(z)
    mean = covariance.diagonal().mean()
    precision = torch.linalg.inv((1 - shrinkage) * covariance + shrinkage * mean * torch.eye(len(covariance)).to(z))
    unit = mean if scale is None else scale
    return unit * torch.stack([torch.stack([-(x - m) @ precision @ (x - m) / 2 for m in means]) for x in rows])


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 1.0]), st.integers(2, 5))
def test_scores_are_half_the_squared_distances(seed, shrinkage, classes):
    z, labels = made(seed, classes=classes)
    expected = by_hand(z, labels, z[:7] + 1, shrinkage=shrinkage)
    found = Discriminant(shrinkage=shrinkage).fit(z, labels)(z[:7] + 1)
    # Up to a number that is the same for all classes.
    centred = [scores - scores.mean(dim=1, keepdim=True) for scores in (found, expected)]
    torch.testing.assert_close(*centred, rtol=1e-6, atol=1e-6)


@given(st.integers(0, 10**6), st.integers(2, 5))
def test_left_out_is_what_a_fit_without_the_row_gives(seed, classes):
    z, labels = made(seed, rows=30, classes=classes)
    fitted = Discriminant(shrinkage=0).fit(z, labels)
    found = fitted.left_out(z, labels)
    for row in range(0, 30, 7):
        rest = torch.arange(30) != row
        expected = by_hand(z[rest], labels[rest], z[row : row + 1], shrinkage=0, scale=fitted.scale)[0]
        torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-6)
    # Whichever of the rows it was fitted on are asked for.
    torch.testing.assert_close(fitted.left_out(z[3:8], labels[3:8]), found[3:8])


def test_left_out_with_shrinkage_is_nearly_so_and_far_from_the_plain_score():
    z, labels = made(rows=60, dim=20)
    fitted = Discriminant(shrinkage=0.1).fit(z, labels)
    plain, found = by_hand(z, labels, z, shrinkage=0.1), fitted.left_out(z, labels)
    for row in range(0, 60, 7):
        rest = torch.arange(60) != row
        expected = by_hand(z[rest], labels[rest], z[row : row + 1], shrinkage=0.1, scale=fitted.scale)[0]
        torch.testing.assert_close(found[row], expected, rtol=0.02, atol=0.02)
        assert abs(plain[row, labels[row]] - expected[labels[row]]) > 0.2 * abs(expected[labels[row]])


def test_the_only_latent_of_a_class_has_no_score_of_its_own_when_it_is_left_out():
    z, labels = made()
    labels[0] = 4
    found = Discriminant().fit(z, labels).left_out(z, labels)
    assert found[0, 4].isneginf()
    assert found.isneginf().sum() == 1


def test_all_of_the_identity_orders_classes_as_distances_do():
    z, labels = made()
    found = Discriminant(shrinkage=1).fit(z, labels)(z)
    means = NearestMean().add(z, labels).means
    assert torch.equal(found.argmax(dim=1), torch.cdist(F.normalize(z, dim=1), means).argmin(dim=1))


def test_one_latent_of_each_class_leaves_the_nearest_mean():
    z, _ = made()
    labels = torch.arange(4)
    fitted = Discriminant().fit(z[:4], labels)
    assert torch.equal(fitted.precision, torch.eye(5).double())
    assert torch.equal(fitted(z).argmax(dim=1), NearestMean().add(z[:4], labels)(z).argmax(dim=1))
    assert fitted.left_out(z[:4], labels).diagonal().isneginf().all()


def test_equal_latents_of_a_class_leave_the_nearest_mean_as_well():
    z, _ = made(dtype=torch.float32)
    fitted = Discriminant().fit(z[:4].repeat(3, 1), torch.arange(4).repeat(3))
    assert torch.equal(fitted.precision, torch.eye(5))
    assert fitted.left_out(z[:4].repeat(3, 1), torch.arange(4).repeat(3)).isfinite().all()


def test_half_precision_holds_the_scores_of_tight_classes():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 10
    z = torch.randn(10, 64, generator=generator)[labels] + 1e-3 * torch.randn(200, 64, generator=generator)
    fitted = Discriminant().fit(z, labels)
    scores = fitted(z.half())
    assert scores.isfinite().all()
    assert torch.equal(scores.argmax(dim=1), labels)


def test_a_head_may_have_more_outputs_than_there_are_classes():
    z, labels = made()
    fitted = Discriminant().fit(z, labels, classes=6)
    assert torch.equal(fitted(z)[:, :4], Discriminant().fit(z, labels)(z))
    assert fitted(z)[:, 4:].isneginf().all()


def test_labels_that_were_not_there_are_never_chosen_and_shapes_are_kept():
    z, labels = made(dtype=torch.float32)
    fitted = Discriminant().fit(z, 2 * labels)
    scores = fitted(z.reshape(6, 10, -1))
    assert scores.shape == (6, 10, 7)
    assert scores[..., 1::2].isneginf().all()
    assert scores[..., ::2].isfinite().all()
    assert fitted(z.half()).dtype == torch.float16


def test_one_file_holds_it(tmp_path):
    z, labels = made(dtype=torch.float32)
    fitted = Discriminant(shrinkage=0.2).fit(z, labels)
    loaded = Readout.load(fitted.save(tmp_path / "d.safetensors"))
    assert loaded.config() == {"shrinkage": 0.2}
    assert torch.equal(loaded(z), fitted(z))
    assert torch.equal(loaded.left_out(z, labels), fitted.left_out(z, labels))


def test_a_fit_under_inference_mode_can_be_loaded_into():
    z, labels = made()
    expected = Discriminant().fit(z, labels)
    with torch.inference_mode():
        fitted = Discriminant().fit(z + 1, labels)
    fitted.load_state_dict(expected.state_dict())
    assert torch.equal(fitted(z), expected(z))


@pytest.mark.parametrize("rows", [60, 4])
def test_the_default_device_does_not_matter(rows):
    z, labels = made(rows=rows)
    with torch.device("meta"):
        found = Discriminant().fit(z, labels)(z)
    assert torch.equal(found, Discriminant().fit(z, labels)(z))


def test_what_does_not_fit_is_named():
    z, labels = made()
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError, match="shrinkage"):
            Discriminant(shrinkage=share)
    with pytest.raises(NotFittedError, match="fit"):
        Discriminant()(z)
    with pytest.raises(LatentError, match="dimension 5, got shape"):
        Discriminant().fit(z, labels)(z[:, :3])
    with pytest.raises(LatentError, match="larger shrinkage"):
        Discriminant(shrinkage=0).fit(z[:4].repeat(2, 1), torch.tensor([0, 1, 0, 1, 1, 0, 1, 0]))
    with pytest.raises(LatentError, match="a label 4, but means of 4"):
        Discriminant().fit(z, labels).left_out(z, labels + 1)
