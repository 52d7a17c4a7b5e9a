"""CIFAR-100: the binary form on disk, or the Python form by torchvision, which also downloads it.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from elign.lab.data.base import (
    DATASETS,
    DamagedFileError,
    ImageData,
    MemorySource,
    check_file,
    download,
    read_file,
    read_lines,
)
from elign.lab.environment import import_torchvision

BINARY, PYTHON = "cifar-100-binary", "cifar-100-python"
_NAMES = "fine_label_names.txt"
_NAMES_BYTES = 1 << 16
_PYTHON_BYTES = 1 << 28


@DATASETS.register("cifar100")
class Cifar100(MemorySource):
    """60,000 coloured 32 x 32 pictures of 100 classes.

    Binary files of the user need the right structure only. Python files are pickles, which can run anything: they are
    opened only if their md5 is the published one.
    """

    class_count = 100
    folders = (BINARY, PYTHON)
    downloads = True
    mean = (0.5071, 0.4866, 0.4409)  # of the published experiments, as the deviations
    std = (0.2009, 0.1984, 0.2023)
    rows: ClassVar[dict[str, int]] = {"train": 50000, "test": 10000}
    side: ClassVar[int] = 32

    def find(self, root: Path) -> Path | None:
        """Return the binary folder if it has both files, else the Python folder or archive."""
        if all((root / BINARY / f"{part}.bin").is_file() for part in self.rows):
            return root / BINARY
        if all((root / PYTHON / name).is_file() for name in (*self.rows, "meta")):
            return root / PYTHON
        archive = root / f"{PYTHON}.tar.gz"
        return archive if archive.is_file() else None

    def load(self, root: Path) -> ImageData:
        """Load all images with their fine labels; raise `DataError` if it cannot be had, or a file is damaged."""
        found = self.find(root)
        if found == root / BINARY:
            train, test = (self._binary(found, part) for part in self.rows)
            return ImageData(self.name, *train, *test, classes=self._names(found / _NAMES))
        if found != root / PYTHON:
            if found is not None:
                check_file(found, _PYTHON_BYTES)
            # From the archive, if that is there.
            wanted = [f"{BINARY}/train.bin and {BINARY}/test.bin, or", f"{PYTHON}.tar.gz"]
            download(self.name, root, root, wanted, lambda datasets: datasets.CIFAR100(root, download=True))
        train, test, classes = _python(root)
        return ImageData(self.name, *train, *test, classes=classes)

    def _binary(self, folder: Path, part: str) -> tuple[Tensor, Tensor]:
        """Each row is the coarse label, the fine label and the red, green and blue planes."""
        path, row = folder / f"{part}.bin", 2 + 3 * self.side**2
        content = read_file(path, self.rows[part] * row)
        if len(content) != self.rows[part] * row:
            raise DamagedFileError(path, f"it has {len(content)} bytes, not {self.rows[part] * row}")
        table = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, row).copy())
        labels = table[:, 1].long()
        if int(labels.max()) >= self.class_count:
            raise DamagedFileError(path, f"it holds the fine label {int(labels.max())}, above {self.class_count - 1}")
        return table[:, 2:].reshape(-1, 3, self.side, self.side).contiguous(), labels

    def _names(self, path: Path) -> tuple[str, ...]:
        if not path.exists():
            return tuple(f"class {number}" for number in range(self.class_count))
        names = tuple(line.strip() for line in read_lines(path, _NAMES_BYTES) if line.strip())
        if len(names) != self.class_count:
            raise DamagedFileError(path, f"it names {len(names)} classes, not {self.class_count}")
        return names


def _python(root: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[str, ...]]:
    """Return training images and labels, test images and labels, and the names of the classes."""
    datasets = import_torchvision().datasets
    cifar = datasets.CIFAR100
    for name, md5 in (*cifar.train_list, *cifar.test_list, (cifar.meta["filename"], cifar.meta["md5"])):
        path = root / cifar.base_folder / name
        check_file(path, _PYTHON_BYTES)
        if not datasets.utils.check_integrity(path, md5):
            raise DamagedFileError(path, f"its md5 is not {md5}, the published one")
    parts = [cifar(root, train=train) for train in (True, False)]
    train, test = (
        (torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(part.targets)) for part in parts
    )
    return train, test, tuple(parts[0].classes)
