"""Folders in COCO's format, whole, damaged or hostile: boxes inside of their pictures, or the named error."""

import copy
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz
from tests.lab.detection.annotating import COCO_TRAIN

from elign.lab.data.base import DamagedFileError
from elign.lab.data.folders import FolderLayoutError
from elign.lab.detection.data.annotated import make_split
from elign.lab.detection.data.coco import Coco

COCO = Coco("coco")


def change(coco, edit, part="train2017"):
    path = coco / "annotations" / f"instances_{part}.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return path


def test_images_come_in_their_order_with_their_objects(coco):
    (first, second), test, classes = COCO.read(coco)
    assert (first.picture, first.size) == (coco / "train2017" / "a.png", (40, 30))
    # The crowd is difficult; the box without width is left out.
    assert first.objects == (("zebra", (0, 0, 40, 30), True), ("ant", (5, 5, 15, 8), False))
    assert second.objects == (("ant", (1, 2, 4.5, 6), False),)
    assert [each.name for each in test[0].objects] == ["zebra"]
    assert classes == ("zebra", "ant")  # those on pictures, in the order of their ids


@pytest.mark.parametrize("place", ["images/train2017", "images"])
def test_pictures_may_lie_in_images(coco, place):
    (coco / "images").mkdir()
    if place == "images":
        for path in (coco / "train2017").iterdir():
            path.rename(coco / "images" / path.name)
        (coco / "train2017").rmdir()
    else:
        (coco / "train2017").rename(coco / place)
    assert COCO.read(coco)[0][0].picture == coco / place / "a.png"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_and_utf_16_are_read(coco, encoding):
    expected = COCO.read(coco)
    path = coco / "annotations" / "instances_train2017.json"
    path.write_text(path.read_text(), encoding=encoding)
    assert COCO.read(coco) == expected


def test_an_image_may_have_no_object(coco):
    change(coco, lambda document: document.update(annotations=[]))
    train, _, classes = COCO.read(coco)
    assert classes == ()
    assert [annotation.objects for annotation in train] == [(), ()]


def test_it_must_be_clear_which_file_to_take(coco):
    path = coco / "annotations/instances_train2017.json"
    (coco / "annotations/instances_train2014.json").write_bytes(path.read_bytes())
    with pytest.raises(FolderLayoutError, match=r"instances_train2014.json, instances_train2017.json"):
        COCO.read(coco)
    (coco / "annotations/instances_train2014.json").unlink()
    path.unlink()
    with pytest.raises(FolderLayoutError, match="must be one, not none"):
        COCO.read(coco)


def test_missing_pictures_are_named(coco):
    (coco / "val2017/c.png").unlink()
    with pytest.raises(DamagedFileError, match=r"instances_val2017.json .*there is no picture 'c.png'"):
        COCO.read(coco)
    (coco / "val2017").rmdir()
    with pytest.raises(FolderLayoutError, match=r"pictures of instances_val2017.json are missing"):
        COCO.read(coco)


@pytest.mark.parametrize(
    ("key", "entry", "field", "value", "problem"),
    [
        ("images", 0, "id", "7", "images.0.id: .* not '7'"),
        ("images", 0, "id", 3, "two images have the same id"),
        ("images", 0, "width", True, "images.0.width"),
        ("images", 0, "height", 0, "images.0.height"),
        ("images", 0, "file_name", 5, "images.0.file_name"),
        ("images", 0, "file_name", "../val2017/c.png", "no picture '../val2017/c.png'"),
        ("categories", 0, "name", "", "categories.0.name"),
        ("categories", 0, "name", "ant", "same id or name"),
        ("categories", 0, "id", 90, "same id or name"),
        ("annotations", 0, "image_id", 4, "image 4"),
        ("annotations", 0, "category_id", 4, "category 4"),
        ("annotations", 0, "bbox", [1, 2, 3], "annotations.0.bbox"),
        ("annotations", 0, "bbox", [1, 2, 3, "4"], "annotations.0.bbox.3"),
        ("annotations", 0, "bbox", [1, 2, -3, 4], "negative"),
        ("annotations", 0, "bbox", [1, 2, 30, 4], "place 0, of image 3.*not inside"),
        ("annotations", 0, "bbox", [float("nan"), 2, 3, 4], "annotations.0.bbox.0"),
        ("annotations", 0, "bbox", [10**400, 2, 3, 4], "annotations.0.bbox.0"),
        ("annotations", 0, "iscrowd", 2, "annotations.0.iscrowd"),
        ("annotations", 0, "iscrowd", [], "annotations.0.iscrowd"),
        ("images", 0, "file_name", "/etc/hostname", "no picture '/etc/hostname'"),
        pytest.param("images", 0, "file_name", "a\0.png", "no picture 'a", id="zero byte"),
        pytest.param("images", 0, "file_name", "a" * 5000, "aaa", id="long name"),
        ("images", 0, "width", 10**400, "images.0.width"),
        pytest.param("categories", 0, "name", "\ud800", "Invalid JSON", id="no text"),
        ("annotations", 0, "bbox", [*range(100_000)], "annotations.0.bbox"),
    ],
)
def test_a_wrong_entry_is_named_in_a_line(coco, key, entry, field, value, problem):
    path = change(coco, lambda document: document[key][entry].update({field: value}))
    with pytest.raises(DamagedFileError, match=problem) as caught:
        COCO.read(coco)
    assert caught.value.path == path
    assert len(str(caught.value)) < 6000
    assert "\n" not in str(caught.value)


WHOLE = json.dumps(COCO_TRAIN).encode()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=4), some, max_size=3),
    max_leaves=6,
)


def read(coco, content):
    path = coco / "annotations" / "instances_train2017.json"
    path.write_bytes(content)
    found = answer(lambda: COCO.read(coco), names=path)
    if found is None:
        return
    train, _, classes = found
    assert all(one.picture.is_relative_to(coco / "train2017") for one in train)
    assert all(name.encode() for name in classes)
    answer(lambda: make_split(train, classes, 4, flips=True))


@fuzz(200)
@given(data=st.data())
def test_any_damage_gives_boxes_or_is_named(coco, data):
    if data.draw(st.booleans()):
        read(coco, data.draw(damaged((WHOLE,), text=True)))
        return
    document = copy.deepcopy(COCO_TRAIN)
    group = data.draw(st.sampled_from(list(document)))
    if data.draw(st.booleans()):
        entry = document[group][0]
        entry[data.draw(st.sampled_from(list(entry)))] = data.draw(VALUES)
    else:
        document[group] = data.draw(VALUES)
    read(coco, json.dumps(document).encode())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "deep"])
def test_only_regular_files_of_a_sensible_size_and_depth_are_read(coco, kind):
    path = coco / "annotations" / "instances_train2017.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "deep":
        path.write_bytes(b"[" * 100_000)
    else:
        with path.open("wb") as handle:
            handle.truncate(1 << 40)
    with bounded(seconds=10, megabytes=32), pytest.raises(DamagedFileError, match="instances_train2017"):
        COCO.read(coco)
