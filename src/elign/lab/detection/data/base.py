"""The shape of a detection data set, the registry that opens one by name, and the images and boxes a task sees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2.functional import horizontal_flip_bounding_boxes
from torchvision.tv_tensors import BoundingBoxFormat

from elign.lab.data.base import DataError, check_rows
from elign.lab.data.base import data_dir as resolve_data_dir
from elign.lab.data.memory import random_order
from elign.lab.environment import derive_seed
from elign.lab.registry import Registry

Batches = Iterable[tuple[list[Tensor], list[dict[str, Tensor]]]]
"""Images and their targets, some at a time, as `fetch` gives them."""


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects on one image.

    Coordinates are continuous and start at the image's upper left corner: the pixel in column j covers j..j+1, and an
    image of width W ends at W.

    Attributes:
        boxes: x1, y1, x2, y2 of each object in pixels: `float32`, (N, 4).
        labels: Its class, from 0 in the order of arrival: `int64`, (N,).
        difficult: Whether it is marked as too hard to count when it is missed: `bool`, (N,).

    Raises:
        ValueError: The tensors do not fit this description or each other.
    """

    boxes: Tensor
    labels: Tensor
    difficult: Tensor

    def __post_init__(self) -> None:
        count = len(self.labels)
        wanted = {"boxes": ((count, 4), torch.float32), "labels": ((count,), torch.int64)}
        for name, (shape, dtype) in (wanted | {"difficult": ((count,), torch.bool)}).items():
            tensor = getattr(self, name)
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise ValueError(f"{name} must be {dtype} {shape}, not {tensor.dtype} {tuple(tensor.shape)}")

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


class DetectionSplit(Protocol):
    """Images with the objects on them. The annotations are in memory, images are read or made when asked for."""

    @property
    def objects(self) -> Sequence[Objects]:
        """The objects of each image."""
        ...

    @property
    def flips(self) -> bool:
        """Whether an image may be mirrored for training: not where left and right matter, as in digits and text."""
        ...

    def __len__(self) -> int: ...

    def image(self, row: int) -> Tensor:
        """Return the image in this row: `uint8`, (3, H, W)."""
        ...


@dataclass(frozen=True, eq=False)
class DetectionData:
    """A data set for object detection; `classes` are in the order of arrival, and labels are places in it."""

    name: str
    classes: tuple[str, ...]
    train: DetectionSplit
    test: DetectionSplit


@dataclass(frozen=True)
class DetectionRequest:
    """How a data set is opened; see `open_detection_data`."""

    name: str
    path: Path | None
    root: Path
    order: int | None
    limit: int | None
    seed: int
    image_size: int | None
    classes: tuple[str, ...] | None
    flips: bool
    scenes: tuple[int, int] | None

    def refuse(self, *options: str) -> None:
        """Raise if one of these options is given, because the data set has no use for it."""
        for option in options:
            if getattr(self, option) is not None:
                raise DataError(f"The data set {self.name!r} does not take the option {option}.")


DETECTION_DATASETS: Registry[Callable[[DetectionRequest], DetectionData]] = Registry(
    "elign.lab.detection.data", "detection data set"
)
"""What opens each data set, by name."""


def open_detection_data(
    name: str,
    *,
    path: Path | str | None = None,
    data_dir: Path | str | None = None,
    order: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    classes: Sequence[str] | None = None,
    flips: bool = True,
    scenes: tuple[int, int] | None = None,
) -> DetectionData:
    """Open a data set for object detection by its name.

    Args:
        name: "digit-scenes", made from a seed; "voc2007"; "voc" or "coco" for a folder of your own in that format.
        path: The data set's own folder. "voc" and "coco" need it; "voc2007" is looked for in the data folder without.
        data_dir: The data folder; default: the variable ELIGN_DATA, else the user's cache folder.
        order: Seed of the order in which classes arrive; None for the natural one: alphabetical, for COCO by ids.
        limit: For quick trials: each class draws this many training images of those that show it, and what no class
            drew is left out. A class may have more, on images that were drawn for another. Test images are all kept.
        seed: Decides the scenes, and the draw of `limit`.
        image_size: For folders, the most that the longer side of a picture may have; larger ones are scaled down with
            their boxes. For digit scenes, their height and width; default 96.
        classes: For "voc" and "coco", the names of all classes in their natural order; default: those that are found
            on the training images.
        flips: For folders, whether you may learn from mirrored pictures: not if they show text.
        scenes: How many training and test scenes to make; default 1000 and 400.

    Raises:
        OptionError: There is no such data set.
        DataError: An option does not fit it, it is missing (`DatasetNotFoundError`) or has another layout
            (`FolderLayoutError`), or one of its files is damaged (`DamagedFileError`).

    Example:
        >>> data = open_detection_data("digit-scenes", scenes=(4, 2), order=1993)
        >>> data.classes[:3], data.train.image(0).shape
        (('4', '2', '7'), torch.Size([3, 96, 96]))
    """
    opener = DETECTION_DATASETS[name]
    for option, value in {"limit": limit, "image_size": image_size}.items():
        if value is not None and value < 1:
            raise DataError(f"{option} must be at least 1, not {value}.")
    own = None if path is None else Path(path).expanduser()
    root, named = resolve_data_dir(data_dir), None if classes is None else tuple(classes)
    return opener(DetectionRequest(name, own, root, order, limit, seed, image_size, named, flips, scenes))


def drawn_rows(shown: Sequence[Collection[str]], limit: int, *, seed: int) -> Tensor:
    """Draw images so that each class is shown by at least `limit` of them, or by all that show it.

    The classes draw in turn, the rarest first; images that were drawn before count. To allow no more than `limit` of a
    class would leave out classes that are never alone on an image. The order of arrival does not matter.

    Args:
        shown: The names of the classes on each image.
        limit: How many images a class draws at most.
        seed: Decides the draw; each class has its own stream.
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
    return torch.tensor(sorted(drawn), dtype=torch.int64)


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
    return image.flip(2), Objects(boxes=boxes, labels=objects.labels, difficult=objects.difficult)


def fetch(
    split: DetectionSplit, rows: Tensor, classes: range, *, seed: int | None = None, difficult: bool = True
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return images and targets for the detector, to learn some classes from.

    Args:
        split: The images.
        rows: Places of the images, `int64` (M,).
        classes: The labels whose boxes are given; an image may have none of them left.
        seed: Seed of the mirroring, for splits that may be mirrored: what happens to an image depends on the seed and
            its row alone, so a resumed run that gives the same seeds sees the same images. None for no augmentation.
        difficult: Whether boxes that are marked as difficult are given. Of the published code for VOC 2007, that on
            Detectron2 (ORE, iOD, ELI) learns from them and Faster ILOD does not; COCO's crowds should not be learned.

    Returns:
        The images in the order of `rows`, `float32` in 0..1, (3, H, W), and for each "boxes", `float32` (N, 4), and
        "labels", `int64` (N,): class c is 1 + c, because 0 is the background.

    Raises:
        IndexError: A row is not in the split.
        DamagedFileError: A picture cannot be read; it is named.
    """
    check_rows(rows, len(split), size=1)
    images, targets = [], []
    for row in rows.tolist():
        image, objects = split.image(row), split.objects[row].of(classes, difficult=difficult)
        if seed is not None and split.flips:
            image, objects = augmented(image, objects, seed=derive_seed(seed % 2**64, f"mirroring of image {row}"))
        images.append(image.float() / 255)
        targets.append({"boxes": objects.boxes, "labels": objects.labels + 1})
    return images, targets
