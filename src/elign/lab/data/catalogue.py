"""Which datasets there are and whether they are at hand, without loading one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elign.lab.data.cifar100 import CIFAR100
from elign.lab.data.cifar_files import BINARY, PYTHON
from elign.lab.data.fetch import data_dir as resolve_data_dir
from elign.lab.data.find_folders import FOLDER_SPECS
from elign.lab.data.mnist import FASHION_MNIST, MNIST, IdxSpec

Status = Literal["found", "can be fetched", "missing", "give its path"]
"""Whether a dataset is on disk or comes with the bench; if not, whether it can be had without the user."""


@dataclass(frozen=True)
class Entry:
    """A dataset.

    Args:
        name: Its name.
        classes: How many classes it has; None if only its files tell.
        status: Whether it is at hand.
        places: Where it is looked for; once it is found, where it is. Empty if it needs no place.
    """

    name: str
    classes: int | None
    status: Status
    places: tuple[Path, ...]


def catalogue(data_dir: Path | str | None = None) -> tuple[Entry, ...]:
    """All datasets that `open_dataset` knows, in its order.

    Args:
        data_dir: The data folder; see `elign.lab.data.fetch.data_dir`.

    Returns:
        An entry for each. "found" says that its files are there, not that they are good.
    """
    root = resolve_data_dir(data_dir)
    return (
        Entry("digits", 10, "found", ()),
        _idx(MNIST, root),
        _idx(FASHION_MNIST, root),
        _cifar100(root),
        *(_folders(name, root) for name in FOLDER_SPECS),
        Entry("folder", None, "give its path", ()),
    )


def _idx(spec: IdxSpec, root: Path) -> Entry:
    places = tuple(root / name for name in spec.folders)

    def complete(folder: Path) -> bool:
        return all(any((folder / f"{file.name}{end}").is_file() for end in ("", ".gz")) for file in spec.files)

    return _entry(spec.name, len(spec.classes), places, tuple(filter(complete, places)), "can be fetched")


def _cifar100(root: Path) -> Entry:
    layouts = (BINARY, PYTHON)
    whole = [root / layout.folder for layout in layouts if not layout.missing(root)]
    packed = [root / layout.archive for layout in layouts if (root / layout.archive).is_file()]
    places = tuple(root / layout.folder for layout in layouts)
    return _entry("cifar100", CIFAR100.classes, places, (*whole, *packed), "can be fetched")


def _folders(name: str, root: Path) -> Entry:
    spec = FOLDER_SPECS[name]
    places = tuple(root / folder for folder in spec.folders)
    return _entry(name, spec.classes, places, tuple(place for place in places if place.is_dir()), "missing")


def _entry(name: str, classes: int, places: tuple[Path, ...], found: tuple[Path, ...], otherwise: Status) -> Entry:
    return Entry(name, classes, "found" if found else otherwise, found[:1] or places)
