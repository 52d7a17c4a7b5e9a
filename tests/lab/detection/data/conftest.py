"""Small folders in VOC's and COCO's format."""

import json
from pathlib import Path

import pytest
from tests.lab.detection.annotating import COCO_TRAIN, save_picture, write_voc


@pytest.fixture
def voc(tmp_path) -> Path:
    return write_voc(tmp_path / "voc")


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
