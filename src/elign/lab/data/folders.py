"""Data sets that are folders of pictures: the user's own, ImageNet, its subset of 100 classes, and Tiny-ImageNet.

None is downloaded: ImageNet is given out on request. Torchvision's helpers for such folders follow links without a
bound and take whatever has the name of a picture; here only regular files of a class folder count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from elign.lab.data.base import (
    DATASETS,
    IMAGENET_MEAN,
    IMAGENET_STD,
    DamagedFileError,
    DataError,
    Dataset,
    DatasetNotFoundError,
    DatasetSource,
    ImageData,
    MemorySource,
    OpenOptions,
    first_of_each,
    held_out,
    read_lines,
)
from elign.lab.data.pictures import FolderSplit, read_small
from elign.lab.data.scenario import class_order
from elign.lab.environment import derive_seed

SUFFIXES = frozenset((".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
"""What the file name of a picture may end with, in capitals or not; all other files are skipped."""

_TEST_SHARE = 0.2
_SUBSET_SEED = 1993
_INNER = "images"
_ANNOTATIONS = ("val_annotations.txt", "LOC_val_solution.csv")
_ANNOTATION_BYTES = 1 << 26


class FolderLayoutError(DataError):
    """The pictures of a folder are not laid out as they must be; `needed` says what it must look like."""

    def __init__(self, path: Path, problem: str, needed: str) -> None:
        super().__init__(path, problem, needed)
        self.path, self.problem, self.needed = path, problem, needed

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}. Needed: {self.needed}."


@dataclass(frozen=True, eq=False)
class ImageList:
    """Picture files with their classes.

    Args:
        root: The folder that the names are relative to.
        names: The names, as an array of bytes: a million `Path` objects would take half a gigabyte, and each process
            that reads pictures would get its own copy.
        labels: Class of each, `int64` (N,).
    """

    root: Path
    names: np.ndarray[Any, np.dtype[np.bytes_]]
    labels: Tensor

    @classmethod
    def of(cls, root: Path, by_class: Sequence[Sequence[str]]) -> ImageList:
        """Make the list from the names of each class."""
        names = np.array([os.fsencode(name) for group in by_class for name in group])
        counts = torch.tensor([len(group) for group in by_class])
        return cls(root, names, torch.arange(len(by_class)).repeat_interleave(counts))

    def __len__(self) -> int:
        return len(self.names)

    def path(self, row: int) -> Path:
        """Return the file in this row."""
        return self.root / os.fsdecode(self.names[row])

    def keep(self, rows: Tensor) -> ImageList:
        """Return the list of these rows only."""
        return ImageList(self.root, self.names[rows.numpy()], self.labels[rows])


@dataclass(frozen=True, eq=False)
class ImageFolders:
    """The names of the classes, the training and the test pictures of a data set."""

    classes: tuple[str, ...]
    train: ImageList
    test: ImageList


class FolderSource(DatasetSource):
    """A data set of picture files; ImageNet's layout unless a subclass says otherwise."""

    images = "imagenet"
    side: ClassVar[int] = 224
    """Height and width of what comes out, if no image size is asked for."""
    needed: ClassVar[tuple[str, ...]] = (
        "train/WNID/*.JPEG",
        "val/WNID/*.JPEG (or val/*.JPEG with LOC_val_solution.csv beside val)",
    )
    """The layout in words."""
    test_folders: ClassVar[tuple[str, ...]] = ("val",)
    """Names of the test folder; the first that is there counts."""
    may_be_partial: ClassVar[bool] = False
    """Whether a folder given by its path may have some of the classes only."""

    def files(self, path: Path | None, root: Path) -> ImageFolders:
        """List the pictures: class after class, each in the order of its file names.

        Test pictures are in class folders like the training pictures, or all in one folder with a file that says the
        class of each: `val_annotations.txt` in it (Tiny-ImageNet) or `LOC_val_solution.csv` beside it (ImageNet).

        It is in its own folder `path`, or in the data folder `root`.

        Raises:
            DatasetNotFoundError: The data set is not there.
            FolderLayoutError: It has another layout or another number of classes.
            DamagedFileError: A list of test pictures in it is damaged.
        """
        folder = path or self.find(root)
        if folder is None:
            tries = [f"no folder {root / folder}; it cannot be downloaded for you" for folder in self.folders]
            raise DatasetNotFoundError(self.name, root / self.folders[0], self.needed, tries)
        if not folder.is_dir():
            raise self._wrong(folder, "there is no such folder")
        train = folder / "train"
        if not train.is_dir():
            raise self._wrong(folder, "it has no folder train")
        held = next((folder / name for name in self.test_folders if (folder / name).is_dir()), None)
        if held is None:
            raise self._wrong(folder, f"it has no folder {' or '.join(self.test_folders)}")
        available = class_names(train)
        classes = self.choose(available)
        if not classes:
            raise self._wrong(train, "it has no class folders")
        if self.class_count not in (None, len(classes)) and not (self.may_be_partial and path):
            raise self._wrong(train, f"it has {len(available)} classes, and {self.name} has {self.class_count}")
        return ImageFolders(
            classes=classes,
            train=ImageList.of(folder, [self._class_pictures(train / one, folder) for one in classes]),
            test=ImageList.of(folder, self._test_pictures(folder, held, available, classes)),
        )

    def choose(self, available: tuple[str, ...]) -> tuple[str, ...]:
        """Choose the classes among those in the folder; here all."""
        return available

    def open(self, options: OpenOptions) -> Dataset:
        """Open it; see `DatasetSource`."""
        files = self.files(options.path, options.root)
        # Before anything is read: Tiny-ImageNet goes into memory whole.
        if options.validation is not None:
            kept, held = held_out(files.train.labels, options.validation)
            files = replace(files, train=files.train.keep(kept), test=files.train.keep(held))
        if options.limit is not None:
            files = replace(files, train=files.train.keep(first_of_each(files.train.labels, options.limit)))
        return self.serve(files, options)

    def serve(self, files: ImageFolders, options: OpenOptions) -> Dataset:
        """Order the classes and make splits that read pictures when they are needed."""
        order = class_order(len(files.classes), seed=options.order_seed)
        rank = torch.tensor(order).argsort()  # of a permutation: its inverse
        side = options.image_size or self.side

        def split(images: ImageList) -> FolderSplit:
            return FolderSplit(images.path, rank[images.labels], image_size=side, workers=options.workers)

        return Dataset(
            name=self.name,
            classes=tuple(files.classes[label] for label in order),
            image_shape=(3, side, side),
            train=split(files.train),
            test=split(files.test),
        )

    def _wrong(self, path: Path, problem: str) -> FolderLayoutError:
        return FolderLayoutError(path, problem, " and ".join(self.needed))

    def _class_pictures(self, folder: Path, root: Path) -> list[str]:
        """List the pictures of a class, relative to `root`; Tiny-ImageNet has them in a further folder."""
        for place in (folder, folder / _INNER):
            if found := picture_names(place) if place.is_dir() else []:
                prefix = place.relative_to(root).as_posix()
                return [f"{prefix}/{name}" for name in found]
        raise self._wrong(folder, "the class has no pictures")

    def _test_pictures(
        self, root: Path, held: Path, available: Sequence[str], chosen: Sequence[str]
    ) -> list[list[str]]:
        present = set(class_names(held))
        # Class folders win: a script that sorts the pictures into them often leaves the annotations where they were.
        if present & set(available):
            if strange := sorted(present - set(available)):
                raise self._wrong(held, f"it has the class {strange[0]!r}, which train has not")
            return [self._class_pictures(held / one, root) for one in chosen]
        for path in (held / _ANNOTATIONS[0], root / _ANNOTATIONS[1]):
            if path.is_file():
                return _annotated(path, root, held, available, chosen)
        raise self._wrong(held, f"it has no folders of the classes in train, nor {' or '.join(_ANNOTATIONS)}")


