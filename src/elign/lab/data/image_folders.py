"""Datasets that are folders of pictures: which files they hold and of which class.

Nothing is decoded here; files are listed, and what is missing is said before any training starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elign.lab.data.errors import DamagedFileError, DataError
from elign.lab.seeds import derive_seed

SUFFIXES = frozenset((".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
"""What a picture's file name may end with, in capitals or not; all other files are passed over."""

_TEST_SHARE = 0.2
_INNER = "images"
_ANNOTATIONS = ("val_annotations.txt", "LOC_val_solution.csv")


class FolderLayoutError(DataError):
    """A folder is there, but its pictures do not lie as they must.

    Args:
        path: The folder.
        problem: What is wrong.
        needed: What it must look like.
    """

    def __init__(self, path: Path, problem: str, needed: str) -> None:
        super().__init__(path, problem, needed)
        self.path = path
        self.problem = problem
        self.needed = needed

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
        """The file in this row."""
        return self.root / os.fsdecode(self.names[row])

    def keep(self, rows: Tensor) -> ImageList:
        """The list of these rows only."""
        return ImageList(self.root, self.names[rows.numpy()], self.labels[rows])


@dataclass(frozen=True, eq=False)
class ImageFolders:
    """The picture files of a dataset.

    Args:
        name: The dataset's name.
        classes: The names of the classes.
        train: Training pictures.
        test: Test pictures.
    """

    name: str
    classes: tuple[str, ...]
    train: ImageList
    test: ImageList

    def reordered(self, order: Sequence[int]) -> ImageFolders:
        """The same with the class `order[p]` at place p; see `elign.lab.data.order.reorder`."""
        place = torch.tensor(list(order)).argsort()  # of a permutation: its inverse
        return replace(
            self,
            classes=tuple(self.classes[label] for label in order),
            train=replace(self.train, labels=place[self.train.labels]),
            test=replace(self.test, labels=place[self.test.labels]),
        )


def class_names(folder: Path) -> tuple[str, ...]:
    """The names of the class folders in a folder, sorted; hidden ones are passed over.

    Raises:
        DataError: The name of one is not text.
    """
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for name in names:
        if not is_text(name):
            raise DataError(f"{folder} has a class folder {name!r}, whose name is not UTF-8: rename it")
    return tuple(names)


def is_text(name: str) -> bool:
    """Whether a class's name can be shown and written: a file's name, or one in JSON, need not be text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def read_folders(
    name: str, folder: Path, *, needed: str, classes: Sequence[str] | None = None, test: Sequence[str] = ("val",)
) -> ImageFolders:
    """List a dataset whose training and test pictures lie in folders of their own.

    Test pictures lie in class folders like the training pictures, or all in one folder with a file that says the class
    of each: `val_annotations.txt` in it (Tiny-ImageNet) or `LOC_val_solution.csv` beside it (ImageNet).

    Args:
        name: The dataset's name.
        folder: The folder that holds `train` and the test folder.
        needed: The layout in words, for errors.
        classes: The classes to take; default: all that `train` has.
        test: Names of the test folder; the first that is there counts.

    Returns:
        The files, class after class, each class in the order of its file names.

    Raises:
        FolderLayoutError: A folder is missing, or a class has no pictures.
        DamagedFileError: The file with the classes of the test pictures is not what it must be.
    """
    train = folder / "train"
    if not train.is_dir():
        raise FolderLayoutError(folder, "it has no folder train", needed)
    held_out = next((folder / name for name in test if (folder / name).is_dir()), None)
    if held_out is None:
        raise FolderLayoutError(folder, f"it has no folder {' or '.join(test)}", needed)
    known = class_names(train)
    chosen = known if classes is None else tuple(classes)
    if not chosen:
        raise FolderLayoutError(train, "it has no class folders", needed)
    return ImageFolders(
        name=name,
        classes=chosen,
        train=_listed(folder, [_class_pictures(train / one, folder, needed) for one in chosen]),
        test=_listed(folder, _test_pictures(folder, held_out, known, chosen, needed)),
    )


def split_folder(name: str, folder: Path, *, needed: str) -> ImageFolders:
    """List a dataset of class folders without a test folder: a fifth of each class, always the same, is for testing.

    Args:
        name: The dataset's name.
        folder: The folder that holds the class folders.
        needed: The layout in words, for errors.

    Returns:
        The files, class after class, each class in the order of its file names.

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
        held_out = set(drawn.tolist())
        train.append([file for row, file in enumerate(files) if row not in held_out])
        test.append([file for row, file in enumerate(files) if row in held_out])
    return ImageFolders(name=name, classes=classes, train=_listed(folder, train), test=_listed(folder, test))


def _pictures(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            # What is no plain file, a pipe say, could keep a reader waiting for ever.
            if not entry.name.startswith(".") and Path(entry.name).suffix.lower() in SUFFIXES and entry.is_file()
        )


def _class_pictures(folder: Path, root: Path, needed: str) -> list[str]:
    """The pictures of a class, relative to `root`; Tiny-ImageNet has them in a further folder."""
    for place in (folder, folder / _INNER):
        found = _pictures(place) if place.is_dir() else []
        if found:
            prefix = place.relative_to(root).as_posix()
            return [f"{prefix}/{name}" for name in found]
    raise FolderLayoutError(folder, "the class has no pictures", needed)


def _test_pictures(
    root: Path, held_out: Path, known: Sequence[str], chosen: Sequence[str], needed: str
) -> list[list[str]]:
    present = class_names(held_out)
    # Class folders win: a script that sorts the pictures into them often leaves the annotations where they were.
    if set(present) & set(known):
        strange = sorted(set(present) - set(known))
        if strange:
            raise FolderLayoutError(held_out, f"it has the class {strange[0]!r}, which train has not", needed)
        return [_class_pictures(held_out / one, root, needed) for one in chosen]
    for path in (held_out / _ANNOTATIONS[0], root / _ANNOTATIONS[1]):
        if path.is_file():
            return _annotated(path, root, held_out, known, chosen)
    raise FolderLayoutError(
        held_out, f"it has no folders of the classes in train, nor is there {' or '.join(_ANNOTATIONS)}", needed
    )


def _annotated(
    annotations: Path, root: Path, held_out: Path, known: Sequence[str], chosen: Sequence[str]
) -> list[list[str]]:
    folder = held_out / _INNER if (held_out / _INNER).is_dir() else held_out
    prefix = folder.relative_to(root).as_posix()
    files = {key: name for name in _pictures(folder) for key in (name, Path(name).stem)}
    found: dict[str, list[str]] = {one: [] for one in known}
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
    """Picture and class of each line; boxes follow in both formats, which nobody needs here."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from error
    header = path.suffix == ".csv"
    for number, line in enumerate(lines[header:], start=1 + header):
        words = line.replace(",", " ").split()
        if len(words) < 2:
            raise DamagedFileError(path, f"line {number} does not name a picture and its class")
        yield words[0], words[1]


def _listed(root: Path, files: Sequence[Sequence[str]]) -> ImageList:
    names = np.array([os.fsencode(name) for group in files for name in group])
    counts = torch.tensor([len(group) for group in files])
    return ImageList(root, names, torch.arange(len(files)).repeat_interleave(counts))
