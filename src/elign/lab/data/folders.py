"""Data sets that are folders of pictures: which files and classes they hold.

Torchvision's helpers for such folders follow links without a bound and take whatever has the name of a picture; here
only regular files of a class folder count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from elign.lab.data.base import (
    DATASETS,
    DamagedFileError,
    DataError,
    Dataset,
    DatasetNotFoundError,
    DatasetSource,
    OpenOptions,
    first_of_each,
    held_out,
    read_lines,
)
from elign.lab.data.pictures import FolderSplit
from elign.lab.data.scenario import class_order
from elign.lab.environment import derive_seed

SUFFIXES = frozenset((".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
"""What the file name of a picture may end with, in capitals or not; all other files are skipped."""

_TEST_SHARE = 0.2
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

    def files(self, path: Path | None, root: Path) -> ImageFolders:
        """List the pictures.

        Args:
            path: The data set's own folder, if it is not in the data folder.
            root: The data folder.

        Raises:
            DatasetNotFoundError: The data set is not there.
            FolderLayoutError: It has another layout or another number of classes.
            DamagedFileError: A list of test pictures in it is damaged.
        """
        folder = path or self.find(root)
        if folder is None:
            tries = [f"no folder {root / folder}; it cannot be downloaded for you" for folder in self.folders]
            raise DatasetNotFoundError(self.name, root / self.folders[0], self.needed, tries)
        self._check_folder(folder)
        available = class_names(folder / "train") if (folder / "train").is_dir() else ()
        classes = self.choose(available)
        if available and len(classes) != self.class_count and not self.may_be_partial(path):
            problem = f"it has {len(available)} classes, and {self.name} has {self.class_count}"
            raise FolderLayoutError(folder / "train", problem, self.layout)
        return read_folders(folder, needed=self.layout, classes=classes or None)

    @property
    def layout(self) -> str:
        """The layout in one line."""
        return " and ".join(self.needed)

    def choose(self, available: tuple[str, ...]) -> tuple[str, ...]:
        """Choose the classes among those in the folder; here all."""
        return available

    def may_be_partial(self, path: Path | None) -> bool:
        """Whether some classes may be missing."""
        return False

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

    def _check_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FolderLayoutError(folder, "there is no such folder", self.layout)


@DATASETS.register("folder")
class OwnFolder(FolderSource):
    """A folder of the user's own pictures, with or without a test part."""

    needed = ("train/CLASS/*.jpg with test/CLASS/*.jpg (or val), or just CLASS/*.jpg",)

    def files(self, path: Path | None, root: Path) -> ImageFolders:
        """List the pictures; see `FolderSource`."""
        if path is None:
            raise DataError("'folder' needs the path of your folder of pictures.")
        self._check_folder(path)
        if any((path / part).is_dir() for part in ("train", "test", "val")):
            return read_folders(path, needed=self.layout, test=("test", "val"))
        return split_folder(path, needed=self.layout)


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the class folders in a folder; raise `DataError` if one is not text."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is(entry, "dir"))
    for name in names:
        if not is_text(name):
            raise DataError(f"{folder} has a class folder {name!r}, whose name is not UTF-8: rename it")
    return tuple(names)


