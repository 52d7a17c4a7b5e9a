"""The files of CIFAR-100, in their binary and their Python form, and how they are read.

Files come from anywhere, so nothing is believed before it is checked: whatever the bytes are, the outcome is tensors or
a `DamagedFileError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.image_folders import is_text
from elign.lab.data.pickles import ArrayRecord, read_pickle


@dataclass(frozen=True)
class Layout:
    """One of the forms in which the dataset is published.

    Args:
        folder: The folder, relative to the data folder, that holds the files; the archive is called after it.
        train: The file of the training images.
        test: The file of the test images.
        names: The file of the class names, which may be missing.
    """

    folder: str
    train: str
    test: str
    names: str

    @property
    def archive(self) -> str:
        """The file name of the published archive."""
        return f"{self.folder}.tar.gz"

    def missing(self, root: Path) -> list[str]:
        """The needed files that are not there, relative to the data folder."""
        needed = (f"{self.folder}/{name}" for name in (self.train, self.test))
        return [name for name in needed if not (root / name).is_file()]


BINARY = Layout("cifar-100-binary", "train.bin", "test.bin", "fine_label_names.txt")
PYTHON = Layout("cifar-100-python", "train", "test", "meta")


@dataclass(frozen=True)
class CifarSpec:
    """What is known of the dataset beforehand.

    Args:
        urls: Addresses of the archive of the binary form.
        sha256: Its checksum, in hexadecimal.
        archive_bytes: Its length.
        classes: How many classes there are.
        train: How many training images.
        test: How many test images.
        side: Height and width of an image.
    """

    urls: tuple[str, ...]
    sha256: str
    archive_bytes: int
    classes: int = 100
    train: int = 50000
    test: int = 10000
    side: int = 32

    @property
    def pixels(self) -> int:
        """How many bytes the three planes of an image take."""
        return 3 * self.side**2

    def binary_bytes(self, rows: int) -> int:
        """How long a file of the binary form is: two labels and the planes for each image."""
        return rows * (2 + self.pixels)


def read_split(layout: Layout, path: Path, rows: int, spec: CifarSpec) -> tuple[Tensor, Tensor]:
    """Read the training or the test images with their fine labels.

    Args:
        layout: The form of the file.
        path: The file.
        rows: How many images it must hold.
        spec: What else is known of it.

    Returns:
        `uint8` images, (N, 3, H, W), and `int64` labels, (N,).

    Raises:
        DamagedFileError: The file is not what it must be.
    """
    pixels, labels = (_binary_split if layout == BINARY else _python_split)(path, rows, spec)
    return pixels.reshape(-1, 3, spec.side, spec.side).contiguous(), labels


def read_names(layout: Layout, path: Path, classes: int) -> tuple[str, ...]:
    """Read the names of the fine classes.

    Raises:
        DamagedFileError: The file is not what it must be, or names another number of classes.
    """
    lines = _binary_names(path) if layout == BINARY else _python_names(path)
    names = tuple(line.strip() for line in lines if line.strip())
    if not all(map(is_text, names)):
        raise DamagedFileError(path, "a class has a name that is no text")
    if len(names) != classes:
        raise DamagedFileError(path, f"it names {len(names)} classes, not {classes}")
    return names


def _binary_split(path: Path, rows: int, spec: CifarSpec) -> tuple[Tensor, Tensor]:
    """Each row is the coarse label, the fine label and the red, green and blue planes."""
    found, size = path.stat().st_size, spec.binary_bytes(rows)
    if found != size:
        raise DamagedFileError(path, f"it has {found} bytes, not {size}")
    try:
        table = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).reshape(rows, 2 + spec.pixels)
    except OSError as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from error
    labels = table[:, 1].long()
    if int(labels.max()) >= spec.classes:
        raise DamagedFileError(path, f"it holds the fine label {int(labels.max())}, above {spec.classes - 1}")
    return table[:, 2:], labels


def _python_split(path: Path, rows: int, spec: CifarSpec) -> tuple[Tensor, Tensor]:
    content = read_pickle(path)
    data, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(data, ArrayRecord) or data.shape != (rows, spec.pixels):
        raise DamagedFileError(path, f"its data are not {rows} images of {spec.pixels} bytes")
    if not isinstance(labels, list) or len(labels) != rows or any(type(label) is not int for label in labels):
        raise DamagedFileError(path, f"its fine_labels are not {rows} whole numbers")
    if min(labels) < 0 or max(labels) >= spec.classes:  # before they become a tensor, which takes 64 bits only
        raise DamagedFileError(path, f"it holds fine labels outside 0..{spec.classes - 1}")
    return torch.from_numpy(data.array().copy()), torch.tensor(labels)


def _binary_names(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from error


def _python_names(path: Path) -> list[str]:
    names = read_pickle(path).get("fine_label_names")
    # Nothing but text: a list of lists of lists can be short in the file and gigabytes as text.
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise DamagedFileError(path, "it has no list fine_label_names of texts")
    return [name.decode("latin-1") if isinstance(name, bytes) else name for name in names]
