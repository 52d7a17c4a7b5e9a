"""MNIST and Fashion-MNIST: idx files on disk, else torchvision's download.

MNIST: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits", 1998. Fashion-MNIST: H. Xiao,
K. Rasul, R. Vollgraf, arXiv:1708.07747, 2017.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from elign.lab.data.base import DATASETS, DamagedFileError, ImageData, MemorySource, check_file, download

_UNSIGNED_BYTE = 8
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Read an idx file of unsigned bytes, plain or gzip-compressed (told by its content), as `uint8` of this shape.

    Torchvision's reader takes whatever shape a file declares, and no compressed file; this one never reads or inflates
    more than `shape` needs, and raises `DamagedFileError` for anything else.
    """
    header = struct.pack(f">4B{len(shape)}I", 0, 0, _UNSIGNED_BYTE, len(shape), *shape)
    size = len(header) + math.prod(shape)
    check_file(path, 2 * size + 1024)  # gzip makes no file much longer
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            # One byte more: it shows trailing bytes, and makes gzip compare the checksum at its end.
            content = bytearray((gzip.GzipFile(fileobj=raw) if zipped else raw).read(size + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from error
    if content[: len(header)] != header:
        raise DamagedFileError(path, f"it does not start like an idx file of {' x '.join(map(str, shape))} bytes")
    if len(content) != size:
        raise DamagedFileError(path, f"it is {'cut short' if len(content) < size else 'too long'}, not {size} bytes")
    return torch.frombuffer(content, dtype=torch.uint8, offset=len(header)).reshape(shape)


class IdxSource(MemorySource):
    """A data set of four idx files.

    Files of the user need the right structure only, so a variant of the data set is welcome.
    """

    class_count = 10
    images = "mnist"
    crop_padding = 2
    downloads = True
    torchvision_name: ClassVar[str]
    """The class of torchvision that downloads it; its files are in the last of `folders` then."""
    class_names: ClassVar[tuple[str, ...]]
    rows: ClassVar[dict[str, int]] = {"train": 60000, "t10k": 10000}
    """How many images each part has."""
    side: ClassVar[int] = 28

    @property
    def files(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the training images and labels, then of the test ones."""
        shapes: dict[str, tuple[int, ...]] = {}
        for part, count in self.rows.items():
            shapes[f"{part}-images-idx3-ubyte"] = (count, self.side, self.side)
            shapes[f"{part}-labels-idx1-ubyte"] = (count,)
        return shapes

    def find(self, root: Path) -> Path | None:
        """Return the first of its folders that has all four files, each plain or with .gz added."""
        folders = (root / folder for folder in self.folders)
        return next((folder for folder in folders if all(_path(folder, name) for name in self.files)), None)

    def load(self, root: Path) -> ImageData:
        """Load all images; raise `DataError` if it cannot be had, or a file is damaged."""
        folder = self.find(root)
        if folder is None:
            wanted = [f"{name} (or {name}.gz)" for name in self.files]
            name = self.torchvision_name
            download(
                self.name, root, root / self.folders[0], wanted, lambda sets: getattr(sets, name)(root, download=True)
            )
            folder = root / self.folders[-1]
        images, labels, test_images, test_labels = (
            self._read(folder, name, shape) for name, shape in self.files.items()
        )
        return ImageData(self.name, images, labels, test_images, test_labels, self.class_names)

    def _read(self, folder: Path, name: str, shape: tuple[int, ...]) -> Tensor:
        path = _path(folder, name) or folder / name
        values = read_idx(path, shape)
        if len(shape) > 1:
            return values.unsqueeze(1)
        if int(values.max()) >= len(self.class_names):
            raise DamagedFileError(path, f"it holds the label {int(values.max())}, above {len(self.class_names) - 1}")
        return values.long()


def _path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


@DATASETS.register("mnist")
class Mnist(IdxSource):
    """70,000 grey 28 x 28 handwritten digits."""

    folders = ("mnist", "MNIST/raw")
    torchvision_name = "MNIST"
    class_names = tuple("0123456789")
    flip = False


@DATASETS.register("fashion-mnist")
class FashionMnist(IdxSource):
    """70,000 grey 28 x 28 pictures of clothes."""

    folders = ("fashion-mnist", "FashionMNIST/raw")
    torchvision_name = "FashionMNIST"
    class_names = (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    )
