"""Pictures in files with boxes: the part that the readers of VOC's and COCO's format share.

Not torchvision's `VOCDetection` and `CocoDetection`: they trust the files (entities in XML, paths, sizes, devices), and
the latter needs an optional package to read JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from elign.lab.data.base import DamagedFileError, DataError, check_file
from elign.lab.data.folders import FolderLayoutError
from elign.lab.data.pictures import read_picture
from elign.lab.data.scenario import class_order
from elign.lab.detection.data.base import DetectionData, DetectionRequest, Objects, drawn_rows

REMEDY = "correct it, or take the image out of the data set"
"""What you can do about one wrong annotation."""

Box = tuple[float, float, float, float]
Named = tuple[str, Box, bool]
"""Class, box (see `checked_box`) and difficult flag of an object."""

_UNKNOWN_REMEDY = "correct it: a class must be on some training picture and, where classes are named, among them"
_SLACK = 1.0
_SHOWN = 8


def read_annotations(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of annotations.

    Raises:
        DamagedFileError: It is a pipe or device, too long, or cannot be read.
    """
    try:
        check_file(path, max_bytes)
        return path.read_bytes()
    except (DamagedFileError, OSError) as error:
        problem = error.problem if isinstance(error, DamagedFileError) else f"it cannot be read ({error.strerror})"
        raise DamagedFileError(path, problem, "replace it by a good copy") from error


@dataclass(frozen=True)
class Annotation:
    """What the file `source` says of a picture: width and height, and box, class and difficult flag of each object."""

    source: Path
    picture: Path
    size: tuple[int, int]
    boxes: tuple[Box, ...]
    names: tuple[str, ...]
    difficult: tuple[bool, ...]

    @classmethod
    def of(cls, source: Path, picture: Path, size: tuple[int, int], objects: Iterable[Named]) -> Self:
        """Make one of objects as a reader finds them."""
        names, boxes, difficult = zip(*found, strict=True) if (found := [*objects]) else ((), (), ())
        return cls(source, picture, size, boxes, names, difficult)


@dataclass(frozen=True, eq=False)
class FileSplit:
    """A `DetectionSplit` of pictures in files; larger ones than `image_size` are scaled down with their boxes."""

    annotations: Sequence[Annotation]
    objects: Sequence[Objects]
    image_size: int | None
    flips: bool

    def __len__(self) -> int:
        return len(self.annotations)

    def image(self, row: int) -> Tensor:
        """Return the picture in this row: `uint8`, (3, H, W).

        Raises:
            DamagedFileError: It cannot be read, or its size is not the annotated one.
        """
        annotation = self.annotations[row]
        picture = read_picture(annotation.picture)
        if picture.size != annotation.size:
            (width, height), annotated = picture.size, "{} x {}".format(*annotation.size)
            problem = f"it has {width} x {height} pixels, but {annotation.source} says {annotated}"
            raise DamagedFileError(annotation.picture, problem, "put the picture there that was annotated")
        wanted = scaled_size(annotation.size, self.image_size)
        if wanted != picture.size:
            picture = picture.resize(wanted, Image.Resampling.BILINEAR)
        image: Tensor = pil_to_tensor(picture)
        return image


def scaled_size(size: tuple[int, int], limit: int | None) -> tuple[int, int]:
    """Return width and height of a picture whose longer side may have at most `limit` pixels, in whole pixels."""
    longest = max(size)
    if limit is None or longest <= limit:
        return size
    width, height = (max(1, round(side * limit / longest)) for side in size)
    return width, height


def checked_box(box: Box, size: tuple[int, int]) -> Box:
    """Cut a box at the border of its picture, given width and height.

    What reaches over the border by at most a pixel is cut: coordinates are rounded, and some tools count from 0 where
    the format counts from 1. More than that is a mistake in the annotation.

    Raises:
        ValueError: The box is empty, outside or not finite; the message says which.
    """
    x1, y1, x2, y2 = box
    width, height = size
    shown = f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g}"
    if not all(map(math.isfinite, box)):
        raise ValueError(f"{shown} is not finite")
    if min(x1, y1) < -_SLACK or x2 > width + _SLACK or y2 > height + _SLACK:
        raise ValueError(f"{shown} is not inside of the picture of {width} x {height} pixels")
    cut = max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))
    if cut[0] >= cut[2] or cut[1] >= cut[3]:
        raise ValueError(f"{shown} is empty")
    return cut


