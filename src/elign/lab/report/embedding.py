"""One two-dimensional map of old latents (previous model, every shown step) and new latents together.

Positions in a t-SNE map mean something only within the same map, so everything that a figure compares is embedded at
once. Computed once per result and handed to the HTML report and to the README picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import euclidean_distances
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

from elign.lab.experiments.toy_result import Picture

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

OLD_IMAGES = 150
NEW_IMAGES = 150
STEPS = 11
# The neighbour search's cost grows with the dimension: 50 principal components are the usual cut.
COMPONENTS = 50
PERPLEXITY = 30.0
# Half of the usual number: about 2000 rows then take about 5 s on one core, and the map looks the same.
ITERATIONS = 500
# With fewer neighbours than this t-SNE is meaningless and the principal plane is shown instead.
FEWEST_NEIGHBOURS = 8


@dataclass(frozen=True)
class Embedding:
    """Positions in one common plane (n' old and m' new images, S steps)."""

    old_index: IntArray
    """(n',) rows of the picture's old images that are shown."""
    new_index: IntArray
    """(m',) rows of the picture's new images that are shown."""
    steps: IntArray
    """(S,) the Langevin steps that are shown, first and last included."""
    previous: FloatArray
    """(n', 2) old images under the previous model."""
    trajectory: FloatArray
    """(S, n', 2) old images under the current model at each shown step."""
    new: FloatArray
    """(m', 2) new images under the current model."""

    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Ranges of x and y that hold every point with a little room, the same for all steps."""
        everything = np.concatenate([self.previous, self.trajectory.reshape(-1, 2), self.new])
        if not len(everything):
            return (-1.0, 1.0), (-1.0, 1.0)
        low, high = everything.min(axis=0), everything.max(axis=0)
        room = 0.05 * (high - low) + 1e-3
        return (float(low[0] - room[0]), float(high[0] + room[0])), (float(low[1] - room[1]), float(high[1] + room[1]))


def balanced_subset(labels: NDArray[np.int64], limit: int) -> IntArray:
    """Rows of at most `limit` items with the classes as even as the data allow, always the same ones.

    The first item of each class is taken, then the second of each, and so on until the limit.

    Args:
        labels: (n,) class of each item.
        limit: How many to take at most.

    Returns:
        Increasing row numbers.
    """
    turn = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        turn[members] = np.arange(len(members))
    order = np.lexsort((labels, turn))
    return np.sort(order[:limit]).astype(np.int64)


def shown_steps(last: int, count: int = STEPS) -> IntArray:
    """About `count` evenly spaced steps of 0..last, both ends included."""
    return np.unique(np.linspace(0, last, count).round().astype(np.int64))


def finite_images(picture: Picture) -> NDArray[np.bool_]:
    """(n,) which old images have finite latents throughout: a walk with too long steps can overflow."""
    walked = np.isfinite(picture.old_trajectory).all(axis=(0, 2))
    return np.asarray(walked & np.isfinite(picture.old_previous).all(axis=1))


def _principal(rows: FloatArray) -> FloatArray:
    """(k, c) rows in their principal axes: at most `COMPONENTS` of them, at least two (zeros where there are fewer)."""
    centred = rows - rows.mean(axis=0)
    axes = PCA(min(COMPONENTS, *rows.shape), svd_solver="full").fit_transform(centred) if np.any(centred) else centred
    return np.asarray(np.pad(axes, ((0, 0), (0, max(0, 2 - axes.shape[1])))), dtype=np.float64)


def _plane(rows: FloatArray, image: IntArray, *, seed: int) -> FloatArray:
    """(k, 2) positions of (k, D) rows: t-SNE, or the principal plane where t-SNE has nothing to work with.

    An image at one step is by far the nearest neighbour of itself at the next. Left in, such pairs tie each walk into
    a knot and hide how far it leads; so rows of the same image do not count as neighbours, only other images do.

    Args:
        rows: The latents.
        image: (k,) which image each row shows.
        seed: Seed of t-SNE.
    """
    if not len(rows):
        return np.zeros((0, 2))
    axes = _principal(rows)
    distances = euclidean_distances(axes)
    furthest = float(distances.max())
    same = image[:, None] == image[None, :]
    neighbours = len(rows) - int(same.sum(axis=1).max())
    if neighbours < FEWEST_NEIGHBOURS or furthest == 0.0:
        return axes[:, :2]
    distances[same] = 10 * furthest
    np.fill_diagonal(distances, 0.0)
    tsne = TSNE(
        metric="precomputed",
        perplexity=min(PERPLEXITY, neighbours / 3),
        # What scikit-learn's init="pca" does, which it does not offer for given distances.
        init=(1e-4 * axes[:, :2] / axes[:, 0].std()).astype(np.float32),
        max_iter=ITERATIONS,
        random_state=seed,
        n_jobs=1,
    )
    return np.asarray(tsne.fit_transform(distances.astype(np.float32)), dtype=np.float64)


def embed(picture: Picture, *, seed: int = 0) -> Embedding:
    """Embed a class-balanced part of a picture's latents, all in one plane.

    Args:
        picture: The latents of one experiment.
        seed: Seed of t-SNE; the same picture and seed give the same positions.

    Returns:
        The positions and which rows and steps they belong to.
    """
    finite = np.flatnonzero(finite_images(picture))
    old = finite[balanced_subset(picture.old_labels[finite], OLD_IMAGES)]
    new = balanced_subset(picture.new_labels, NEW_IMAGES)
    steps = shown_steps(len(picture.old_trajectory) - 1)
    trajectory = picture.old_trajectory[np.ix_(steps, old)]
    dimension = trajectory.shape[-1]
    rows = np.concatenate([picture.old_previous[old], trajectory.reshape(-1, dimension), picture.new_current[new]])
    image = np.concatenate([np.tile(np.arange(len(old)), 1 + len(steps)), len(old) + np.arange(len(new))])
    # Sums over several threads depend on their order: one thread makes two runs equal.
    with threadpool_limits(1):
        positions = _plane(rows.astype(np.float64), image, seed=seed)
    first, last = len(old), len(old) * (1 + len(steps))
    return Embedding(
        old_index=old,
        new_index=new,
        steps=steps,
        previous=positions[:first],
        trajectory=positions[first:last].reshape(len(steps), len(old), 2),
        new=positions[last:],
    )