@DATASETS.register("folder")
class OwnFolder(FolderSource):
    """A folder of the user's own pictures, with or without a test part."""

    needed = ("train/CLASS/*.jpg with test/CLASS/*.jpg (or val), or just CLASS/*.jpg",)
    test_folders = ("test", "val")

    def files(self, path: Path | None, root: Path) -> ImageFolders:
        """List the pictures; without a test folder, a fifth of each class, always the same, is for testing."""
        if path is None:
            raise DataError("'folder' needs the path of your folder of pictures.")
        if not path.is_dir() or any((path / part).is_dir() for part in ("train", "test", "val")):
            return super().files(path, root)
        classes = class_names(path)
        if not classes:
            raise self._wrong(path, "it has no class folders")
        parts: dict[bool, list[list[str]]] = {False: [], True: []}
        for one in classes:
            files = self._class_pictures(path / one, path)
            if len(files) < 2:
                raise self._wrong(path / one, "it has one picture, too few for a training and a test part")
            # A seed of its own for each class, so that a further class does not change the split of the others.
            generator = torch.Generator().manual_seed(derive_seed(0, f"test pictures of {one}"))
            drawn = torch.randperm(len(files), generator=generator)[: max(1, round(_TEST_SHARE * len(files)))]
            held = set(drawn.tolist())
            for testing, part in parts.items():
                part.append([file for row, file in enumerate(files) if (row in held) == testing])
        return ImageFolders(classes, ImageList.of(path, parts[False]), ImageList.of(path, parts[True]))


