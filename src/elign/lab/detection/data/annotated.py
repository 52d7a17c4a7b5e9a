"""Pictures in files with boxes: the part that the readers of VOC's and COCO's format share.

Not torchvision's `VOCDetection` and `CocoDetection`: they trust the files (entities in XML, paths, sizes, devices), and
the latter needs an optional package to read JSON.
"""

from __future__ import annotations

import math
import textwrap
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from elign.lab.data.base import DamagedFileError, DataError, DatasetNotFoundError, data_dir
from elign.lab.data.folders import FolderLayoutError
from elign.lab.data.pictures import read_picture
from elign.lab.detection.data import DataConfig, DetectionData, DetectionSource, DetectionSplit, Objects

REMEDY = "correct it, or take the image out of the data set"
"""What you can do about one wrong annotation."""

Box = tuple[float, float, float, float]
_UNKNOWN_REMEDY = "correct it: a class must be on some training picture and, where classes are named, among them"
_SLACK = 1.0
_SHOWN = 100


class Named(NamedTuple):
    """An object on a picture, with the name of its class."""

    name: str
    box: Box
    difficult: bool


@dataclass(frozen=True)
class Annotation:
    """What the file `source` says of a picture: its width and height, and the objects on it."""

    source: Path
    picture: Path
    size: tuple[int, int]
    objects: tuple[Named, ...]


class FolderSource(DetectionSource):
    """A data set of annotated pictures in a folder; a subclass has `read`."""

    needs_path = True
    files: ClassVar[tuple[str, ...]]
    """The files that the folder must hold, in words."""
    classes: ClassVar[tuple[str, ...]] = ()
    """In their natural order; empty for those that are found."""

    @abstractmethod
    def read(self, folder: Path) -> tuple[list[Annotation], list[Annotation], tuple[str, ...]]:
        """Return the annotations of the training and of the test pictures, and the classes of the former."""

    def load(self, config: DataConfig, *, seed: int) -> DetectionData:
        """Read the user's folder, or the one in the data folder; see `DetectionSource`."""
        if config.scenes is not None:
            raise DataError(f"The data set {self.name!r} does not take the option scenes.")
        train, test, found = self.read(self._folder(config))
        classes = self.classes or found
        if not classes:
            raise DataError(f"No object is annotated on the training pictures of {self.name!r}.")
        for name in classes:
            if name not in found:
                raise DataError(f"No training picture of {self.name!r} has an object of the class {name!r}.")
        splits = (make_split(part, classes, config.image_size, flips=config.flips) for part in (train, test))
        return DetectionData(self.name, classes, *splits)

    def _folder(self, config: DataConfig) -> Path:
        if config.path is not None:
            folder = Path(config.path).expanduser()
            if not folder.is_dir():
                raise FolderLayoutError(folder, "there is no such folder", "; ".join(self.files))
            return folder
        root = data_dir(config.data_dir)
        found = self.find(root)
        if found is None:
            tries = [f"no {root / place}" for place in self.places]
            raise DatasetNotFoundError(self.name, root / self.places[0], self.files, tries)
        return found


def make_split(
    annotations: Sequence[Annotation], classes: Sequence[str], image_size: int | None, *, flips: bool
) -> DetectionSplit:
    """Put pictures and annotations together; pictures larger than `image_size` are scaled down with their boxes."""
    labels = {name: label for label, name in enumerate(classes)}
    objects = [_objects(annotation, labels, image_size) for annotation in annotations]
    return DetectionSplit(objects, partial(_image, annotations, image_size), flips)


def _image(annotations: Sequence[Annotation], image_size: int | None, row: int) -> Tensor:
    annotation = annotations[row]
    picture = read_picture(annotation.picture)
    if picture.size != annotation.size:
        (width, height), annotated = picture.size, "{} x {}".format(*annotation.size)
        problem = f"it has {width} x {height} pixels, but {annotation.source} says {annotated}"
        raise DamagedFileError(annotation.picture, problem, "put the picture there that was annotated")
    wanted = scaled_size(annotation.size, image_size)
    if wanted != picture.size:
        picture = picture.resize(wanted, Image.Resampling.BILINEAR)
    image: Tensor = pil_to_tensor(picture)
    return image


def _objects(annotation: Annotation, labels: dict[str, int], image_size: int | None) -> Objects:
    for name, _, _ in annotation.objects:
        if name not in labels:
            shown = textwrap.shorten(", ".join(labels), _SHOWN, placeholder=" and so on")
            problem = f"the object class {name!r} is not one of {shown}"
            raise DamagedFileError(annotation.source, problem, _UNKNOWN_REMEDY)
    boxes = torch.tensor([each.box for each in annotation.objects], dtype=torch.float32).reshape(-1, 4)
    # By the true ratio of whole pixels, which differs a little between the sides.
    wanted = scaled_size(annotation.size, image_size)
    across, down = (new / old for new, old in zip(wanted, annotation.size, strict=True))
    return Objects(
        boxes=boxes * torch.tensor((across, down, across, down)),
        labels=torch.tensor([labels[each.name] for each in annotation.objects], dtype=torch.int64),
        difficult=torch.tensor([each.difficult for each in annotation.objects], dtype=torch.bool),
    )


def scaled_size(size: tuple[int, int], limit: int | None) -> tuple[int, int]:
    """Return width and height of a picture whose longer side may have at most `limit` pixels, in whole pixels."""
    longest = max(size)
    if limit is None or longest <= limit:
        return size
    width, height = (max(1, round(side * limit / longest)) for side in size)
    return width, height


def checked_box(box: Box, size: tuple[int, int]) -> Box:
    """Cut a box that reaches over the border of its picture by at most a pixel, given width and height.

    Coordinates are rounded, and some tools count from 0 where the format counts from 1.

    Raises:
        ValueError: The box is empty, further outside or not finite.
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
