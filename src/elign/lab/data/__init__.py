"""Datasets of the bench, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from elign.lab.data.cifar100 import load_cifar100
from elign.lab.data.dataset import ImageData
from elign.lab.data.digits import load_digits_dataset
from elign.lab.data.errors import DamagedFileError, DataError, DatasetNotFoundError, FetchError
from elign.lab.data.mnist import FASHION_MNIST, MNIST, load_idx_dataset

__all__ = [
    "DATASETS",
    "DamagedFileError",
    "DataError",
    "DatasetNotFoundError",
    "FetchError",
    "ImageData",
    "load_dataset",
]

_LOADERS: dict[str, Callable[[Path | str | None], ImageData]] = {
    "digits": lambda data_dir: load_digits_dataset(),
    MNIST.name: lambda data_dir: load_idx_dataset(MNIST, data_dir=data_dir),
    FASHION_MNIST.name: lambda data_dir: load_idx_dataset(FASHION_MNIST, data_dir=data_dir),
    "cifar100": lambda data_dir: load_cifar100(data_dir=data_dir),
}

DATASETS = tuple(_LOADERS)
"""The names that `load_dataset` knows."""


def load_dataset(name: str, *, data_dir: Path | str | None = None) -> ImageData:
    """Load a dataset by its name, fetching it first where it is neither embedded nor on disk.

    Args:
        name: One of `DATASETS`.
        data_dir: The data folder; default: the variable ELIGN_DATA, else the platform's cache folder of the user.

    Returns:
        The dataset.

    Raises:
        DataError: There is no such dataset, or it cannot be had (`DatasetNotFoundError`), or a file of it is broken
            (`DamagedFileError`).

    Example:
        >>> load_dataset("digits").image_shape
        (1, 8, 8)
    """
    loader = _LOADERS.get(name)
    if loader is None:
        raise DataError(f"There is no dataset {name!r}.{_suggestion(name)} Known are: {', '.join(DATASETS)}.")
    return loader(data_dir)


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name.strip().lower(), DATASETS, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
