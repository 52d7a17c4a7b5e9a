"""The registry of data sets, the shape of one, its splits and their batches."""

from __future__ import annotations

import os
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import platformdirs
import torch
from torch import Tensor

from elign.lab import registry
from elign.lab.data.scenario import ORDER_SEED, class_order
from elign.lab.environment import derive_seed, import_torchvision
from elign.lab.registry import Registry
from elign.utils.errors import ElignError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of each colour over the training images of ImageNet, as published with its usual models."""

_DOWNLOAD_SECONDS = 30.0
_LEVELS = 256


class DataError(ElignError):
    """A data set cannot be loaded."""


GOOD_COPY = "replace it by a good copy"
DOWNLOAD_AGAIN = f"{GOOD_COPY}, or remove it so that it is downloaded again"


class DamagedFileError(DataError):
    """The content of a file is not what it must be; `remedy` says what the user can do about it."""

    def __init__(self, path: Path | str, problem: str, remedy: str = DOWNLOAD_AGAIN) -> None:
        # The arguments go to Exception unchanged so that the error survives pickling between processes.
        super().__init__(path, problem, remedy)
        self.path, self.problem, self.remedy = path, problem, remedy

    def __str__(self) -> str:
        return f"{self.path} is damaged: {self.problem}. To go on, {self.remedy}."


class DatasetNotFoundError(DataError):
    """A data set is neither on disk nor could it be downloaded; `tries` says why each place failed."""

    def __init__(self, dataset: str, folder: Path, files: Sequence[str], tries: Sequence[str]) -> None:
        super().__init__(dataset, folder, files, tries)
        self.dataset, self.folder, self.files, self.tries = dataset, folder, tuple(files), tuple(tries)

    def __str__(self) -> str:
        wanted = "".join(f"\n  {name}" for name in self.files)
        tried = "".join(f"\n  - {line}" for line in self.tries)
        return (
            f"The data set {self.dataset!r} was not found.\nPut these files into {self.folder}:{wanted}\n"
            "or name another data folder with the variable ELIGN_DATA, --data-dir or, for elign run, data.data_dir=.\n"
            f"Tried:{tried}"
        )


def check_file(path: Path, max_bytes: int, remedy: str = DOWNLOAD_AGAIN) -> None:
    """Raise `DamagedFileError` for a file that is not regular (a pipe, a device, a link to itself) or is too long."""
    try:
        found = path.stat()
    except OSError as error:
        raise DamagedFileError(path, f"it cannot be read ({error.strerror})", remedy) from error
    if not stat.S_ISREG(found.st_mode):
        raise DamagedFileError(path, "it is not a regular file", remedy)
    if found.st_size > max_bytes:
        raise DamagedFileError(path, f"it has {found.st_size} bytes, more than {max_bytes}", remedy)


def read_file(path: Path, max_bytes: int, remedy: str = DOWNLOAD_AGAIN) -> bytes:
    """Read a regular file; raise `DamagedFileError` if it cannot be read or has more than `max_bytes`."""
    check_file(path, max_bytes, remedy)
    try:
        with path.open("rb") as handle:
            return handle.read(max_bytes)
    except OSError as error:
        raise DamagedFileError(path, f"it cannot be read ({error.strerror})", remedy) from error


def read_lines(path: Path, max_bytes: int, remedy: str = DOWNLOAD_AGAIN) -> list[str]:
    """Read the lines of a file of UTF-8 text; errors as for `read_file`."""
    try:
        return read_file(path, max_bytes, remedy).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DamagedFileError(path, f"it cannot be read as text ({error})", remedy) from error


def data_dir(explicit: Path | str | None = None) -> Path:
    """Return the folder of the data sets: `explicit`, else the variable ELIGN_DATA, else the user's cache folder."""
    chosen = explicit or os.environ.get("ELIGN_DATA") or platformdirs.user_cache_dir("elign")
    return Path(chosen).expanduser()


def download(dataset: str, root: Path, folder: Path, files: Sequence[str], fetch: Callable[[Any], object]) -> None:
    """Have torchvision download a data set to `root`; it compares what arrives with the published md5.

    `fetch` is given the module `torchvision.datasets`; the other arguments are for the error, `DatasetNotFoundError`.
    """
    # Torchvision sets no time-out, and a host that drops packets would keep it for ever.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_SECONDS)
    try:
        root.mkdir(parents=True, exist_ok=True)
        fetch(import_torchvision().datasets)
    except (RuntimeError, OSError, HTTPException, EOFError, ImportError) as error:
        tries = [f"files in {folder}: not complete", f"download: {' '.join(str(error).split())}"]
        raise DatasetNotFoundError(dataset, folder, files, tries) from error
    finally:
        socket.setdefaulttimeout(before)


