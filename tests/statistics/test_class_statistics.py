"""Class statistics: moments by their definition, however the latents come; transport, samples and files."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elign import ClassStatistics, FileFormatError, LatentError, NotFittedError, OptionError

FORMS = ["full", "low-rank", "diagonal", "none"]
DIM = 5


def latents(seed=0, *, rows=60, dim=DIM, dtype=torch.float64):
    """Latents of the classes 2, 5 and 9, far from the origin, that spread differently."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([2, 5, 9])[torch.randint(3, (rows,), generator=generator)]
    mix = torch.randn(10, dim, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    return (10 + labels.unsqueeze(1) + (noise.unsqueeze(1) @ mix[labels]).squeeze(1)).to(dtype), labels


def by_hand(z, labels, label):
    rows = z[labels == label].double()
    centred = rows - rows.mean(dim=0)
    return len(rows), rows.mean(dim=0), sum(torch.outer(d, d) for d in centred) / len(rows)


def pooled_by_hand(z, labels):
    return sum(n * s for n, _, s in (by_hand(z, labels, c) for c in labels.unique().tolist())) / len(z)


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def same(found, expected, **tolerance):
    for (name, one), (_, other) in zip(found.named_buffers(), expected.named_buffers(), strict=True):
        if name != "factors":  # their rows are unique up to a rotation
            torch.testing.assert_close(one, other, msg=lambda m, name=name: f"{name}: {m}", **tolerance)
    if found.form != "none":
        for label in expected.classes.tolist():
            torch.testing.assert_close(found.covariance_of(label), expected.covariance_of(label), **tolerance)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 59), st.sampled_from(["full", "diagonal", "none"]))
def test_batches_and_merged_parts_give_the_moments_of_all_latents(seed, cut, form):
    z, labels = latents(seed)
    whole = ClassStatistics(covariance=form).update(z, labels)
    parts = [ClassStatistics(covariance=form).update(z[rows], labels[rows]) for rows in (slice(cut), slice(cut, None))]
    same(parts[0].merge(parts[1]), whole)
    same(parts[1].update(z[:cut], labels[:cut]), whole)
    for place, label in enumerate(whole.classes.tolist()):
        count, mean, covariance = by_hand(z, labels, label)
        assert whole.counts[place] == count
        torch.testing.assert_close(whole.means[place], mean)
        if form != "none":
            expected = covariance if form == "full" else covariance.diagonal().diag()
            torch.testing.assert_close(whole.covariance_of(label), expected)
    if form == "full":
        torch.testing.assert_close(whole.pooled(), pooled_by_hand(z, labels))


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 39))
def test_the_low_rank_form_keeps_diagonals_and_the_pooled_covariance_exactly(seed, cut):
    z, labels = latents(seed, rows=40, dim=12)
    whole = ClassStatistics(covariance="low-rank", rank=3).update(z, labels)
    parts = ClassStatistics(covariance="low-rank", rank=3).update(z[:cut], labels[:cut]).update(z[cut:], labels[cut:])
    for found in (whole, parts):
        torch.testing.assert_close(found.pooled(), pooled_by_hand(z, labels))
        for label in labels.unique().tolist():
            exact = by_hand(z, labels, label)[2]
            approximate = found.covariance_of(label)
            torch.testing.assert_close(approximate.diagonal(), exact.diagonal())
            # Off the diagonal, less is left of what three directions do not hold.
            assert (approximate - exact).norm() < exact.norm()
    # Directions that hold everything make it exact.
    exact = ClassStatistics(covariance="low-rank", rank=12).update(z[:cut], labels[:cut]).update(z[cut:], labels[cut:])
    for label in labels.unique().tolist():
        torch.testing.assert_close(exact.covariance_of(label), by_hand(z, labels, label)[2])


def test_leading_directions_of_many_latents_are_found_by_iteration():
    generator = seeded()
    z = torch.randn(400, 300, generator=generator) * torch.linspace(1, 0, 300).pow(4) * 10
    found = ClassStatistics(rank=8).update(z, torch.zeros(400, dtype=torch.int64))
    assert found.form == "low-rank"
    exact = torch.linalg.svdvals((z - z.mean(dim=0)).double() / 20)[:8]
    torch.testing.assert_close(found.factors[0].norm(dim=1).double(), exact, rtol=5e-3, atol=0)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_affine_moves_are_exact_also_through_samples(form, seed):
    z, labels = latents(seed)
    generator = seeded(seed)
    matrix = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    offset = torch.randn(DIM, generator=generator, dtype=torch.float64)
    # Rank 5 holds everything.
    statistics = ClassStatistics(covariance=form, rank=DIM).update(z, labels)
    moved = statistics.affine(matrix, offset)
    torch.testing.assert_close(moved.means, statistics.means @ matrix + offset)
    if form in ("full", "low-rank"):
        same(moved, ClassStatistics(covariance=form, rank=DIM).update(z @ matrix + offset, labels))
        same(statistics.resampled(lambda rows: rows @ matrix + offset, 20, seeded()), moved, rtol=1e-6, atol=1e-6)
    assert torch.equal(moved.counts, statistics.counts)