@DATASETS.register("imagenet1k")
class ImageNet(FolderSource):
    """All 1000 classes of ImageNet."""

    class_count = 1000
    folders = ("imagenet",)


@DATASETS.register("imagenet100")
class ImageNet100(FolderSource):
    """The 100 classes of ImageNet that the literature calls ImageNet-Subset.

    They are drawn from the sorted names without replacement. The order of the draw is then given up: the label of a
    class is its position among the sorted 100, as a folder of class folders is read, and `class_order(100)` shuffles
    these labels afterwards.
    """

    class_count = 100
    folders = ("imagenet100", "imagenet")

    def choose(self, available: tuple[str, ...]) -> tuple[str, ...]:
        """Choose the 100 where all 1000 are there."""
        if len(available) != ImageNet.class_count:
            return available
        drawn = np.random.RandomState(_SUBSET_SEED).choice(len(available), self.class_count, replace=False)
        return tuple(available[index] for index in sorted(drawn))


@DATASETS.register("tiny-imagenet")
class TinyImageNet(FolderSource):
    """200 classes of ImageNet at 64 x 64, in memory."""

    class_count = 200
    images = "cifar"
    side = 64
    may_be_partial = True
    folders = ("tiny-imagenet-200",)
    needed = ("train/WNID/images/*.JPEG", "val/images/*.JPEG with val/val_annotations.txt")

    def serve(self, files: ImageFolders, options: OpenOptions) -> Dataset:
        """Read all pictures and make splits in memory."""
        train, test = (
            read_small([images.path(row) for row in range(len(images))], side=self.side)
            for images in (files.train, files.test)
        )
        data = ImageData(self.name, train, files.train.labels, test, files.test.labels, files.classes)
        return _TinyImages(self.name).in_memory(data, options)


class _TinyImages(MemorySource):
    crop_padding = 8
    mean, std = IMAGENET_MEAN, IMAGENET_STD


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the class folders in a folder; raise `DataError` if one is not text."""
    names = _entries(folder, os.DirEntry.is_dir)
    for name in names:
        if not is_text(name):
            raise DataError(f"{folder} has a class folder {name!r}, whose name is not UTF-8: rename it")
    return tuple(names)


def is_text(name: str) -> bool:
    """Whether a class's name can be shown and written: a file's name, or one in JSON, need not be text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def picture_names(folder: Path) -> list[str]:
    """List the pictures in a folder; pipes, devices and links to nothing or to themselves are skipped."""
    return [name for name in _entries(folder, os.DirEntry.is_file) if Path(name).suffix.lower() in SUFFIXES]


def _entries(folder: Path, is_wanted: Any) -> list[str]:
    def wanted(entry: os.DirEntry[str]) -> bool:
        try:
            return not entry.name.startswith(".") and bool(is_wanted(entry))
        except OSError:  # a link to itself
            return False

    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if wanted(entry))


def _annotated(
    annotations: Path, root: Path, held: Path, available: Sequence[str], chosen: Sequence[str]
) -> list[list[str]]:
    folder = held / _INNER if (held / _INNER).is_dir() else held
    prefix = folder.relative_to(root).as_posix()
    files = {key: name for name in picture_names(folder) for key in (name, Path(name).stem)}
    found: dict[str, list[str]] = {one: [] for one in available}
    for picture, label in _annotation_lines(annotations):
        if label not in found:
            raise DamagedFileError(annotations, f"it names the class {label!r}, which train has not")
        if picture not in files:
            raise DamagedFileError(annotations, f"it names the picture {picture!r}, which is not in {folder}")
        found[label].append(f"{prefix}/{files[picture]}")
    empty = next((one for one in chosen if not found[one]), None)
    if empty is not None:
        raise DamagedFileError(annotations, f"it has no picture of the class {empty!r}")
    return [sorted(found[one]) for one in chosen]


def _annotation_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield picture and class of each line; the boxes that follow in both formats are not needed."""
    header = path.suffix == ".csv"
    for number, line in enumerate(read_lines(path, _ANNOTATION_BYTES)[header:], start=1 + header):
        fields = line.replace(",", " ").split()
        if len(fields) < 2:
            raise DamagedFileError(path, f"line {number} does not name a picture and its class")
        yield fields[0], fields[1]
