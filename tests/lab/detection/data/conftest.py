"""Small folders in VOC's and COCO's format."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.detection.annotating import COCO_TRAIN, save_picture, voc_xml

# name: (width, height), [(class, xmin, ymin, xmax, ymax, difficult)] as VOC writes them
VOC_TRAIN = {
    "one": ((40, 30), [("dog", 1, 1, 40, 30, 0)]),
    "two": ((20, 50), [("cat", 5, 6, 10, 20, 0), ("person", 2, 3, 4, 5, 1)]),
    "three": ((30, 30), [("person", 11, 12, 13, 14, 0)]),
}
VOC_TEST = {"four": ((24, 24), [("cat", 3, 3, 9, 9, 1), ("dog", 1, 2, 3, 4, 0)])}


def _write_voc(root: Path, train=VOC_TRAIN, test=VOC_TEST, *, lists=("trainval", "test"), suffix=".png") -> Path:
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


@pytest.fixture(scope="session")
def write_voc() -> Callable[..., Path]:
    return _write_voc


@pytest.fixture
def voc(tmp_path) -> Path:
    return _write_voc(tmp_path / "voc")


COCO_VAL = {
    "images": [{"id": 1, "file_name": "c.png", "width": 10, "height": 10}],
    "categories": [{"id": 1, "name": "zebra"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2], "iscrowd": 0}],
}


@pytest.fixture
def coco(tmp_path) -> Path:
    root = tmp_path / "coco"
    (root / "annotations").mkdir(parents=True)
    for part, document in (("train2017", COCO_TRAIN), ("val2017", COCO_VAL)):
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(document))
        for image in document["images"]:
            save_picture(root / part / image["file_name"], (image["width"], image["height"]))
    return root