def found_classes(annotations: Sequence[Annotation]) -> tuple[str, ...]:
    """Return the names of all classes that occur, sorted as the literature on VOC does."""
    return tuple(sorted({name for annotation in annotations for name in annotation.names}))


def own_folder(request: DetectionRequest, needed: Sequence[str]) -> Path:
    """Return the user's folder.

    Raises:
        DataError: None is given, or it does not exist.
    """
    if request.path is None:
        raise DataError(f"{request.name!r} needs the path of your folder. Needed there: {'; '.join(needed)}.")
    if not request.path.is_dir():
        raise FolderLayoutError(request.path, "there is no such folder", "; ".join(needed))
    return request.path


def open_annotated(
    request: DetectionRequest, classes: Sequence[str], train: Sequence[Annotation], test: Sequence[Annotation]
) -> DetectionData:
    """Make a data set of annotations, with its classes (given in their natural order) in the order of arrival.

    Raises:
        DataError: A class is named twice or is on no training picture, or a picture shows a class that is not named.
    """
    check_classes(request.name, classes, train)
    arrived = tuple(classes[label] for label in class_order(len(classes), seed=request.order))
    if request.limit is not None:
        rows = drawn_rows([annotation.names for annotation in train], request.limit, seed=request.seed)
        train = [train[row] for row in rows.tolist()]
    splits = (make_split(part, arrived, image_size=request.image_size, flips=request.flips) for part in (train, test))
    return DetectionData(request.name, arrived, *splits)


def make_split(
    annotations: Sequence[Annotation], classes: Sequence[str], *, image_size: int | None, flips: bool
) -> FileSplit:
    """Put pictures and annotations together; labels are places in `classes`.

    Raises:
        DamagedFileError: A file names a class that is not among `classes`.
    """
    place = {name: label for label, name in enumerate(classes)}
    objects = tuple(_objects(annotation, place, image_size) for annotation in annotations)
    return FileSplit(tuple(annotations), objects, image_size, flips)


def check_classes(name: str, classes: Sequence[str], train: Sequence[Annotation]) -> None:
    """Refuse classes that are none, named twice or not on any training picture.

    Raises:
        DataError: It says which class.
    """
    if not classes:
        raise DataError(f"No object is annotated on the training pictures of {name!r}.")
    twice = [one for one, count in Counter(classes).items() if count > 1]
    if twice:
        raise DataError(f"The class {twice[0]!r} is named twice.")
    missing = sorted(set(classes) - set(found_classes(train)))
    if missing:
        raise DataError(f"No training picture of {name!r} has an object of the class {missing[0]!r}.")


def _objects(annotation: Annotation, place: dict[str, int], image_size: int | None) -> Objects:
    unknown = next((name for name in annotation.names if name not in place), None)
    if unknown is not None:
        names = ", ".join([*place][:_SHOWN]) + (f" and {len(place) - _SHOWN} more" if len(place) > _SHOWN else "")
        problem = f"the object class {unknown!r} is not one of {names}"
        raise DamagedFileError(annotation.source, problem, _UNKNOWN_REMEDY)
    boxes = torch.tensor(annotation.boxes, dtype=torch.float32).reshape(-1, 4)
    wanted = scaled_size(annotation.size, image_size)
    if wanted != annotation.size:
        # By the true ratio of whole pixels, which differs a little between the sides.
        across, down = (new / old for new, old in zip(wanted, annotation.size, strict=True))
        boxes *= torch.tensor((across, down, across, down))
    return Objects(
        boxes=boxes,
        labels=torch.tensor([place[name] for name in annotation.names], dtype=torch.int64),
        difficult=torch.tensor(annotation.difficult, dtype=torch.bool),
    )