@pytest.mark.parametrize("form", FORMS[:3])
def test_samples_have_the_moments_of_their_classes_and_repeat(form):
    z, labels = latents()
    statistics = ClassStatistics(covariance=form, rank=2).update(z, labels)
    drawn, classes = statistics.sample(10_000, seeded())
    assert torch.equal(classes, torch.tensor([2, 5, 9]).repeat_interleave(10_000))
    for place, label in enumerate((2, 5, 9)):
        _, mean, covariance = by_hand(drawn, classes, label)
        expected = statistics.covariance_of(label)
        torch.testing.assert_close(mean, statistics.means[place], atol=0.15, rtol=0)
        assert (covariance - expected).norm() < 0.1 * expected.norm()
    assert torch.equal(statistics.sample(4, seeded())[0], statistics.sample(4, seeded())[0])
    assert statistics.sample(4, seeded(), classes=[9])[1].tolist() == [9] * 4


@pytest.mark.parametrize("form", FORMS)
def test_one_latent_of_a_class_has_no_covariance_and_is_sampled_as_it_is(form):
    z, _ = latents(rows=3)
    statistics = ClassStatistics(covariance=form).update(z, torch.tensor([0, 1, 3]))
    if form != "none":
        assert statistics.covariance_of(3).abs().max() == 0
        assert torch.equal(statistics.sample(2, seeded())[0], z.repeat_interleave(2, dim=0))
    assert all(tensor.isfinite().all() for tensor in statistics.buffers() if tensor.is_floating_point())


def test_exemplars_pull_means_by_their_number():
    z, labels = latents()
    statistics = ClassStatistics().update(z, labels)
    exemplars = torch.ones(10, DIM, dtype=torch.float64)
    moved = statistics.shrink_means(exemplars, torch.tensor([5] * 5 + [7] * 5), prior=20)
    expected = statistics.means.clone()
    expected[1] = (20 * expected[1] + 5 * exemplars[0]) / 25
    torch.testing.assert_close(moved.means, expected)
    # The same as counts say, where these are the prior.
    merged = statistics.with_counts(20).merge(ClassStatistics().update(exemplars[:5], torch.full((5,), 5)))
    torch.testing.assert_close(merged.means, expected)
    assert torch.equal(moved.covariances, statistics.covariances)
    same(statistics, ClassStatistics().update(z, labels))  # which stay as they are


def test_classes_are_selected_and_left_out():
    z, labels = latents()
    statistics = ClassStatistics(covariance="low-rank", rank=2).update(z, labels)
    part = statistics.select([9, 2])
    assert part.classes.tolist() == [2, 9]
    assert torch.equal(part.covariance_of(9), statistics.covariance_of(9))
    assert statistics.without([2, 9, 77]).classes.tolist() == [5]
    assert statistics.without([2, 5, 9]) is None
    with pytest.raises(LatentError, match="class 3"):
        statistics.select([3])


def test_more_covariance_makes_classes_wider():
    z, labels = latents()
    for form in ("full", "low-rank"):
        statistics = ClassStatistics(covariance=form, rank=DIM).update(z, labels)
        wider = statistics.widened(2 * torch.eye(DIM))
        torch.testing.assert_close(wider.covariance_of(5), statistics.covariance_of(5) + 2 * torch.eye(DIM))
        torch.testing.assert_close(wider.pooled(), statistics.pooled() + 2 * torch.eye(DIM))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_file_holds_all_forms(tmp_path, form, dtype):
    z, labels = latents(dtype=dtype)
    statistics = ClassStatistics(covariance=form, rank=2).update(z, labels)
    loaded = ClassStatistics.load(statistics.save(tmp_path / "statistics.safetensors"))
    assert loaded.config() == statistics.config()
    for (name, one), (other_name, other) in zip(loaded.named_buffers(), statistics.named_buffers(), strict=True):
        assert name == other_name
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    # A state also loads into one that was fitted on something else.
    other = ClassStatistics(covariance=form, rank=2).update(z[:1, :3], torch.tensor([4]))
    other.load_state_dict(statistics.state_dict())
    assert torch.equal(other.means, statistics.means)
    same(loaded.update(z, labels), ClassStatistics(covariance=form, rank=2).update(z, labels).update(z, labels))


