"""Data sets for object detection: their shape, the registry that opens one by name, and what a task sees.

Each file of this package registers one kind of data set with `DETECTION_DATASETS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torchvision.transforms.v2.functional import horizontal_flip_bounding_boxes
from torchvision.tv_tensors import BoundingBoxFormat

from elign.lab.config.composition import ConfigError, Count, Flag, validate
from elign.lab.config.schema import SourceConfig
from elign.lab.data.base import check_rows
from elign.lab.data.scenario import class_order, random_order
from elign.lab.environment import derive_seed
from elign.lab.registry import Registry

Targets = list[dict[str, Tensor]]
Batches = Iterable[tuple[list[Tensor], Targets]]
"""Images and their targets, some at a time, as `fetch` gives them."""


class DataConfig(SourceConfig):
    """The images of a detector; each class draws `limit` training images of those that show it."""

    image_size: Annotated[int, Field(strict=True, ge=32, lt=2**31)] | None
    """The longest side that a picture may have; for scenes their side. None: unchanged."""
    scenes: tuple[Count, Count] | None
    """How many training and test scenes are made; None for data that are read from files."""
    flips: Flag
    """Whether mirrored pictures may be learned from."""
    difficult: Flag
    """Whether objects that are marked as difficult are learned from."""

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if self.path is None and self.name in DETECTION_DATASETS and DETECTION_DATASETS[self.name].needs_path:
            raise ConfigError(f"data={self.name} needs data.path=FOLDER, in the format of {self.name.upper()}.")
        return self


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects on one image; coordinates are continuous, and the pixel in column j covers j..j+1."""

    boxes: Tensor
    """x1, y1, x2, y2 of each object in pixels: `float32`, (N, 4)."""
    labels: Tensor
    """Its class, from 0 in the order of arrival: `int64`, (N,)."""
    difficult: Tensor
    """Whether it is marked as too hard to count when it is missed: `bool`, (N,)."""

    def __post_init__(self) -> None:
        dtypes = {"boxes": torch.float32, "labels": torch.int64, "difficult": torch.bool}
        for name, tensor in vars(self).items():
            shape = (len(self.labels), 4) if name == "boxes" else (len(self.labels),)
            if tuple(tensor.shape) != shape or tensor.dtype != dtypes[name]:
                raise ValueError(f"{name} must be {dtypes[name]} {shape}, not {tensor.dtype} {tuple(tensor.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, classes: range, *, difficult: bool = True) -> Objects:
        """Keep the objects of consecutive classes, in their order; without difficult ones if you say so."""
        if classes.step != 1:
            raise ValueError(f"classes must be consecutive labels, not {classes}")
        kept = (self.labels >= classes.start) & (self.labels < classes.stop)
        if not difficult:
            kept &= ~self.difficult
        return Objects(boxes=self.boxes[kept], labels=self.labels[kept], difficult=self.difficult[kept])


@dataclass(frozen=True, eq=False)
class DetectionSplit:
    """Images, read or made when asked for, with the objects on them."""

    objects: Sequence[Objects]
    image: Callable[[int], Tensor]
    """Returns the image in a row: `uint8`, (3, H, W)."""
    flips: bool
    """Whether an image may be mirrored for training: not where left and right matter, as in digits and text."""

    def __len__(self) -> int:
        return len(self.objects)

    def rows(self, rows: Sequence[int]) -> DetectionSplit:
        """Keep the images in these rows."""
        return DetectionSplit([self.objects[row] for row in rows], lambda row: self.image(rows[row]), self.flips)


@dataclass(frozen=True, eq=False)
class DetectionData:
    """A data set for object detection; labels are places in `classes`."""

    name: str
    classes: tuple[str, ...]
    train: DetectionSplit
    test: DetectionSplit


class DetectionSource(ABC):
    """A data set that the bench knows by name: subclass it, and register the class with `DETECTION_DATASETS`."""

    images: ClassVar[str] = "pictures"
    """The kind of its images, which decides usual settings (`config/images.yaml`): pictures in files, or scenes."""
    needs_path: ClassVar[bool] = False
    """Whether it is a folder of the user's."""
    places: ClassVar[tuple[str, ...]] = ()
    """Where in the data folder it is looked for; empty if it is not."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def load(self, config: DataConfig, *, seed: int) -> DetectionData:
        """Return all images, with the classes in their natural order; raise `DataError` if that cannot be done."""

    def find(self, root: Path) -> Path | None:
        """Return where in the data folder it is, None if it is not there; nothing is read."""
        return next((root / place for place in self.places if (root / place).is_dir()), None)

    def open(self, config: DataConfig, *, seed: int) -> DetectionData:
        """Return the images that the configuration asks for, with the classes in the order of arrival."""
        data = self.load(config, seed=seed)
        train = data.train
        if config.limit is not None:
            shown = [[data.classes[label] for label in objects.labels.tolist()] for objects in train.objects]
            train = train.rows(drawn_rows(shown, config.limit, seed=seed))
        order = class_order(len(data.classes), seed=config.order)
        rank = torch.tensor(order).argsort()  # of a permutation: its inverse
        train, test = (
            replace(part, objects=[replace(one, labels=rank[one.labels]) for one in part.objects])
            for part in (train, data.test)
        )
        return DetectionData(data.name, tuple(data.classes[label] for label in order), train, test)


DETECTION_DATASETS: Registry[type[DetectionSource]] = Registry("elign.lab.detection.data", "detection data set")
"""The data sets, by name."""


def open_detection_data(
    name: str,
    *,
    path: Path | str | None = None,
    data_dir: Path | str | None = None,
    order: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    flips: bool = True,
    scenes: tuple[int, int] | None = None,
) -> DetectionData:
    """Open a data set for object detection by its name.

    Args:
        name: "digit-scenes", made from a seed; "voc2007"; "voc" or "coco" for a folder of your own in that format.
        path: The data set's own folder. "voc" and "coco" need it; "voc2007" is looked for in the data folder without.
        data_dir: The data folder; default: the variable ELIGN_DATA, else the user's cache folder.
        order: Seed of the order in which classes arrive; None for the natural one: alphabetical, for COCO by ids.
        limit: How many training images each class draws of those that show it; see `drawn_rows`.
        seed: Decides the scenes, and the draw of `limit`.
        image_size: The longest side that a picture may have, or the side of scenes; default 96 for these.
        flips: For folders, whether you may learn from mirrored pictures: not if they show text.
        scenes: How many training and test scenes to make; default 1000 and 400.

    Raises:
        OptionError: There is no such data set.
        ConfigError: A number is outside its range, or the path is missing.
        DataError: It is missing, has another layout or a damaged file, or an option does not fit it.

    Example:
        >>> data = open_detection_data("digit-scenes", scenes=(4, 2), order=1993)
        >>> data.classes[:3], data.train.image(0).shape
        (('4', '2', '7'), torch.Size([3, 96, 96]))
    """
    source = DETECTION_DATASETS[name](name)
    folders = {"path": None if path is None else str(path), "data_dir": None if data_dir is None else str(data_dir)}
    numbers = {"order": order, "limit": limit, "image_size": image_size, "scenes": scenes}
    config = validate(DataConfig, {"name": name, **folders, **numbers, "flips": flips, "difficult": True})
    return source.open(config, seed=seed)


def drawn_rows(shown: Sequence[Collection[str]], limit: int, *, seed: int) -> list[int]:
    """Draw images, given the classes on each, so that `limit` of them, or all that there are, show each class.

    The classes draw in turn, the rarest first, each from a stream of its own; images that were drawn before count. To
    allow no more than `limit` of a class would leave out classes that are never alone on an image.
    """
    showing: dict[str, list[int]] = defaultdict(list)
    for row, names in enumerate(shown):
        for name in set(names):
            showing[name].append(row)
    drawn: set[int] = set()
    for name, rows in sorted(showing.items(), key=lambda item: (len(item[1]), item[0])):
        left = [row for row in rows if row not in drawn]
        missing = max(0, limit - (len(rows) - len(left)))
        order = random_order(len(left), derive_seed(seed, f"training images of {name}"))
        drawn.update(left[place] for place in order[:missing].tolist())
    return sorted(drawn)


def task_rows(split: DetectionSplit, classes: range) -> Tensor:
    """Return the places of the images with at least one object of these classes: `int64`, (M,)."""
    rows = [row for row, objects in enumerate(split.objects) if len(objects.of(classes))]
    return torch.tensor(rows, dtype=torch.int64)


def augmented(image: Tensor, objects: Objects, *, seed: int) -> tuple[Tensor, Objects]:
    """Mirror an image (C, H, W) and its boxes left to right with probability 1/2; equal seeds decide alike."""
    # Numpy takes no negative seeds.
    if np.random.default_rng(seed % 2**64).random() < 0.5:
        return image, objects
    height, width = image.shape[1:]
    boxes = horizontal_flip_bounding_boxes(objects.boxes, BoundingBoxFormat.XYXY, (height, width))
    return image.flip(2), replace(objects, boxes=boxes)


def fetch(
    split: DetectionSplit,
    rows: Tensor,
    classes: range,
    *,
    seed: int | None = None,
    difficult: bool = True,
    device: torch.device | None = None,
) -> tuple[list[Tensor], Targets]:
    """Return images and targets for the detector, to learn some classes from.

    Args:
        split: The images.
        rows: Places of the images, `int64` (M,).
        classes: The labels whose boxes are given; an image may have none of them.
        seed: Of the mirroring, where the split allows it, which depends on the seed and the row alone; None: no
            mirroring.
        difficult: Whether boxes that are marked as difficult are given. Of the published code for VOC 2007, that on
            Detectron2 (ORE, iOD, ELI) learns from them and Faster ILOD does not; COCO's crowds should not be learned.
        device: Where images and targets are put; default: the CPU.

    Returns:
        The images, `float32` in 0..1, (3, H, W), and for each "boxes", `float32` (N, 4), and "labels", `int64` (N,):
        class c is 1 + c, because 0 is the background.
    """
    check_rows(rows, len(split), size=1)
    images, targets = [], []
    for row in rows.tolist():
        image, objects = split.image(row), split.objects[row].of(classes, difficult=difficult)
        if seed is not None and split.flips:
            image, objects = augmented(image, objects, seed=derive_seed(seed % 2**64, f"mirroring of image {row}"))
        images.append((image.float() / 255).to(device))
        targets.append({"boxes": objects.boxes.to(device), "labels": (objects.labels + 1).to(device)})
    return images, targets
