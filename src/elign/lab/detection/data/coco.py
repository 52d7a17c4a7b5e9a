"""Folders in COCO's format.

T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014. A folder has exactly one
`annotations/instances_trainNAME.json` and one `annotations/instances_valNAME.json` (NAME, such as 2017, may be empty);
the pictures of `instances_PART.json` are in `PART`, else in `images/PART`, else in `images`, under their `file_name`.

Each file has `images` (id, file_name, width, height), `categories` (id, name) and `annotations` (image_id, category_id,
bbox as x, y, width, height in pixels from 0, iscrowd); everything else in it is ignored. A crowd becomes a difficult
object: finding it counts neither for nor against a detector. Boxes without area, of which COCO itself has a few, are
left out.
"""

from __future__ import annotations

import json
import reprlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elign.lab.data.base import DamagedFileError
from elign.lab.data.folders import FolderLayoutError, is_text
from elign.lab.detection.data.annotated import (
    REMEDY,
    Annotation,
    Named,
    checked_box,
    open_annotated,
    own_folder,
    read_annotations,
)
from elign.lab.detection.data.base import DETECTION_DATASETS, DetectionData, DetectionRequest

COCO_FILES = (
    "annotations/instances_train*.json, one, with its pictures in train*/ (or images/train*/, or images/)",
    "annotations/instances_val*.json, one, with its pictures in val*/ (or images/val*/, or images/)",
)
"""The files a folder must hold, in words."""

_MAX_BYTES = 1 << 31  # those of COCO 2017 have 450 MB
_NEEDED = "; ".join(COCO_FILES)
_PREFIX = "instances_"
_Entries = list[dict[str, Any]]
_short = reprlib.repr  # for messages: a broken file can have a list of thousands where a number must be


@dataclass(frozen=True)
class CocoPart:
    """The training or the test part of a folder.

    Attributes:
        annotations: What is said of each picture, in the order of the file.
        categories: The names of the categories that are on a picture, in the order of their ids.
    """

    annotations: Sequence[Annotation]
    categories: tuple[str, ...]


@DETECTION_DATASETS.register("coco")
def open_coco(request: DetectionRequest) -> DetectionData:
    """Open a folder of your own in COCO's format."""
    request.refuse("scenes")
    train, test = read_coco(own_folder(request, COCO_FILES))
    return open_annotated(request, request.classes or train.categories, train.annotations, test.annotations)


def read_coco(root: Path) -> tuple[CocoPart, CocoPart]:
    """Read the training and the test part of a folder.

    Categories are told apart by their names; their ids may differ between the two parts.

    Raises:
        FolderLayoutError: A file or folder is missing, or it is not clear which to take.
        DamagedFileError: A file is not what it must be; it is named.
    """
    train, test = (_read(root, part) for part in ("train", "val"))
    return train, test


def _read(root: Path, part: str) -> CocoPart:
    found = sorted((root / "annotations").glob(f"{_PREFIX}{part}*.json"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise FolderLayoutError(root, f"of annotations/{_PREFIX}{part}*.json there must be one, not {names}", _NEEDED)
    source = found[0]
    name = source.stem.removeprefix(_PREFIX)
    places = (root / name, root / "images" / name, root / "images")
    pictures = next((place for place in places if place.is_dir()), None)
    if pictures is None:
        raise FolderLayoutError(root, f"the pictures of {source.name} are missing", _NEEDED)
    content = read_annotations(source, _MAX_BYTES)
    try:
        return _part(source, pictures, _document(content))
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise DamagedFileError(source, str(error), REMEDY) from error


def _document(content: bytes) -> dict[str, _Entries]:
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    for key in ("images", "annotations", "categories"):
        entries = document.get(key)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"{key!r} must be a list of objects")
    return document


def _part(source: Path, pictures: Path, document: Mapping[str, _Entries]) -> CocoPart:
    names = _categories(document["categories"])
    sizes = {_whole(entry, "id", "image"): _size(entry) for entry in document["images"]}
    if not sizes or len(sizes) != len(document["images"]):
        raise ValueError("it has no images, or two with the same id")
    objects: dict[int, list[Named]] = defaultdict(list)
    for entry in document["annotations"]:
        image = _whole(entry, "image_id", "annotation")
        if image not in sizes:
            raise ValueError(f"an annotation is of the image {image}, which is not in 'images'")
        found = _object(entry, names, sizes[image])
        if found is not None:
            objects[image].append(found)
    annotations = [
        Annotation.of(source, _picture(pictures, entry), sizes[entry["id"]], objects.get(entry["id"], ()))
        for entry in document["images"]
    ]
    seen = {name for several in objects.values() for name, _, _ in several}
    return CocoPart(annotations, tuple(name for _, name in sorted(names.items()) if name in seen))


def _picture(folder: Path, entry: Mapping[str, Any]) -> Path:
    name = entry.get("file_name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"the image {entry['id']} has no file_name")
    # The file may come from anywhere: it must not make us read what is elsewhere.
    if Path(name).anchor or ".." in Path(name).parts or not (folder / name).is_file():
        raise ValueError(f"there is no picture {name!r} in {folder}")
    return folder / name


def _categories(entries: _Entries) -> dict[int, str]:
    names: dict[int, str] = {}
    for entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or not name or not is_text(name):
            raise ValueError(f"the category {_short(entry.get('id'))} has no name")
        names[_whole(entry, "id", "category")] = name
    if len(set(names.values())) != len(entries):
        raise ValueError("two categories have the same id or name")
    return names


def _size(entry: Mapping[str, Any]) -> tuple[int, int]:
    size = _whole(entry, "width", "image"), _whole(entry, "height", "image")
    if min(size) < 1:
        raise ValueError(f"the image {entry['id']} has {size[0]} x {size[1]} pixels")
    return size


def _object(entry: Mapping[str, Any], names: Mapping[int, str], size: tuple[int, int]) -> Named | None:
    which = f"the annotation {_short(entry.get('id'))} of image {entry['image_id']}"
    category = _whole(entry, "category_id", "annotation")
    if category not in names:
        raise ValueError(f"{which} has the category {category}, which is not in 'categories'")
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(type(number) in (int, float) for number in box):
        raise ValueError(f"{which} must have a bbox of four numbers, not {_short(box)}")
    left, top, width, height = map(float, box)
    crowd = entry.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise ValueError(f"{which} has iscrowd {_short(crowd)}, which must be 0 or 1")
    if min(width, height) < 0:
        raise ValueError(f"{which} has a negative width or height: {box!r}")
    if width == 0 or height == 0:
        return None
    try:
        checked = checked_box((left, top, left + width, top + height), size)
    except ValueError as error:
        raise ValueError(f"{which}: {error}") from None
    return names[category], checked, bool(crowd)


def _whole(entry: Mapping[str, Any], key: str, what: str) -> int:
    number = entry.get(key)
    # A truth value is an int for Python, but not an id or a size.
    if type(number) is not int:
        raise ValueError(f"{key} of the {what} {_short(entry.get('id'))} must be a whole number, not {_short(number)}")
    return number
