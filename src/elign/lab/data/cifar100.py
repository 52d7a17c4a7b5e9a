"""CIFAR-100: found on disk in its binary or its Python form, else fetched.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from elign.lab.data.archives import read_members
from elign.lab.data.cifar_files import BINARY, PYTHON, CifarSpec, Layout, read_names, read_split
from elign.lab.data.dataset import ImageData
from elign.lab.data.errors import DamagedFileError, DataError, DatasetNotFoundError
from elign.lab.data.fetch import data_dir as resolve_data_dir
from elign.lab.data.fetch import download
from elign.utils.files import write_bytes_atomic

_NAMES_BYTES = 1 << 16
_log = logging.getLogger(__name__)


CIFAR100 = CifarSpec(
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    archive_bytes=168513733,
)


class CifarNotFoundError(DatasetNotFoundError):
    """CIFAR-100 is neither on disk, in any of its forms, nor could it be fetched."""

    def advice(self) -> str:
        """What to put where; the list of files follows."""
        return (
            f"Put one of the published archives, {BINARY.archive} or {PYTHON.archive}, into {self.folder}, "
            "or the files themselves:"
        )


def load_cifar100(spec: CifarSpec = CIFAR100, *, data_dir: Path | str | None = None) -> ImageData:
    """Load CIFAR-100 with its 100 fine classes, fetching it first where it is not on disk.

    Files that the user has put there need the right structure only; the checksum is for what is fetched.

    Args:
        spec: What the files must be like.
        data_dir: The data folder; see `elign.lab.data.fetch.data_dir`.

    Returns:
        The dataset, with images (N, 3, H, W) in the order of the files.

    Raises:
        DatasetNotFoundError: It is not on disk and cannot be fetched.
        DamagedFileError: A file is there, but is not what it must be.
    """
    root = resolve_data_dir(data_dir)
    layout = _locate(spec, root)
    folder = root / layout.folder
    train_images, train_labels = read_split(layout, folder / layout.train, spec.train, spec)
    test_images, test_labels = read_split(layout, folder / layout.test, spec.test, spec)
    names = folder / layout.names
    if names.is_file():
        classes = read_names(layout, names, spec.classes)
    else:
        classes = tuple(f"class {number}" for number in range(spec.classes))
    return ImageData(
        name="cifar100",
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        classes=classes,
    )


def _locate(spec: CifarSpec, root: Path) -> Layout:
    for layout in (BINARY, PYTHON):
        if not layout.missing(root):
            return layout
    tries = [f"files in {root}: no form of the dataset is complete"]
    try:
        for layout in (BINARY, PYTHON):
            if (root / layout.archive).is_file():
                _unpack(spec, layout, root)
                return layout
        _fetch(spec, root)
    except DamagedFileError:
        raise
    except (DataError, OSError) as error:
        tries.append(str(error))
        raise CifarNotFoundError("cifar100", root, BINARY.missing(root), tries) from error
    return BINARY


def _fetch(spec: CifarSpec, root: Path) -> None:
    # The archive goes once all of it is unpacked, so a folder with half of the files and no archive is the user's.
    if len(BINARY.missing(root)) == 1:
        raise DataError(f"nothing was fetched: {root / BINARY.folder} has one of two files, and is not filled up")
    (root / BINARY.folder).mkdir(parents=True, exist_ok=True)
    if not os.access(root, os.W_OK):
        raise DataError(f"nothing was fetched: {root} cannot be written to")
    _log.info("fetching cifar100")
    archive = root / BINARY.archive
    download(spec.urls, archive, spec.sha256, max_bytes=spec.archive_bytes)
    _unpack(spec, BINARY, root)
    archive.unlink()


def _unpack(spec: CifarSpec, layout: Layout, root: Path) -> None:
    archive = root / layout.archive
    names = f"{layout.folder}/{layout.names}"
    needed = {f"{layout.folder}/{layout.train}": spec.train, f"{layout.folder}/{layout.test}": spec.test}
    # A pickle has more bytes for each image than a binary file: its labels as objects, its file name.
    limits = {name: 2 * spec.binary_bytes(rows) + _NAMES_BYTES for name, rows in needed.items()}
    found = read_members(archive, limits | {names: _NAMES_BYTES})
    for name, rows in needed.items():
        if name not in found:
            raise DamagedFileError(archive, f"it lacks {name}")
        if layout == BINARY and len(found[name]) != spec.binary_bytes(rows):
            raise DamagedFileError(archive, f"its {name} has {len(found[name])} bytes, not {spec.binary_bytes(rows)}")
    # The names first: once the needed files are there, nobody looks into the archive again.
    for name in sorted(found, key=names.__ne__):
        path, content = root / name, found[name]
        if not path.exists():
            write_bytes_atomic(path, content)
        elif path.read_bytes() != content:
            # Neither may the user's file be overwritten, nor may two variants be mixed.
            raise DamagedFileError(path, f"it is not the one in {archive.name}", "remove one of the two")
