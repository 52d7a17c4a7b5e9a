"""A few test images with what was found on them, kept for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from elign.lab.detection.data.split import DetectionSplit, Objects
from elign.lab.detection.evaluation.average_precision import Detections
from elign.lab.detection.evaluation.reading_images import Collected
from elign.lab.tensor_file import read_tensors, write_tensors

PICTURES = "pictures.safetensors"
SHOWN = ("base", "eli/oracle", "eli/by-prediction")
"""The readings that are drawn: before alignment, as in the paper, and without test labels."""
COUNT = 6


@dataclass(frozen=True, eq=False)
class KeptPicture:
    """A test image.

    Args:
        image: `uint8`, (3, H, W).
        objects: What is on it.
        found: What each reading found.
    """

    image: Tensor
    objects: Objects
    found: Mapping[str, Detections]


def keep_pictures(folder: Path, split: DetectionSplit, collected: Mapping[str, Collected], *, known: int) -> None:
    """Write the first few test images that show an old object, with what was found on them.

    Args:
        folder: Of the task.
        split: The test images.
        collected: What each reading found on all of them.
        known: Number of classes before the task.
    """
    rows = [row for row, objects in enumerate(split.objects) if len(objects.of(range(known)))][:COUNT]
    tensors: dict[str, Tensor] = {}
    for place, row in enumerate(rows):
        objects = split.objects[row]
        tensors |= {
            f"{place}.image": split.image(row).contiguous(),
            f"{place}.boxes": objects.boxes,
            f"{place}.labels": objects.labels,
            f"{place}.difficult": objects.difficult,
        }
        for name in SHOWN:
            if name in collected:
                found = collected[name].detections[row]
                for part in ("boxes", "scores", "labels"):
                    tensors[f"{place}.{name}.{part}"] = getattr(found, part).contiguous()
    write_tensors(folder / PICTURES, tensors, {"count": len(rows)})


def read_pictures(folder: Path) -> list[KeptPicture]:
    """What `keep_pictures` wrote.

    Raises:
        FileNotFoundError: Nothing was kept: at the first task, nothing is.
        DamagedRunError: The file cannot be read.
    """
    tensors, facts = read_tensors(folder / PICTURES)
    pictures = []
    for place in range(facts["count"]):
        objects = Objects(*(tensors[f"{place}.{part}"] for part in ("boxes", "labels", "difficult")))
        found = {
            name: Detections(*(tensors[f"{place}.{name}.{part}"] for part in ("boxes", "scores", "labels")))
            for name in SHOWN
            if f"{place}.{name}.boxes" in tensors
        }
        pictures.append(KeptPicture(tensors[f"{place}.image"], objects, found))
    return pictures