def is_text(name: str) -> bool:
    """Whether a class's name can be shown and written: a file's name, or one in JSON, need not be text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def read_folders(
    folder: Path, *, needed: str, classes: Sequence[str] | None = None, test: Sequence[str] = ("val",)
) -> ImageFolders:
    """List a folder that holds `train` and a test folder: class after class, each in the order of its file names.

    Test pictures are in class folders like the training pictures, or all in one folder with a file that says the class
    of each: `val_annotations.txt` in it (Tiny-ImageNet) or `LOC_val_solution.csv` beside it (ImageNet).

    Args:
        folder: The folder.
        needed: The layout in words, for errors.
        classes: The classes to take; default: all that `train` has.
        test: Names of the test folder; the first that is there counts.

    Raises:
        FolderLayoutError: A folder is missing, or a class has no pictures.
        DamagedFileError: The file with the classes of the test pictures is not what it must be.
    """
    train = folder / "train"
    if not train.is_dir():
        raise FolderLayoutError(folder, "it has no folder train", needed)
    held = next((folder / name for name in test if (folder / name).is_dir()), None)
    if held is None:
        raise FolderLayoutError(folder, f"it has no folder {' or '.join(test)}", needed)
    available = class_names(train)
    chosen = available if classes is None else tuple(classes)
    if not chosen:
        raise FolderLayoutError(train, "it has no class folders", needed)
    return ImageFolders(
        classes=chosen,
        train=_listed(folder, [_class_pictures(train / one, folder, needed) for one in chosen]),
        test=_listed(folder, _test_pictures(folder, held, available, chosen, needed)),
    )


def split_folder(folder: Path, *, needed: str) -> ImageFolders:
    """List class folders without a test folder: a fifth of each class, always the same, is for testing.

    Raises:
        FolderLayoutError: There are no class folders, or a class has fewer than two pictures.
    """
    classes = class_names(folder)
    if not classes:
        raise FolderLayoutError(folder, "it has no class folders", needed)
    train, test = [], []
    for one in classes:
        files = _class_pictures(folder / one, folder, needed)
        if len(files) < 2:
            raise FolderLayoutError(folder / one, "it has one picture, too few for a training and a test part", needed)
        # A seed of its own for each class, so that a further class does not change the split of the others.
        generator = torch.Generator().manual_seed(derive_seed(0, f"test pictures of {one}"))
        drawn = torch.randperm(len(files), generator=generator)[: max(1, round(_TEST_SHARE * len(files)))]
        held = set(drawn.tolist())
        train.append([file for row, file in enumerate(files) if row not in held])
        test.append([file for row, file in enumerate(files) if row in held])
    return ImageFolders(classes=classes, train=_listed(folder, train), test=_listed(folder, test))


def _is(entry: os.DirEntry[str], kind: str) -> bool:
    try:
        return entry.is_dir() if kind == "dir" else entry.is_file()
    except OSError:  # a link to itself
        return False


def _pictures(folder: Path) -> list[str]:
    """List the pictures in a folder; pipes, devices and links to nothing or to themselves are skipped."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and Path(entry.name).suffix.lower() in SUFFIXES and _is(entry, "file")
        )


def _class_pictures(folder: Path, root: Path, needed: str) -> list[str]:
    """List the pictures of a class, relative to `root`; Tiny-ImageNet has them in a further folder."""
    for place in (folder, folder / _INNER):
        found = _pictures(place) if place.is_dir() else []
        if found:
            prefix = place.relative_to(root).as_posix()
            return [f"{prefix}/{name}" for name in found]
    raise FolderLayoutError(folder, "the class has no pictures", needed)


def _test_pictures(
    root: Path, held: Path, available: Sequence[str], chosen: Sequence[str], needed: str
) -> list[list[str]]:
    present = class_names(held)
    # Class folders win: a script that sorts the pictures into them often leaves the annotations where they were.
    if set(present) & set(available):
        strange = sorted(set(present) - set(available))
        if strange:
            raise FolderLayoutError(held, f"it has the class {strange[0]!r}, which train has not", needed)
        return [_class_pictures(held / one, root, needed) for one in chosen]
    for path in (held / _ANNOTATIONS[0], root / _ANNOTATIONS[1]):
        if path.is_file():
            return _annotated(path, root, held, available, chosen)
    raise FolderLayoutError(
        held, f"it has no folders of the classes in train, nor is there {' or '.join(_ANNOTATIONS)}", needed
    )


def _annotated(
    annotations: Path, root: Path, held: Path, available: Sequence[str], chosen: Sequence[str]
) -> list[list[str]]:
    folder = held / _INNER if (held / _INNER).is_dir() else held
    prefix = folder.relative_to(root).as_posix()
    files = {key: name for name in _pictures(folder) for key in (name, Path(name).stem)}
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


def _annotation_lines(path: Path) -> Iterable[tuple[str, str]]:
    """Yield picture and class of each line; the boxes that follow in both formats are not needed."""
    header = path.suffix == ".csv"
    for number, line in enumerate(read_lines(path, _ANNOTATION_BYTES)[header:], start=1 + header):
        fields = line.replace(",", " ").split()
        if len(fields) < 2:
            raise DamagedFileError(path, f"line {number} does not name a picture and its class")
        yield fields[0], fields[1]


def _listed(root: Path, files: Sequence[Sequence[str]]) -> ImageList:
    names = np.array([os.fsencode(name) for group in files for name in group])
    counts = torch.tensor([len(group) for group in files])
    return ImageList(root, names, torch.arange(len(files)).repeat_interleave(counts))
