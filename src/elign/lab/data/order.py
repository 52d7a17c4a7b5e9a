"""The order in which classes arrive.

The orders are those of the published class-incremental experiments (iCaRL, LUCIR, AANet, ELI): numpy's legacy
generator, whose stream is frozen, with the seed 1993.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from elign.lab.data.dataset import ImageData

_SUBSET = 100
_ALL = 1000


def class_order(classes: int, *, seed: int | None = 1993) -> tuple[int, ...]:
    """The order in which classes are learned.

    Args:
        classes: How many there are.
        seed: Seed of the shuffle; None for the natural order.

    Returns:
        The original labels; the first is learned first.

    Raises:
        ValueError: There is no class.

    Example:
        >>> class_order(100)[:10]
        (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    """
    if classes < 1:
        raise ValueError(f"classes must be at least 1, not {classes}")
    order = np.arange(classes)
    if seed is not None:
        np.random.RandomState(seed).shuffle(order)
    return tuple(order.tolist())


def imagenet100_classes(wnids: Sequence[str], *, seed: int = 1993) -> tuple[str, ...]:
    """The 100 of the 1000 ImageNet classes that make up ImageNet-100 ("ImageNet-Subset").

    They are drawn from the sorted names without replacement. The order of the draw is then given up: the label of a
    class is its place among the sorted 100, as a folder of class folders is read, and `class_order(100)` shuffles these
    labels afterwards.

    Args:
        wnids: The names of all 1000 classes ("n01440764", ...), in any order.
        seed: Seed of the draw.

    Returns:
        The 100 names, sorted.

    Raises:
        ValueError: `wnids` are not 1000 different names.
    """
    ordered = sorted(set(wnids))
    if len(ordered) != _ALL or len(wnids) != _ALL:
        raise ValueError(f"wnids must be {_ALL} different names, not {len(wnids)} of which {len(ordered)} differ")
    return tuple(sorted(ordered[index] for index in _draw(_ALL, _SUBSET, seed)))


def reorder(data: ImageData, order: Sequence[int]) -> ImageData:
    """Renumber the classes of a dataset so that they arrive as 0, 1, 2, ...

    Args:
        data: The dataset; it stays as it is.
        order: Its labels in the order of arrival, each once; see `class_order`.

    Returns:
        The same images in the same places; the class `order[p]` now has the label p.

    Raises:
        ValueError: `order` is no order of the dataset's labels.
    """
    count = len(data.classes)
    if sorted(order) != list(range(count)):
        raise ValueError(f"order must hold each label 0..{count - 1} of {data.name} once")
    place = torch.empty(count, dtype=torch.int64)
    place[torch.tensor(list(order))] = torch.arange(count)
    return dataclasses.replace(
        data,
        train_labels=place[data.train_labels],
        test_labels=place[data.test_labels],
        classes=tuple(data.classes[label] for label in order),
    )


def _draw(population: int, count: int, seed: int) -> list[int]:
    return [int(index) for index in np.random.RandomState(seed).choice(population, count, replace=False)]