class Split(ABC):
    """The training or the test images of a data set, in a fixed order; a row is a position in that order."""

    labels: Tensor
    """Class of each image, `int64` (N,), numbered in the order of arrival."""

    def batches(self, rows: Tensor, *, size: int, augment: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of the images in these rows, in the order of `rows`; the last batch may be smaller.

        Args:
            rows: Positions of the images, `int64` (M,); a position may occur more than once.
            size: Images per batch.
            augment: Seed of the random augmentation; equal seeds and rows give equal batches. None: no augmentation.

        Yields:
            Normalised images, `float32` (B, C, H, W), and their labels, `int64` (B,), both on the CPU.
        """
        check_rows(rows, len(self.labels), size)
        return self._batches(rows.cpu(), size, augment)

    @abstractmethod
    def _batches(self, rows: Tensor, size: int, augment: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches; the arguments are checked."""


def check_rows(rows: Tensor, count: int, size: int) -> None:
    """Raise `ValueError` or `IndexError` for rows of `count` images, or a batch size, that cannot be served."""
    if rows.dtype != torch.int64 or rows.ndim != 1:
        raise ValueError(f"rows must be an int64 (M,), not {rows.dtype} {tuple(rows.shape)}")
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise IndexError(f"rows must lie in 0..{count - 1}, not {int(rows.min())}..{int(rows.max())}")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set whose classes are numbered in the order of arrival; `image_shape` is (C, H, W)."""

    name: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: Split
    test: Split


@dataclass(frozen=True, eq=False)
class ImageData:
    """Labelled images in memory, before their classes are ordered.

    Images are `uint8` (N, C, H, W) of one size, labels `int64` (N,), positions in `classes`.

    Raises:
        DataError: A tensor has the wrong dtype or shape, or a label names no class.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        splits = {"train": (self.train_images, self.train_labels), "test": (self.test_images, self.test_labels)}
        for split, (images, labels) in splits.items():
            where = f"{self.name}: {split}"
            if images.dtype != torch.uint8 or images.ndim != 4 or images.numel() == 0:
                raise DataError(f"{where} images must be a filled uint8 (N, C, H, W), not {_shown(images)}")
            if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
                raise DataError(f"{where} labels must be int64 ({len(images)},), not {_shown(labels)}")
            if not 0 <= int(labels.min()) <= int(labels.max()) < len(self.classes):
                last = len(self.classes) - 1
                raise DataError(f"{where} labels must lie in 0..{last}, not {int(labels.min())}..{int(labels.max())}")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DataError(f"{self.name}: test images are {_shown(self.test_images)}, unlike the training images")


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


class Normalise:
    """(x / 255 - mean) / std, with mean and standard deviation of each channel for pixels in 0..1."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        # In units of stored bytes, so that two operations are enough.
        self._mean, self._std = (
            (torch.tensor(x, dtype=torch.float64) * 255).float().view(-1, 1, 1) for x in (mean, std)
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise `uint8` images (B, C, H, W) to new `float32` ones."""
        return images.to(torch.float32, memory_format=torch.contiguous_format).sub_(self._mean).div_(self._std)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of `uint8` images (N, C, H, W), for pixels in 0..1.

    They come from counts, so no copy of all images in floating point is needed.
    """
    levels = torch.arange(_LEVELS, dtype=torch.float64) / (_LEVELS - 1)
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten(), minlength=_LEVELS).double()
        share = counts / counts.sum()
        mean = (share * levels).sum()
        means.append(float(mean))
        deviations.append(float((share * (levels - mean) ** 2).sum().sqrt()))
    return tuple(means), tuple(deviations)


class MemorySplit(Split):
    """A `Split` of `uint8` images in memory, augmented a batch at a time.

    Augmentation is that of the published CIFAR experiments: the image, with a black border of `crop_padding` pixels
    around it, is cropped back to its size at a random position, then mirrored with probability 1/2. All choices are
    independent and uniform, and those of the n-th image of a pass do not depend on the size of its batches.
    `flip=False` mirrors none. Mean and deviation of each channel are those of pixels in 0..1.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        crop_padding: int,
        flip: bool,
    ) -> None:
        if not len(mean) == len(std) == images.shape[1]:
            raise ValueError(f"mean and std have {len(mean)} and {len(std)} channels, the images {images.shape[1]}")
        self._normalise = Normalise(mean, std)
        self.labels = labels
        self._images, self._padding, self._flip = images, crop_padding, flip

    def _batches(self, rows: Tensor, size: int, augment: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        corners = mirrored = torch.empty(0)
        if augment is not None:
            # Drawn for the whole pass at once: a few bytes per image, and batches may then be cut anywhere.
            generator = torch.Generator().manual_seed(augment)
            corners = torch.randint(2 * self._padding + 1, (len(rows), 2), generator=generator)
            mirrored = torch.randint(2, (len(rows),), generator=generator).bool()
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            images = self._images[rows[part]]
            if augment is not None and self._padding:
                images = self._crop(images, corners[part])
            if augment is not None and self._flip:
                images = torch.where(mirrored[part].view(-1, 1, 1, 1), images.flip(3), images)
            yield self._normalise(images), self.labels[rows[part]]

    def _crop(self, images: Tensor, corners: Tensor) -> Tensor:
        height, width = images.shape[2:]
        padded = torch.nn.functional.pad(images, (self._padding,) * 4)
        # A view of every possible crop, (B, C, tops, lefts, H, W): indexing it copies the chosen ones only.
        crops = padded.unfold(2, height, 1).unfold(3, width, 1)
        return crops[torch.arange(len(images)), :, corners[:, 0], corners[:, 1]]


def first_of_each(labels: Tensor, limit: int) -> Tensor:
    """Return the rows of the first `limit` images of each class, in their order: `int64`, (M,)."""
    by_class = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(labels)) - starts[labels[by_class]]
    return by_class[rank < limit].sort().values


