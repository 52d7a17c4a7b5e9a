"""`LocalShift`: what its weights are, and what it becomes at both ends of its bandwidth."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from elign import LocalShift, MeanShift
from elign.aligners import kernel as module


def by_hand(z, points, drifts, bandwidth):
    """The formula of the docstring, one row and one anchor at a time, in float64."""
    z, points, drifts = (t.double() for t in (z, points, drifts))
    count = len(points)
    squares = sum((points[i] - points[j]).square().sum() for i in range(count) for j in range(count)) / count**2
    moved = []
    for row in z:
        weights = torch.stack([torch.exp(-(row - a).square().sum() / (2 * bandwidth**2 * squares)) for a in points])
        moved.append(row + (weights / weights.sum()) @ drifts)
    return torch.stack(moved)


@given(st.floats(0.2, 3.0), st.integers(0, 10**6))
def test_it_is_what_its_formula_says(bandwidth, seed):
    generator = torch.Generator().manual_seed(seed)
    z_prev, z_cur, z = (torch.randn(rows, 3, generator=generator) for rows in (12, 12, 5))
    aligner = LocalShift(bandwidth=bandwidth).fit_latents(z_prev, z_cur)
    expected = by_hand(z, z_cur, z_prev - z_cur, bandwidth)
    torch.testing.assert_close(aligner.align(z).double(), expected, atol=1e-4, rtol=1e-4)


def test_a_wide_neighbourhood_is_mean_shift_and_a_narrow_one_the_nearest_anchor(pairs):
    z_prev, z_cur = pairs
    wide = LocalShift(bandwidth=1e4).fit_latents(z_prev, z_cur)
    torch.testing.assert_close(wide.align(z_cur), MeanShift().fit_latents(z_prev, z_cur).align(z_cur))
    narrow = LocalShift(bandwidth=1e-3).fit_latents(z_prev, z_cur)
    torch.testing.assert_close(narrow.align(z_cur), z_prev, atol=1e-5, rtol=0)
    near = z_cur[:5] + 1e-3
    torch.testing.assert_close(narrow.align(near) - near, (z_prev - z_cur)[:5], atol=1e-5, rtol=0)


@given(st.floats(-1e4, 1e4))
def test_where_the_origin_is_does_not_matter(shift):
    generator = torch.Generator().manual_seed(0)
    z_prev, z_cur, z = (torch.randn(30, 4, generator=generator).double() for _ in range(3))
    here = LocalShift().fit_latents(z_prev, z_cur).align(z)
    there = LocalShift().fit_latents(z_prev + shift, z_cur + shift).align(z + shift)
    torch.testing.assert_close(there - shift, here, atol=1e-6, rtol=0)


def test_moves_lie_among_the_drifts_however_far_away_a_latent_is(pairs):
    z_prev, z_cur = pairs
    drifts = z_prev - z_cur
    aligner = LocalShift().fit_latents(z_prev, z_cur)
    far = 1e3 * torch.randn(50, z_cur.shape[1], generator=torch.Generator().manual_seed(1))
    moves = aligner.align(far) - far
    assert moves.isfinite().all()
    assert (moves >= drifts.amin(dim=0) - 1e-3).all()
    assert (moves <= drifts.amax(dim=0) + 1e-3).all()


def test_many_pairs_are_thinned_by_the_seed(pairs, tmp_path):
    one, same, other = (LocalShift(anchors=20, seed=seed).fit_latents(*pairs) for seed in (1, 1, 2))
    assert one.points.shape == (20, 6)
    assert torch.equal(one.points, same.points)
    assert not torch.equal(one.points, other.points)
    loaded = LocalShift.load(one.save(tmp_path / "a"))
    assert torch.equal(loaded.align(pairs[1]), one.align(pairs[1]))
    # A state with another number of anchors fits, too.
    few = LocalShift(anchors=20).fit_latents(pairs[0][:7], pairs[1][:7])
    few.load_state_dict(one.state_dict())
    assert torch.equal(few.align(pairs[1]), one.align(pairs[1]))


def test_rows_are_moved_a_block_at_a_time(pairs, monkeypatch):
    # In float64: products of few and of many rows sum in different orders, which shows in float32.
    z_prev, z_cur = (z.double() for z in pairs)
    aligner = LocalShift().fit_latents(z_prev, z_cur)
    whole = aligner.align(z_cur)
    monkeypatch.setattr(module, "_BLOCK", 7)
    torch.testing.assert_close(aligner.align(z_cur), whole, atol=1e-12, rtol=0)


def test_anchors_that_are_all_alike():
    z = torch.ones(5, 3)
    aligner = LocalShift().fit_latents(z + torch.arange(5.0).unsqueeze(1), z)
    torch.testing.assert_close(aligner.align(z), z + 2)
