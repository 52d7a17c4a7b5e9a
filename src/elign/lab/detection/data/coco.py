"""Folders in COCO's format.

T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014. A folder has exactly one
`annotations/instances_trainNAME.json` and one `annotations/instances_valNAME.json` (NAME, such as 2017, may be empty);
the pictures of `instances_PART.json` are in `PART`, else in `images/PART`, else in `images`, under their `file_name`.

A crowd becomes a difficult object: finding it counts neither for nor against a detector. Boxes without area, of which
COCO itself has a few, are left out.
"""

from __future__ import annotations

import json
import reprlib
from collections import defaultdict
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from elign.lab.data.base import GOOD_COPY, DamagedFileError, read_file
from elign.lab.data.folders import FolderLayoutError
from elign.lab.detection.data import DETECTION_DATASETS
from elign.lab.detection.data.annotated import REMEDY, Annotation, FolderSource, Named, checked_box

_MAX_BYTES = 1 << 31  # those of COCO 2017 have 450 MB
_PREFIX = "instances_"
_Side = Annotated[int, Field(ge=1, lt=2**31)]


class _Entry(BaseModel):
    """A part of a file; everything else in it is ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Image(_Entry):
    id: int
    file_name: Annotated[str, Field(min_length=1)]
    width: _Side
    height: _Side


class _Category(_Entry):
    id: int
    name: Annotated[str, Field(min_length=1)]


class _Object(_Entry):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    """x, y, width, height in pixels from 0."""
    iscrowd: Annotated[int, Field(ge=0, le=1, strict=False)] = 0


class _Document(_Entry):
    images: Annotated[list[_Image], FailFast(), Field(min_length=1)]
    categories: Annotated[list[_Category], FailFast()]
    annotations: Annotated[list[_Object], FailFast()]


@DETECTION_DATASETS.register("coco")
class Coco(FolderSource):
    """A folder of the user's in COCO's format."""

    files = (
        "annotations/instances_train*.json, one, with its pictures in train*/ (or images/train*/, or images/)",
        "annotations/instances_val*.json, one, with its pictures in val*/ (or images/val*/, or images/)",
    )

    def read(self, folder: Path) -> tuple[list[Annotation], list[Annotation], tuple[str, ...]]:
        """Read both parts. Categories are told apart by their names; their ids may differ between the parts.

        Raises:
            FolderLayoutError: A file or folder is missing, or it is not clear which to take.
            DamagedFileError: A file is not what it must be; it is named.
        """
        (train, classes), (test, _) = (self._part(folder, part) for part in ("train", "val"))
        return train, test, classes

    def _part(self, folder: Path, part: str) -> tuple[list[Annotation], tuple[str, ...]]:
        needed = "; ".join(self.files)
        found = sorted((folder / "annotations").glob(f"{_PREFIX}{part}*.json"))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            problem = f"of annotations/{_PREFIX}{part}*.json there must be one, not {names}"
            raise FolderLayoutError(folder, problem, needed)
        source = found[0]
        name = source.stem.removeprefix(_PREFIX)
        places = (folder / name, folder / "images" / name, folder / "images")
        pictures = next((place for place in places if place.is_dir()), None)
        if pictures is None:
            raise FolderLayoutError(folder, f"the pictures of {source.name} are missing", needed)
        content = read_file(source, _MAX_BYTES, GOOD_COPY)
        try:
            # Some tools write a byte-order mark, or UTF-16.
            text = content.decode(json.detect_encoding(content))
            return _annotations(source, pictures, _Document.model_validate_json(text))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the file"
            # A broken file can have a list of thousands where a number must be.
            problem = f"{where}: {fault['msg']}, not {reprlib.repr(fault['input'])}"
            raise DamagedFileError(source, problem, REMEDY) from error
        except (OSError, ValueError) as error:
            raise DamagedFileError(source, str(error), REMEDY) from error


def _annotations(source: Path, pictures: Path, document: _Document) -> tuple[list[Annotation], tuple[str, ...]]:
    """Return what is said of each picture, and the categories that are on one, in the order of their ids."""
    names = {category.id: category.name for category in document.categories}
    if len(set(names.values())) != len(document.categories):
        raise ValueError("two categories have the same id or name")
    images = {image.id: image for image in document.images}
    if len(images) != len(document.images):
        raise ValueError("two images have the same id")
    objects: dict[int, list[Named]] = defaultdict(list)
    for number, each in enumerate(document.annotations):
        left, top, width, height = each.bbox
        which = f"the annotation in place {number}, of image {each.image_id},"
        if each.image_id not in images or each.category_id not in names:
            raise ValueError(f"{which} has category {each.category_id}: one of these is not in the file")
        if min(width, height) < 0:
            raise ValueError(f"{which} has a box of negative width or height")
        if min(width, height) == 0:
            continue
        image = images[each.image_id]
        try:
            box = checked_box((left, top, left + width, top + height), (image.width, image.height))
        except ValueError as error:
            raise ValueError(f"{which} is wrong: {error}") from None
        objects[each.image_id].append(Named(names[each.category_id], box, bool(each.iscrowd)))
    annotations = []
    for image in document.images:
        # The file may come from anywhere: it must not make us read what is elsewhere.
        file = Path(image.file_name)
        if file.anchor or ".." in file.parts or not (pictures / file).is_file():
            raise ValueError(f"there is no picture {image.file_name!r} in {pictures}")
        size = (image.width, image.height)
        annotations.append(Annotation(source, pictures / file, size, tuple(objects.get(image.id, ()))))
    seen = {each.name for several in objects.values() for each in several}
    return annotations, tuple(name for _, name in sorted(names.items()) if name in seen)
