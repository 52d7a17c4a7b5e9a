"""Datasets as the class-incremental experiments see them, by name.

`elign.lab.data.load_dataset` gives pixels as they are in the files; here the classes are put into the order of arrival,
and the images come in batches, normalised and augmented as published for each dataset.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from elign.lab.data import DATASETS, load_dataset
from elign.lab.data.dataset import ImageData
from elign.lab.data.errors import DataError
from elign.lab.data.find_folders import FOLDER_SPECS, find_folders
from elign.lab.data.folder_split import FolderSplit
from elign.lab.data.image_folders import ImageFolders
from elign.lab.data.memory_split import MemorySplit
from elign.lab.data.order import class_order, reorder
from elign.lab.data.pictures import read_small
from elign.lab.data.pixels import IMAGENET_MEAN, IMAGENET_STD, channel_statistics
from elign.lab.data.split import Split
from elign.lab.seeds import derive_seed

FOLDER_DATASETS = (*FOLDER_SPECS, "folder")
"""The datasets that are folders of pictures."""

BENCH_DATASETS = DATASETS + FOLDER_DATASETS
"""The names that `open_dataset` knows."""


@dataclass(frozen=True, eq=False)
class BenchDataset:
    """A dataset whose classes are numbered in the order of arrival.

    Args:
        name: The dataset's name.
        classes: Names of the classes, in the order of arrival.
        image_shape: (C, H, W) of what the splits give.
        train: Training images.
        test: Test images.
    """

    name: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: Split
    test: Split


@dataclass(frozen=True)
class Recipe:
    """How the images of a dataset are augmented and normalised.

    Args:
        crop_padding: Width of the black border for the random crop.
        flip: Whether images are mirrored at random.
        mean: Mean of each channel; None to take mean and deviation from the training images.
        std: Standard deviation of each channel.
    """

    crop_padding: int
    flip: bool
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


RECIPES = {
    "digits": Recipe(crop_padding=1, flip=False),
    "mnist": Recipe(crop_padding=2, flip=False),
    "fashion-mnist": Recipe(crop_padding=2, flip=True),
    "cifar100": Recipe(crop_padding=4, flip=True, mean=(0.5071, 0.4866, 0.4409), std=(0.2009, 0.1984, 0.2023)),
}
"""How each dataset of `DATASETS` is served. The numbers for CIFAR-100 are those of the published experiments."""

_TINY = Recipe(crop_padding=8, flip=True, mean=IMAGENET_MEAN, std=IMAGENET_STD)
_TINY_NAME = "tiny-imagenet"
_TINY_SIDE = 64
_FULL_SIDE = 224


def open_dataset(
    name: str,
    *,
    path: Path | str | None = None,
    data_dir: Path | str | None = None,
    order_seed: int | None = 1993,
    limit: int | None = None,
    workers: int = 0,
    image_size: int | None = None,
    validation: int | None = None,
) -> BenchDataset:
    """Open a dataset by its name, fetching it first where that is possible and needed.

    Args:
        name: One of `BENCH_DATASETS`.
        path: The dataset's own folder, for those that are folders of pictures. "folder" needs it; the others are
            looked for in the data folder without it.
        data_dir: The data folder; default: the variable ELIGN_DATA, else the platform's cache folder of the user.
        order_seed: Seed of the order in which classes arrive; None for the natural order.
        limit: The most training images per class, for quick trials: the first ones in the order of the files. Test
            images are all kept.
        workers: How many processes read large pictures; 0 to read them in this one.
        image_size: Height and width of pictures from folders; default 224. Tiny-ImageNet always has 64.
        validation: How many training images of each class, drawn at random and always the same, take the place of the
            test images; these are then not looked at. For choices that must not be made on the test images.

    Returns:
        The dataset.

    Raises:
        DataError: There is no such dataset, an option does not fit it, it cannot be had (`DatasetNotFoundError`), or a
            file of it is broken (`DamagedFileError`).

    Example:
        >>> digits = open_dataset("digits")
        >>> digits.image_shape, digits.classes[:3]
        ((1, 8, 8), ('4', '2', '7'))
    """
    _check_options(name, path=path, limit=limit, workers=workers, image_size=image_size, validation=validation)
    if name in RECIPES:
        data = load_dataset(name, data_dir=data_dir)
        if validation is not None:
            data = _with_validation(data, validation)
        return _in_memory(data, RECIPES[name], order_seed, limit)
    folders = find_folders(name, path=path, data_dir=data_dir)
    if validation is not None:
        # Before anything is read, as the limit below.
        kept, held = held_out(folders.train.labels, validation)
        folders = replace(folders, train=folders.train.keep(kept), test=folders.train.keep(held))
    if limit is not None:
        # Before anything is read: Tiny-ImageNet goes into memory whole.
        folders = replace(folders, train=folders.train.keep(first_of_each(folders.train.labels, limit)))
    if name == _TINY_NAME:
        return _in_memory(_read_small(folders, _TINY_SIDE), _TINY, order_seed, None)
    return _from_files(folders, order_seed, image_size or _FULL_SIDE, workers)


def first_of_each(labels: Tensor, limit: int) -> Tensor:
    """The rows of the first `limit` images of each class, in their order: `int64`, (M,)."""
    by_class = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(labels)) - starts[labels[by_class]]
    return by_class[rank < limit].sort().values


def held_out(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The rows that are left and those that are held out, `count` of each class: `int64`, in their order.

    Raises:
        DataError: A class has no image left.
    """
    counts = torch.bincount(labels)
    if count >= int(counts.min()):
        raise DataError(f"validation must be below {int(counts.min())}, the images of the smallest class, not {count}.")
    generator = torch.Generator().manual_seed(derive_seed(0, "validation images"))
    shuffled = torch.randperm(len(labels), generator=generator)
    held = shuffled[first_of_each(labels[shuffled], count)]
    left = torch.ones(len(labels), dtype=torch.bool)
    left[held] = False
    return left.nonzero().squeeze(1), held.sort().values


