"""The nearest mean: cosines by their definition, latents left out in turn, means of statistics."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from elign import ClassStatistics, MeanShift, NearestMean


def latents(seed=0, *, rows=20):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator, dtype=torch.float64) + 1, torch.arange(rows) % 3


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.booleans(), st.integers(4, 20))
def test_leaving_out_is_a_fit_without_the_latent(seed, normalize, rows):
    z, labels = latents(seed, rows=rows)
    found = NearestMean(normalize=normalize).fit(z=z, labels=labels)
    means = torch.stack([(F.normalize(z, dim=1) if normalize else z)[labels == c].mean(dim=0) for c in range(3)])
    torch.testing.assert_close(found.means, means)
    torch.testing.assert_close(found(z), F.normalize(z, dim=1) @ F.normalize(means, dim=1).t())
    left_out = found.leave_one_out_scores(z, labels)
    for place in range(rows):
        rest = torch.arange(rows) != place
        expected = NearestMean(normalize=normalize).fit(z=z[rest], labels=labels[rest], classes=3)(z[place])
        torch.testing.assert_close(left_out[place], expected)


def test_means_of_statistics_are_taken_over_and_never_left_out():
    z, labels = latents()
    statistics = ClassStatistics().update(z, labels)
    moved = statistics.transport(MeanShift().fit_latents(z, z + 1, direction="forward"))
    found = NearestMean().fit(moved)
    torch.testing.assert_close(found.means, statistics.means + 1)
    assert torch.equal(found.leave_one_out_scores(z, labels), found(z))


@pytest.mark.parametrize("normalize", [False, True])
def test_statistics_and_latents_give_classes_together(normalize):
    z, labels = latents()
    old, new = labels < 2, labels > 0
    statistics = ClassStatistics().update(z[old], labels[old])
    found = NearestMean(normalize=normalize).fit(statistics, z[new], labels[new], classes=5)
    assert found.counts.tolist() == [7, 14, 6, 0, 0]
    assert found.fitted_rows.tolist() == [0, 7, 6, 0, 0]
    rows = F.normalize(z, dim=1) if normalize else z
    torch.testing.assert_close(found.means[2], rows[labels == 2].mean(dim=0))
    remembered = z[labels == 1].mean(dim=0)
    remembered = F.normalize(remembered, dim=0) if normalize else remembered
    torch.testing.assert_close(found.means[1], (remembered + rows[labels == 1].mean(dim=0)) / 2)
    assert found(z)[:, 3:].isneginf().all()
