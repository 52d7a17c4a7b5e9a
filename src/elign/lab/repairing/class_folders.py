"""Folders with a folder of pictures for each class, and the names of classes in files of statistics."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from elign import ClassStatistics
from elign.lab.data.folders import class_names, is_text, picture_names
from elign.utils.errors import ElignError
from elign.utils.files import write_bytes_atomic
from elign.utils.fitted import digest, read_safetensors

_NAMES, _ORIGIN = "class_names", "origin"  # in the metadata of a file of statistics
_MOST_BYTES = 1 << 24


class ClassFolderError(ElignError, ValueError):
    """A folder of pictures, or names of classes, that cannot be used; the message says which and what to do."""


@dataclass(frozen=True, eq=False)
class NamedStatistics:
    """Statistics from a file.

    Args:
        values: The statistics.
        names: The classes; ids are places in it.
        origin: What the statistics depend on: the digest of the weights, and how pictures were prepared.
    """

    values: ClassStatistics
    names: tuple[str, ...]
    origin: Mapping[str, str]

    @property
    def held(self) -> list[str]:
        """Names of the classes that there are statistics of."""
        return [self.names[label] for label in self.values.classes.tolist()]

    def reindexed(self, order: Sequence[str]) -> ClassStatistics:
        """Return statistics whose class ids are places in another order of names."""
        known = {name: place for place, name in enumerate(order)}
        strange = next((name for name in self.held if name not in known), None)
        if strange is not None:
            raise ClassFolderError(f"the statistics have a class {strange!r}, which --labels does not name")
        ids = torch.tensor([known[name] for name in self.held])
        rows, state = ids.argsort(), self.values.state_dict()
        moved = {name: t if name in ("latent_dim", "shared") else t[rows] for name, t in state.items()}
        made = ClassStatistics(**self.values.config())
        made.load_state_dict({**moved, "classes": ids[rows]})
        return made


@dataclass(frozen=True, eq=False)
class ClassFolder:
    """The pictures of a folder with a folder for each class.

    Args:
        root: The folder.
        option: The option that named it.
        names: The classes, sorted.
        files: The pictures, relative to `root`.
        places: The class of each, a place in `names`.
        stamps: Size and time of the last change of each.
    """

    root: Path
    option: str
    names: tuple[str, ...]
    files: tuple[str, ...]
    places: Tensor
    stamps: tuple[tuple[int, int], ...] = field(repr=False)

    @classmethod
    def read(cls, root: Path, option: str) -> ClassFolder:
        """List the pictures; classes without one are an error."""
        if not root.is_dir():
            raise ClassFolderError(f"{option} {root}: no such folder")
        names = class_names(root)
        if not names:
            raise ClassFolderError(f"{option} {root} has no class folders: put the pictures into {root}/CLASS/")
        groups = [[f"{name}/{picture}" for picture in picture_names(root / name)] for name in names]
        empty = next((name for name, group in zip(names, groups, strict=True) if not group), None)
        if empty is not None:
            raise ClassFolderError(
                f"{option} {root} has no picture of the class {empty!r}: add some or remove its folder"
            )
        files = tuple(file for group in groups for file in group)
        counts = torch.tensor([len(group) for group in groups])
        found = [(root / file).stat() for file in files]
        stamps = tuple((each.st_size, each.st_mtime_ns) for each in found)
        return cls(root, option, names, files, torch.arange(len(names)).repeat_interleave(counts), stamps)

    @property
    def size(self) -> int:
        """Bytes of all pictures."""
        return sum(size for size, _ in self.stamps)

    def labels(self, order: Sequence[str]) -> Tensor:
        """Return the class of each picture as a place in this order."""
        known = {name: place for place, name in enumerate(order)}
        strange = [name for name in self.names if name not in known]
        if strange:
            raise ClassFolderError(
                f"{self.option} {self.root} has {len(strange)} classes that are known from nowhere else, such as "
                f"{strange[0]!r}: classes are matched by the names of their folders"
            )
        return torch.tensor([known[name] for name in self.names])[self.places]

    def require_several(self, places: Tensor) -> None:
        """Raise if a class has a single picture among those that could be read."""
        counts = torch.bincount(places, minlength=len(self.names)).tolist()
        for name, count in zip(self.names, counts, strict=True):
            if count < 2:
                number = "one readable picture" if count else "no readable picture"
                raise ClassFolderError(
                    f"{self.option} {self.root} has {number} of the class {name!r}: its spread needs at least two"
                )


def read_labels(path: Path) -> tuple[str, ...]:
    """Read a JSON list of class names in the order of the model's outputs."""
    if not path.is_file():  # a pipe or a device has no end
        raise ClassFolderError(f"--labels {path}: no such file")
    with path.open("rb") as handle:
        content = handle.read(_MOST_BYTES + 1)
    try:
        found = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (ValueError, RecursionError) as error:
        raise ClassFolderError(f"--labels {path} is not JSON: {error}") from error
    return _checked(found, f"--labels {path}")


def _checked(names: object, where: str) -> tuple[str, ...]:
    good = isinstance(names, list) and names and all(isinstance(name, str) and is_text(name) for name in names)
    if not good or len(set(names)) < len(names):  # type: ignore[call-overload, arg-type]
        raise ClassFolderError(
            f'{where} must be a list of different class names in the order of outputs: ["cat", "dog"]'
        )
    return tuple(names)  # type: ignore[arg-type]


def save_statistics(statistics: ClassStatistics, names: Sequence[str], origin: Mapping[str, str], path: Path) -> None:
    """Write statistics; the metadata of the file hold the names of all classes, and what the statistics depend on.

    `ClassStatistics.load` reads the file as any other.
    """
    with tempfile.TemporaryDirectory() as folder:
        metadata, tensors = read_safetensors(statistics.save(Path(folder) / "statistics.safetensors"))
    metadata |= {_NAMES: json.dumps(list(names)), _ORIGIN: json.dumps(dict(origin))}
    metadata["digest"] = digest(metadata, tensors)
    write_bytes_atomic(path, safetensors.torch.save(tensors, metadata))


def load_statistics(path: Path, labels: Sequence[str] | None) -> NamedStatistics:
    """Read statistics and the names of classes, whose places are the class ids.

    Files that were written in Python have no names: there, the ids are places in `labels`.
    """
    if not path.is_file():
        raise ClassFolderError(f"--statistics {path}: no such file; 'elign remember' makes one")
    statistics = ClassStatistics.load(path)
    metadata, _ = read_safetensors(path)
    stored = metadata.get(_NAMES)
    if stored is None and labels is None:
        raise ClassFolderError(
            f"{path} holds no names of classes, since it was not made by elign remember: give --labels"
        )
    try:
        listed, origin = json.loads(stored or "null"), json.loads(metadata.get(_ORIGIN, "{}"))
    except (ValueError, RecursionError) as error:
        raise ClassFolderError(f"{path}: its metadata are not JSON ({error})") from error
    names = tuple(labels or ()) if stored is None else _checked(listed, f"{path}: its class names")
    if int(statistics.classes.max()) >= len(names):
        raise ClassFolderError(f"{path} has a class {int(statistics.classes.max())}, but there are {len(names)} names")
    return NamedStatistics(statistics, names, origin if isinstance(origin, dict) else {})
