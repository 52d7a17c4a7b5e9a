"""Pictures in files with annotated boxes, whatever the format.

A reader of a format makes `Annotation`s; here they become splits: boxes are checked and scaled, class names become
labels. Annotations are read at once and pictures only when they are asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from elign.lab.data.errors import DamagedFileError, DataError
from elign.lab.data.pictures import read_picture
from elign.lab.detection.data.split import Objects

REMEDY = "correct it, or take the image out of the data set"
"""What can be done about one wrong annotation."""

Box = tuple[float, float, float, float]

_UNKNOWN_REMEDY = "correct it: a class must be on some training picture and, where classes are named, among them"
_SLACK = 1.0
_SHOWN = 8


@dataclass(frozen=True)
class Annotation:
    """What a data set's files say of one picture.

    Attributes:
        source: The file that says it.
        picture: The picture's file.
        size: Width and height.
        boxes: x1, y1, x2, y2 of each object, see `checked_box`.
        names: The class of each.
        difficult: Whether it is marked as difficult.
    """

    source: Path
    picture: Path
    size: tuple[int, int]
    boxes: tuple[Box, ...]
    names: tuple[str, ...]
    difficult: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class FileSplit:
    """A `DetectionSplit` of pictures in files.

    Attributes:
        annotations: What the files say of each picture.
        objects: The objects on each picture as it is handed out.
        image_size: The most that the longer side may have; a larger picture is scaled down. None for no limit.
        flips: Whether pictures may be mirrored for training.
    """

    annotations: Sequence[Annotation]
    objects: Sequence[Objects]
    image_size: int | None
    flips: bool

    def __len__(self) -> int:
        return len(self.annotations)

    def image(self, row: int) -> Tensor:
        """The picture in this row: `uint8`, (3, H, W).

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
    """Width and height of a picture whose longer side may have at most `limit` pixels, to whole pixels."""
    longest = max(size)
    if limit is None or longest <= limit:
        return size
    width, height = (max(1, round(side * limit / longest)) for side in size)
    return width, height


def checked_box(box: Box, size: tuple[int, int]) -> Box:
    """A box cut at the border of its picture.

    What reaches over the border by at most a pixel is cut: coordinates are rounded, and some tools count from 0 where
    the format counts from 1. More than that is a mistake in the annotation.

    Args:
        box: x1, y1, x2, y2.
        size: Width and height of the picture.

    Raises:
        ValueError: The box is empty, lies outside or is no box; the message says which.
    """
    x1, y1, x2, y2 = box
    width, height = size
    words = f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g}"
    if not all(map(math.isfinite, box)):
        raise ValueError(f"{words} is not finite")
    if min(x1, y1) < -_SLACK or x2 > width + _SLACK or y2 > height + _SLACK:
        raise ValueError(f"{words} is not inside of the picture of {width} x {height} pixels")
    cut = max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))
    if cut[0] >= cut[2] or cut[1] >= cut[3]:
        raise ValueError(f"{words} is empty")
    return cut


def found_classes(annotations: Sequence[Annotation]) -> tuple[str, ...]:
    """The names of all classes that occur, sorted as the literature on VOC does."""
    return tuple(sorted({name for annotation in annotations for name in annotation.names}))


def make_split(
    annotations: Sequence[Annotation], classes: Sequence[str], *, image_size: int | None, flips: bool
) -> FileSplit:
    """Put pictures with their annotations together.

    Args:
        annotations: What the files say of each picture.
        classes: The names of the classes in the order of arrival.
        image_size: The most that the longer side of a picture may have.
        flips: Whether pictures may be mirrored for training.

    Raises:
        DamagedFileError: A file names a class that is not among `classes`.
    """
    place = {name: label for label, name in enumerate(classes)}
    objects = [_objects(annotation, place, image_size) for annotation in annotations]
    return FileSplit(annotations=tuple(annotations), objects=tuple(objects), image_size=image_size, flips=flips)


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
        problem = f"the object class {unknown!r} is not one of {_listed(list(place))}"
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


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