def test_files_and_states_with_impossible_classes_are_refused(tmp_path):
    statistics = ClassStatistics().update(*latents())
    for name, values in (("classes", [5, 2, 9]), ("classes", [-1, 2, 9]), ("counts", [0, 1, 1])):
        broken = statistics.select([2, 5, 9])
        setattr(broken, name, torch.tensor(values))
        with pytest.raises(LatentError, match="class"):
            ClassStatistics().load_state_dict(broken.state_dict())
        with pytest.raises(FileFormatError):
            ClassStatistics.load(broken.save(tmp_path / "broken.safetensors"))


def test_thirty_classes_of_a_wide_network_are_small(tmp_path):
    z = torch.randn(90, 1280, generator=seeded())
    statistics = ClassStatistics().update(z, torch.arange(90) % 30)
    assert statistics.form == "low-rank"
    assert statistics.nbytes < 15e6
    assert abs(statistics.save(tmp_path / "wide.safetensors").stat().st_size - statistics.nbytes) < 1e4
    assert "classes=30, dim=1280, covariance='low-rank', 11.78 MB" in repr(statistics)


def test_half_precision_is_collected_in_single_and_modes_do_not_matter():
    z, labels = latents(dtype=torch.float16)
    expected = ClassStatistics().update(z.float(), labels)
    for mode in (torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            found = ClassStatistics().update(z[:9], labels[:9]).update(z[9:].requires_grad_(False), labels[9:])
            found.sample(3, seeded())
            found.resampled(lambda rows: rows + 1, 20, seeded())
        same(found, expected, rtol=1e-5, atol=1e-5)
        assert not any(tensor.is_inference() or tensor.requires_grad for tensor in found.buffers())


def test_statistics_of_a_model_are_those_of_its_latents():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)).train()
    x, labels = torch.randn(20, 4), torch.arange(20) % 3
    found = ClassStatistics.from_data(model, "2", DataLoader(TensorDataset(x, labels), batch_size=6))
    same(found, ClassStatistics().update(model[0](x), labels))
    assert model.training


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_latents_and_moves_that_overflow_are_refused(form, dtype):
    z, labels = latents(dtype=dtype)
    statistics = ClassStatistics(covariance=form, rank=1)
    with pytest.raises(LatentError, match="too large"):
        statistics.update(z / z.abs().max() * torch.finfo(dtype).max, labels)
    assert not statistics.fitted
    statistics.update(z, labels)
    large = torch.finfo(dtype).max ** 0.6 * torch.eye(DIM, dtype=dtype)
    for refused in (lambda: statistics.affine(large, large[0]), lambda: statistics.widened(large * large)):
        with pytest.raises(LatentError, match="too large"):
            refused()


def test_refuses_what_does_not_match():
    z, labels = latents()
    statistics = ClassStatistics().update(z, labels)
    for other in (ClassStatistics().update(z[:, :4], labels), ClassStatistics(covariance="diagonal").update(z, labels)):
        with pytest.raises(LatentError, match="merge"):
            statistics.merge(other)
    for refused in (
        lambda: statistics.affine(torch.eye(4), torch.zeros(4)),
        lambda: statistics.with_means(torch.zeros(2, DIM)),
        lambda: statistics.with_counts(0),
        lambda: statistics.shrink_means(z[:, :4], labels),
        lambda: statistics.means_only().sample(2),
        lambda: statistics.means_only().pooled(),
    ):
        with pytest.raises(LatentError):
            refused()
    for wrong in ((z * torch.nan, labels), (z, labels - 3), (z, labels[1:])):
        with pytest.raises(LatentError):
            ClassStatistics().update(*wrong)
    for refused in (lambda: ClassStatistics(covariance="sparse"), lambda: ClassStatistics(rank=0)):
        with pytest.raises(OptionError):
            refused()
    with pytest.raises(NotFittedError, match="update"):
        ClassStatistics().pooled()


def test_statistics_that_are_not_fitted_have_no_counts_to_change():
    with pytest.raises(NotFittedError):
        ClassStatistics().with_counts(3)
