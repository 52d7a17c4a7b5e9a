"""Objects and detections by hand, pictures and annotations in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from elign.lab.detection.average_precision import Detections
from elign.lab.detection.data import Objects


def objects(*entries) -> Objects:
    """Entries are (box, label) or (box, label, difficult)."""
    return Objects(
        boxes=torch.tensor([entry[0] for entry in entries], dtype=torch.float32).reshape(-1, 4),
        labels=torch.tensor([entry[1] for entry in entries], dtype=torch.int64),
        difficult=torch.tensor([len(entry) > 2 and entry[2] for entry in entries], dtype=torch.bool),
    )


def found(*entries) -> Detections:
    """Entries are (box, label, score)."""
    return Detections(
        boxes=torch.tensor([entry[0] for entry in entries], dtype=torch.float32).reshape(-1, 4),
        scores=torch.tensor([entry[2] for entry in entries], dtype=torch.float32),
        labels=torch.tensor([entry[1] for entry in entries], dtype=torch.int64),
    )


def save_picture(path: Path, size: tuple[int, int]) -> None:
    """A picture of which every pixel differs from its neighbours, so that mirroring and scaling show."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def voc_xml(size: tuple[int, int], objects: Sequence[tuple]) -> str:
    parts = [
        f"<object><name>{name}</name><difficult>{difficult}</difficult>"
        f"<bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox>"
        # Parts have names and boxes of their own, which are no objects.
        f"<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
        "</object>"
        for name, x1, y1, x2, y2, difficult in objects
    ]
    width, height = size
    return f"<annotation><size><width>{width}</width><height>{height}</height></size>{''.join(parts)}</annotation>"


COCO_TRAIN = {
    "images": [
        {"id": 7, "file_name": "a.png", "width": 40, "height": 30},
        {"id": 3, "file_name": "b.png", "width": 20, "height": 20},
    ],
    "categories": [{"id": 9, "name": "zebra"}, {"id": 90, "name": "ant"}, {"id": 5, "name": "unused"}],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 90, "bbox": [1, 2, 3.5, 4], "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 9, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        {"id": 3, "image_id": 7, "category_id": 90, "bbox": [5, 5, 0, 3]},
        {"id": 4, "image_id": 7, "category_id": 90, "bbox": [5, 5, 10, 3]},
    ],
}


def plain_overlap(first, second):
    """Intersection over union of two boxes; 0 for boxes without area."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    intersection = max(width, 0.0) * max(height, 0.0)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)) - intersection
    return intersection / union if union else 0.0


# name: (width, height), [(class, xmin, ymin, xmax, ymax, difficult)] as VOC writes them
VOC_TRAIN = {
    "one": ((40, 30), [("dog", 1, 1, 40, 30, 0)]),
    "two": ((20, 50), [("cat", 5, 6, 10, 20, 0), ("person", 2, 3, 4, 5, 1)]),
    "three": ((30, 30), [("person", 11, 12, 13, 14, 0)]),
}
VOC_TEST = {"four": ((24, 24), [("cat", 3, 3, 9, 9, 1), ("dog", 1, 2, 3, 4, 0)])}


def write_voc(root: Path, train=VOC_TRAIN, test=VOC_TEST, *, lists=("trainval", "test"), suffix=".png") -> Path:
    for part, images in zip(lists, (train, test), strict=True):
        for name, (size, objects) in images.items():
            save_picture(root / "JPEGImages" / f"{name}{suffix}", size)
            annotation = root / "Annotations" / f"{name}.xml"
            annotation.parent.mkdir(parents=True, exist_ok=True)
            annotation.write_text(voc_xml(size, objects))
        path = root / "ImageSets" / "Main" / f"{part}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name}\n" for name in images))
    return root
