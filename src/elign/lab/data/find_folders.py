"""Where the datasets that are folders of pictures lie, and which classes they have.

ImageNet: O. Russakovsky et al., IJCV 2015. ImageNet-100: its subset of the class-incremental literature. Tiny-ImageNet:
200 classes at 64 x 64 pixels, Stanford CS231n.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elign.lab.data.errors import DataError, DatasetNotFoundError
from elign.lab.data.fetch import data_dir as resolve_data_dir
from elign.lab.data.image_folders import FolderLayoutError, ImageFolders, class_names, read_folders, split_folder
from elign.lab.data.order import imagenet100_classes

_ALL = 1000
_OWN = "train/CLASS/*.jpg with test/CLASS/*.jpg (or val), or just CLASS/*.jpg"
_OWN_FOLDERS = ("train", "test", "val")


@dataclass(frozen=True)
class FolderSpec:
    """What is known of a dataset beforehand.

    Args:
        classes: How many classes it has.
        folders: Folders, relative to the data folder, where it may lie, in the order of preference.
        files: What they must hold.
    """

    classes: int
    folders: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def needed(self) -> str:
        """The layout in words."""
        return " and ".join(self.files)


_IMAGENET_FILES = (
    "train/WNID/*.JPEG",
    "val/WNID/*.JPEG (or val/*.JPEG with LOC_val_solution.csv beside val)",
)
FOLDER_SPECS = {
    "imagenet100": FolderSpec(100, ("imagenet100", "imagenet"), _IMAGENET_FILES),
    "imagenet1k": FolderSpec(_ALL, ("imagenet",), _IMAGENET_FILES),
    "tiny-imagenet": FolderSpec(
        200, ("tiny-imagenet-200",), ("train/WNID/images/*.JPEG", "val/images/*.JPEG with val/val_annotations.txt")
    ),
}
"""The public datasets that are folders of pictures. They are not fetched: ImageNet is given out on request only."""


class FoldersNotFoundError(DatasetNotFoundError):
    """A dataset of picture folders is not there."""

    def advice(self) -> str:
        """What to put where; the list of files follows."""
        return f"It is not fetched for you. Put its pictures into {self.folder} as:"


def find_folders(name: str, *, path: Path | str | None = None, data_dir: Path | str | None = None) -> ImageFolders:
    """List the pictures of a dataset.

    Args:
        name: One of `FOLDER_SPECS`, or "folder" for a folder of the user's own.
        path: The dataset's own folder; "folder" needs it. For Tiny-ImageNet it may hold some of the classes only.
        data_dir: The data folder, where the others are looked for without `path`.

    Returns:
        The files; the classes are sorted by name.

    Raises:
        DatasetNotFoundError: The dataset is not there.
        FolderLayoutError: It is there, but lies otherwise or has another number of classes.
        DamagedFileError: A list of test pictures in it is broken.
        DataError: There is no such dataset, or "folder" came without a path.
    """
    if name == "folder":
        return _own_folder(path)
    if name not in FOLDER_SPECS:
        raise DataError(f"There is no dataset of folders {name!r}. Known are: {', '.join(FOLDER_SPECS)}, folder.")
    spec = FOLDER_SPECS[name]
    folder = _locate(name, spec, path, data_dir)
    available = class_names(folder / "train") if (folder / "train").is_dir() else ()
    classes = available
    if name == "imagenet100" and len(available) == _ALL:
        classes = imagenet100_classes(available)
    partial = name == "tiny-imagenet" and path is not None
    if available and len(classes) != spec.classes and not partial:
        raise FolderLayoutError(
            folder / "train", f"it has {len(available)} classes, and {name} has {spec.classes}", spec.needed
        )
    return read_folders(name, folder, needed=spec.needed, classes=classes or None)


def locate_folder(name: str, data_dir: Path | str | None = None) -> Path | None:
    """The first folder where a dataset of `FOLDER_SPECS` may lie that is there, or None."""
    root = resolve_data_dir(data_dir)
    return next((root / folder for folder in FOLDER_SPECS[name].folders if (root / folder).is_dir()), None)


def _locate(name: str, spec: FolderSpec, path: Path | str | None, data_dir: Path | str | None) -> Path:
    if path is not None:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise FolderLayoutError(folder, "there is no such folder", spec.needed)
        return folder
    found = locate_folder(name, data_dir)
    if found is None:
        root = resolve_data_dir(data_dir)
        tries = [f"no folder {root / folder}" for folder in spec.folders]
        raise FoldersNotFoundError(name, root / spec.folders[0], spec.files, tries)
    return found


def _own_folder(path: Path | str | None) -> ImageFolders:
    if path is None:
        raise DataError("'folder' needs the path of your folder of pictures.")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise FolderLayoutError(folder, "there is no such folder", _OWN)
    if any((folder / part).is_dir() for part in _OWN_FOLDERS):
        return read_folders("folder", folder, needed=_OWN, test=_OWN_FOLDERS[1:])
    return split_folder("folder", folder, needed=_OWN)
