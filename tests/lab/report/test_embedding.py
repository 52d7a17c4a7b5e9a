"""One map for everything, the same each time, for any size of input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elign.lab.report.embedding import balanced_subset, embed, shown_steps


def test_shapes_and_bounds(result, embedding):
    assert embedding.trajectory.shape == (11, 150, 2)
    assert embedding.previous.shape == (150, 2)
    assert embedding.steps[0] == 0
    assert embedding.steps[-1] == 30
    rows = len(embedding.previous) + embedding.trajectory[..., 0].size + len(embedding.new)
    assert rows <= 3000
    (left, right), (bottom, top) = embedding.limits()
    everything = np.concatenate([embedding.previous, embedding.trajectory.reshape(-1, 2), embedding.new])
    assert left < everything[:, 0].min() < everything[:, 0].max() < right
    assert bottom < everything[:, 1].min() < everything[:, 1].max() < top


def test_aligned_latents_lie_nearer_to_their_targets(embedding):
    before = np.linalg.norm(embedding.trajectory[0] - embedding.previous, axis=1)
    after = np.linalg.norm(embedding.trajectory[-1] - embedding.previous, axis=1)
    assert np.median(after) < np.median(before)


def test_twice_the_same(build_picture):
    picture = build_picture(n=30, m=20, dimension=8, last=10)
    first, second = embed(picture), embed(picture)
    np.testing.assert_array_equal(first.trajectory, second.trajectory)
    np.testing.assert_array_equal(first.new, second.new)


@pytest.mark.parametrize(("n", "m", "dimension", "last"), [(1, 0, 1, 0), (1, 1, 2, 1), (2, 0, 3, 30), (3, 4, 1, 5)])
def test_tiny_inputs(build_picture, n, m, dimension, last):
    embedding = embed(build_picture(n=n, m=m, dimension=dimension, last=last))
    assert embedding.trajectory.shape == (len(shown_steps(last)), n, 2)
    assert embedding.new.shape == (m, 2)
    assert np.isfinite(embedding.trajectory).all()
    assert np.isfinite(embedding.limits()).all()


def test_identical_latents(build_picture):
    picture = build_picture(n=20, m=10, dimension=4, last=5)
    same = replace(
        picture,
        old_previous=np.ones_like(picture.old_previous),
        old_trajectory=np.ones_like(picture.old_trajectory),
        new_current=np.ones_like(picture.new_current),
    )
    assert np.isfinite(embed(same).trajectory).all()


def test_images_that_overflowed_are_left_out(build_picture):
    picture = build_picture(n=12, m=5, dimension=4, last=3)
    picture.old_trajectory[2, 7] = np.inf
    embedding = embed(picture)
    assert 7 not in embedding.old_index
    assert len(embedding.old_index) == 11


def test_subset_is_balanced_and_increasing():
    labels = np.array([0] * 50 + [1] * 3 + [2] * 50)
    rows = balanced_subset(labels, 23)
    assert list(np.bincount(labels[rows])) == [10, 3, 10]
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(balanced_subset(labels, 1000), np.arange(103))


def test_steps_include_both_ends():
    assert list(shown_steps(30)) == list(range(0, 31, 3))
    assert list(shown_steps(4)) == [0, 1, 2, 3, 4]
    assert list(shown_steps(0)) == [0]
