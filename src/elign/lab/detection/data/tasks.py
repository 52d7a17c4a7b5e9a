"""What a task sees of a data set, and how training gets it. Anything in `elign.lab.detection` may import it.

In incremental detection an image belongs to every task that has a class on it; only the boxes of that task's classes
are given, so an object of another task is background to it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from elign.lab.data.memory_split import check_rows
from elign.lab.detection.data.split import DetectionSplit, Objects
from elign.lab.seeds import derive_seed

Batches = Iterable[tuple[list[Tensor], list[dict[str, Tensor]]]]
"""Images and their targets, some at a time, as `fetch` gives them."""


def task_rows(split: DetectionSplit, classes: range, *, difficult: bool = True) -> Tensor:
    """The images with at least one object of some classes.

    Args:
        split: The images.
        classes: The labels of the task.
        difficult: Whether objects that are marked as difficult count.

    Returns:
        Their places in the split, in its order; `int64`, (M,).
    """
    rows = [row for row, objects in enumerate(split.objects) if len(objects.of(classes, difficult=difficult))]
    return torch.tensor(rows, dtype=torch.int64)


def target_of(objects: Objects) -> dict[str, Tensor]:
    """The objects of an image as the detector wants them: class c is 1 + c, because 0 is the background."""
    return {"boxes": objects.boxes, "labels": objects.labels + 1}


def augmented(image: Tensor, objects: Objects, *, seed: int) -> tuple[Tensor, Objects]:
    """An image mirrored left to right with probability 1/2, its boxes with it.

    Args:
        image: The image, (C, H, W).
        objects: What is on it.
        seed: Decides; equal seeds decide alike.

    Returns:
        The image and its objects, the same as given or both mirrored; a box x1..x2 becomes W - x2..W - x1.
    """
    # Numpy takes no negative seeds; folder_split.py takes them as 64 bits like this as well.
    if np.random.default_rng(seed % 2**64).random() < 0.5:
        return image, objects
    x1, y1, x2, y2 = objects.boxes.unbind(1)
    width = image.shape[2]
    boxes = torch.stack((width - x2, y1, width - x1, y2), dim=1)
    return image.flip(2), Objects(boxes=boxes, labels=objects.labels, difficult=objects.difficult)


def fetch(
    split: DetectionSplit, rows: Tensor, classes: range, *, seed: int | None = None, difficult: bool = True
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Images and targets for the detector, to learn some classes from.

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
        "labels", `int64` (N,), from 1.

    Raises:
        ValueError: `rows` are no row numbers.
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
        targets.append(target_of(objects))
    return images, targets