def _check_options(
    name: str,
    *,
    path: Path | str | None,
    limit: int | None,
    workers: int,
    image_size: int | None,
    validation: int | None,
) -> None:
    if name not in BENCH_DATASETS:
        near = difflib.get_close_matches(name.strip().lower(), BENCH_DATASETS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(f"There is no dataset {name!r}.{hint} Known are: {', '.join(BENCH_DATASETS)}.")
    if name in RECIPES and (path is not None or image_size is not None):
        raise DataError(f"path and image_size are for folders of pictures, not for {name!r}.")
    if name == _TINY_NAME and image_size not in (None, _TINY_SIDE):
        raise DataError(f"{name} has pictures of {_TINY_SIDE} pixels; image_size cannot be {image_size}.")
    counts = (
        ("limit", limit, 1),
        ("workers", workers, 0),
        ("image_size", image_size, 1),
        ("validation", validation, 1),
    )
    for option, value, least in counts:
        if value is not None and value < least:
            raise DataError(f"{option} must be at least {least}, not {value}.")


def _with_validation(data: ImageData, count: int) -> ImageData:
    kept, held = held_out(data.train_labels, count)
    return replace(
        data,
        train_images=data.train_images[kept],
        train_labels=data.train_labels[kept],
        test_images=data.train_images[held],
        test_labels=data.train_labels[held],
    )


def _in_memory(data: ImageData, recipe: Recipe, order_seed: int | None, limit: int | None) -> BenchDataset:
    data = reorder(data, class_order(len(data.classes), seed=order_seed))
    # Before the limit: a trial on fewer images sees them as the full run does.
    mean, std = _statistics(data, recipe)
    images, labels = data.train_images, data.train_labels
    if limit is not None:
        kept = first_of_each(labels, limit)
        images, labels = images[kept], labels[kept]

    def split(images: Tensor, labels: Tensor) -> MemorySplit:
        return MemorySplit(images, labels, mean=mean, std=std, crop_padding=recipe.crop_padding, flip=recipe.flip)

    return BenchDataset(
        name=data.name,
        classes=data.classes,
        image_shape=data.image_shape,
        train=split(images, labels),
        test=split(data.test_images, data.test_labels),
    )


def _read_small(folders: ImageFolders, side: int) -> ImageData:
    train, test = (
        read_small([images.path(row) for row in range(len(images))], side=side)
        for images in (folders.train, folders.test)
    )
    return ImageData(
        name=folders.name,
        train_images=train,
        train_labels=folders.train.labels,
        test_images=test,
        test_labels=folders.test.labels,
        classes=folders.classes,
    )


def _from_files(folders: ImageFolders, order_seed: int | None, side: int, workers: int) -> BenchDataset:
    folders = folders.reordered(class_order(len(folders.classes), seed=order_seed))
    return BenchDataset(
        name=folders.name,
        classes=folders.classes,
        image_shape=(3, side, side),
        train=FolderSplit(folders.train, image_size=side, workers=workers),
        test=FolderSplit(folders.test, image_size=side, workers=workers),
    )


def _statistics(data: ImageData, recipe: Recipe) -> tuple[Sequence[float], Sequence[float]]:
    if recipe.mean is not None and recipe.std is not None:
        return recipe.mean, recipe.std
    return channel_statistics(data.train_images)
