"""Annotations in COCO's format, damaged or hostile: boxes inside of their pictures, or the named error."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.data.errors import DamagedFileError
from elign.lab.detection.data.coco import read_coco
from elign.lab.detection.data.files import make_split

DOCUMENT = {
    "images": [{"id": 1, "file_name": "a.png", "width": 9, "height": 8}],
    "categories": [{"id": 3, "name": "dog"}],
    "annotations": [{"id": 7, "image_id": 1, "category_id": 3, "bbox": [1, 2.5, 3, 4], "iscrowd": 0}],
}
WHOLE = json.dumps(DOCUMENT).encode()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=4), some, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def folder(tmp_path):
    for name in ("annotations", "train", "val", "elsewhere"):
        (tmp_path / name).mkdir()
    for name in ("train/a.png", "val/a.png", "elsewhere/a.png"):
        (tmp_path / name).touch()
    (tmp_path / "annotations" / "instances_val.json").write_bytes(WHOLE)
    return tmp_path


def read(folder, content):
    path = folder / "annotations" / "instances_train.json"
    path.write_bytes(content)
    part = answer(lambda: read_coco(folder)[0], names=path)
    if part is None:
        return
    assert all(one.picture.is_relative_to(folder / "train") for one in part.annotations)
    assert all(name.encode() for name in part.categories)
    answer(lambda: make_split(part.annotations, part.categories, image_size=4, flips=True))


@fuzz(150)
@given(content=damaged((WHOLE,), text=True))
def test_damaged_files_give_boxes_or_are_named(folder, content):
    read(folder, content)


@fuzz(150)
@given(data=st.data())
def test_any_value_anywhere_gives_boxes_or_is_named(folder, data):
    document = copy.deepcopy(DOCUMENT)
    group = data.draw(st.sampled_from(list(document)))
    if data.draw(st.booleans()):
        entry = document[group][0]
        entry[data.draw(st.sampled_from(list(entry)))] = data.draw(VALUES)
    else:
        document[group] = data.draw(VALUES)
    read(folder, json.dumps(document).encode())


def changed(group, **values):
    document = copy.deepcopy(DOCUMENT)
    document[group][0] |= values
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "content",
    [
        changed("images", file_name="../elsewhere/a.png"),
        changed("images", file_name="/etc/hostname"),
        changed("images", file_name="a\0.png"),
        changed("images", file_name="a" * 5000),
        changed("images", width=10**400),
        changed("categories", name="\ud800"),
        changed("annotations", bbox=list(range(100_000))),
        changed("annotations", bbox=[10**400, 0, 1, 1]),
        b"[" * 100_000,
    ],
    ids=["outside", "absolute", "zero byte", "long", "wide", "no text", "long box", "large box", "deep"],
)
def test_hostile_values_are_named_in_a_line(folder, content):
    path = folder / "annotations" / "instances_train.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="instances_train") as caught:
        read_coco(folder)
    assert len(str(caught.value)) < 6000
    assert "\n" not in str(caught.value)