def held_out(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Draw `count` images of each class, not all; return the rows that are left and those drawn, in their order."""
    counts = torch.bincount(labels)
    if count >= int(counts.min()):
        raise DataError(f"validation must be below {int(counts.min())}, the images of the smallest class, not {count}.")
    generator = torch.Generator().manual_seed(derive_seed(0, "validation images"))
    shuffled = torch.randperm(len(labels), generator=generator)
    held = shuffled[first_of_each(labels[shuffled], count)]
    left = torch.ones(len(labels), dtype=torch.bool)
    left[held] = False
    return left.nonzero().squeeze(1), held.sort().values


@dataclass(frozen=True)
class OpenOptions:
    """How a data set is opened; see `open_dataset`."""

    path: Path | None
    root: Path
    order_seed: int | None
    limit: int | None
    workers: int
    image_size: int | None
    validation: int | None

    def __post_init__(self) -> None:
        for option, least in {"limit": 1, "workers": 0, "image_size": 1, "validation": 1}.items():
            value = getattr(self, option)
            if value is not None and value < least:
                raise DataError(f"{option} must be at least {least}, not {value}.")


class DatasetSource(ABC):
    """A data set that the bench knows by name: where its files are, and how they become a `Dataset`.

    Subclass `MemorySource` or `elign.lab.data.folders.FolderSource`, and register the class with `DATASETS`.
    """

    class_count: ClassVar[int | None] = None
    """How many classes it has; None if only its files tell."""
    images: ClassVar[str] = "cifar"
    """The kind of its images, which decides the default model: digits, mnist, cifar or imagenet."""
    folders: ClassVar[tuple[str, ...]] = ()
    """Where in the data folder its files may be, in the order of preference; empty if it needs none."""
    downloads: ClassVar[bool] = False
    """Whether `open` downloads it where it is not on disk."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, root: Path) -> Path | None:
        """Return the first of its folders that holds its files, or None; nothing is read."""
        return next((root / folder for folder in self.folders if (root / folder).is_dir()), None)

    @abstractmethod
    def open(self, options: OpenOptions) -> Dataset:
        """Open it; raise `DataError` if an option does not fit, or the data set cannot be had."""


DATASETS: Registry[type[DatasetSource]] = registry.DATASETS
"""The data sets of the bench, by name."""


class MemorySource(DatasetSource):
    """A data set of small images that fits into memory; a subclass has `load`.

    Example:
        A new data set is one file in this package::

            @DATASETS.register("noise")
            class Noise(MemorySource):
                def load(self, root): return ImageData(self.name, ...)
    """

    crop_padding: ClassVar[int] = 4
    """Width of the black border for the random crop."""
    flip: ClassVar[bool] = True
    """Whether training images are mirrored at random."""
    mean: ClassVar[tuple[float, ...] | None] = None
    """Mean of each channel; None to take mean and deviation from the training images."""
    std: ClassVar[tuple[float, ...] | None] = None
    """Standard deviation of each channel."""

    def load(self, root: Path) -> ImageData:
        """Load all images, given the data folder."""
        raise NotImplementedError

    def open(self, options: OpenOptions) -> Dataset:
        """Open it; see `DatasetSource`."""
        if options.path is not None:
            raise DataError(f"path is for folders of pictures, not for {self.name!r}.")
        data = self.load(options.root)
        if options.validation is not None:
            kept, held = held_out(data.train_labels, options.validation)
            data = replace(
                data,
                train_images=data.train_images[kept],
                train_labels=data.train_labels[kept],
                test_images=data.train_images[held],
                test_labels=data.train_labels[held],
            )
        return self.in_memory(data, options)

    def in_memory(self, data: ImageData, options: OpenOptions) -> Dataset:
        """Order the classes, apply the size of images and the limit, and make the splits."""
        height, width = data.train_images.shape[-2:]
        side = options.image_size or width
        if options.image_size is not None and (height != width or width % side):
            raise DataError(
                f"{self.name} has pictures of {height} x {width} pixels: image_size must divide that, not be {side}."
            )
        factor = width // side  # so many pixels of a row become one
        order = class_order(len(data.classes), seed=options.order_seed)
        rank = torch.tensor(order).argsort()  # of a permutation: its inverse
        images, labels = _shrunk(data.train_images, factor), rank[data.train_labels]
        padding = -(-self.crop_padding // factor)
        # Before the limit: a trial on fewer images sees them as the full run does.
        mean, std = (self.mean, self.std) if self.mean and self.std else channel_statistics(images)
        if options.limit is not None:
            kept = first_of_each(labels, options.limit)
            images, labels = images[kept], labels[kept]

        def split(images: Tensor, labels: Tensor) -> MemorySplit:
            return MemorySplit(images, labels, mean=mean, std=std, crop_padding=padding, flip=self.flip)

        return Dataset(
            name=data.name,
            classes=tuple(data.classes[label] for label in order),
            image_shape=tuple(images.shape[1:]),  # type: ignore[arg-type]
            train=split(images, labels),
            test=split(_shrunk(data.test_images, factor), rank[data.test_labels]),
        )


def _shrunk(images: Tensor, factor: int) -> Tensor:
    """Return 8-bit images with each block of factor x factor pixels replaced by its mean."""
    if factor == 1:
        return images
    return torch.nn.functional.avg_pool2d(images.float(), factor).round().to(images.dtype)


def open_dataset(
    name: str,
    *,
    path: Path | str | None = None,
    data_dir: Path | str | None = None,
    order_seed: int | None = ORDER_SEED,
    limit: int | None = None,
    workers: int = 0,
    image_size: int | None = None,
    validation: int | None = None,
) -> Dataset:
    """Open a data set, after downloading it where that is needed and possible.

    Args:
        name: One of `DATASETS`.
        path: The data set's own folder, for folders of pictures. "folder" needs it; without it the others are looked
            for in the data folder.
        data_dir: The data folder; default: the variable ELIGN_DATA, else the user's cache folder.
        order_seed: Seed of the order in which classes arrive; None for the natural order.
        limit: The most training images per class, for quick trials: the first ones in the order of the files.
        workers: How many processes read large pictures; 0 to read them in this one.
        image_size: Height and width of pictures: of folders, default 224; of data sets in memory, a divisor of the side
            they have (means over blocks: CIFAR-100 at 16 pixels trains four times as fast).
        validation: How many training images of each class, drawn at random and always the same, replace the test
            images. For choices that must not be made on the test images.

    Raises:
        OptionError: There is no such data set.
        DataError: An option does not fit it, it cannot be had (`DatasetNotFoundError`), or one of its files is damaged
            (`DamagedFileError`).

    Example:
        >>> digits = open_dataset("digits")
        >>> digits.image_shape, digits.classes[:3]
        ((1, 8, 8), ('4', '2', '7'))
    """
    source = DATASETS[name](name)
    own = None if path is None else Path(path).expanduser()
    return source.open(OpenOptions(own, _root(data_dir), order_seed, limit, workers, image_size, validation))


def load_dataset(name: str, *, data_dir: Path | str | None = None) -> ImageData:
    """Load a data set that fits into memory, with its classes in their natural order; errors as for `open_dataset`."""
    source = DATASETS[name](name)
    if not isinstance(source, MemorySource):
        raise DataError(f"{name!r} does not fit into memory; open_dataset opens it.")
    return source.load(_root(data_dir))


_root = data_dir  # by this name in functions that have an argument `data_dir`


Status = Literal["found", "can be downloaded", "missing", "give its path"]


class Entry(NamedTuple):
    """Whether the files of a data set are there; nothing says that they are good."""

    name: str
    classes: int | None
    """How many; None if only its files tell."""
    status: Status
    places: tuple[Path, ...]
    """Where it is looked for; once it is found, where it is. Empty if it needs no place."""


def catalogue(data_dir: Path | str | None = None) -> tuple[Entry, ...]:
    """Return an entry for each of `DATASETS`; no data set is loaded."""
    root, entries = _root(data_dir), []
    for name, source_class in DATASETS.items():
        source = source_class(name)
        found = source.find(root)
        status: Status = "found" if found else "can be downloaded" if source.downloads else "missing"
        places = (found,) if found else tuple(root / folder for folder in source.folders)
        if not source.folders:
            status, places = "give its path" if source.class_count is None else "found", ()
        entries.append(Entry(name, source.class_count, status, places))
    return tuple(entries)
