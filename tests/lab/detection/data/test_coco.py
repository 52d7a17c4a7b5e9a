import json

import pytest

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.image_folders import FolderLayoutError
from elign.lab.detection.data.coco import read_coco


def change(coco, edit, part="train2017"):
    path = coco / "annotations" / f"instances_{part}.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return path


def test_images_come_in_their_order_with_their_objects(coco):
    train, test = read_coco(coco)
    first, second = train.annotations
    assert first.picture == coco / "train2017" / "a.png"
    assert first.size == (40, 30)
    # The crowd is difficult; the box without width is left out.
    assert first.names == ("zebra", "ant")
    assert first.boxes == ((0, 0, 40, 30), (5, 5, 15, 8))
    assert first.difficult == (True, False)
    assert second.names == ("ant",)
    assert second.boxes == ((1, 2, 4.5, 6),)
    assert test.annotations[0].names == ("zebra",)


def test_categories_on_pictures_come_in_the_order_of_their_ids(coco):
    train, test = read_coco(coco)
    assert train.categories == ("zebra", "ant")
    assert test.categories == ("zebra",)


@pytest.mark.parametrize("place", ["images/train2017", "images"])
def test_pictures_may_lie_in_images(coco, place):
    (coco / "images").mkdir()
    if place == "images":
        for path in (coco / "train2017").iterdir():
            path.rename(coco / "images" / path.name)
        (coco / "train2017").rmdir()
    else:
        (coco / "train2017").rename(coco / place)
    train, _ = read_coco(coco)
    assert train.annotations[0].picture == coco / place / "a.png"


def test_an_image_may_have_no_object(coco):
    change(coco, lambda document: document.update(annotations=[]))
    train, _ = read_coco(coco)
    assert train.categories == ()
    assert [annotation.boxes for annotation in train.annotations] == [(), ()]


def test_it_must_be_clear_which_file_to_take(coco):
    path = coco / "annotations/instances_train2017.json"
    (coco / "annotations/instances_train2014.json").write_bytes(path.read_bytes())
    with pytest.raises(FolderLayoutError, match=r"instances_train2014.json, instances_train2017.json"):
        read_coco(coco)
    (coco / "annotations/instances_train2014.json").unlink()
    path.unlink()
    with pytest.raises(FolderLayoutError, match="there must be one, not none"):
        read_coco(coco)


def test_missing_pictures_are_named(coco):
    (coco / "val2017/c.png").unlink()
    with pytest.raises(DamagedFileError, match=r"instances_val2017.json .*there is no picture 'c.png'"):
        read_coco(coco)
    (coco / "val2017").rmdir()
    with pytest.raises(FolderLayoutError, match=r"pictures of instances_val2017.json are missing"):
        read_coco(coco)


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"images": [1]}'])
def test_what_is_no_such_document_is_named(coco, content):
    path = coco / "annotations/instances_train2017.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        read_coco(coco)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("key", "entry", "field", "value", "problem"),
    [
        ("images", 0, "id", "7", "must be a whole number, not '7'"),
        ("images", 0, "id", 3, "two with the same id"),
        ("images", 0, "width", True, "must be a whole number, not True"),
        ("images", 0, "height", 0, "40 x 0 pixels"),
        ("images", 0, "file_name", 5, "no file_name"),
        ("images", 0, "file_name", "../val2017/c.png", "no picture '../val2017/c.png'"),
        ("categories", 0, "name", "", "category 9 has no name"),
        ("categories", 0, "name", "ant", "same id or name"),
        ("categories", 0, "id", 90, "same id or name"),
        ("annotations", 0, "image_id", 4, "of the image 4, which is not in 'images'"),
        ("annotations", 0, "category_id", 4, "category 4, which is not in 'categories'"),
        ("annotations", 0, "bbox", [1, 2, 3], "annotation 1 of image 3 must have a bbox of four numbers"),
        ("annotations", 0, "bbox", [1, 2, 3, "4"], "bbox of four numbers"),
        ("annotations", 0, "bbox", [1, 2, -3, 4], "negative"),
        ("annotations", 0, "bbox", [1, 2, 30, 4], "annotation 1 of image 3: the box .* is not inside"),
        ("annotations", 0, "bbox", [float("nan"), 2, 3, 4], "not finite"),
        ("annotations", 0, "bbox", [10**400, 2, 3, 4], "too large"),
        ("annotations", 0, "iscrowd", 2, "iscrowd 2"),
        ("annotations", 0, "iscrowd", [], "iscrowd"),
    ],
)
def test_a_wrong_entry_is_named(coco, key, entry, field, value, problem):
    path = change(coco, lambda document: document[key][entry].update({field: value}))
    with pytest.raises(DamagedFileError, match=problem) as caught:
        read_coco(coco)
    assert caught.value.path == path


def test_absolute_paths_are_refused(coco):
    absolute = str((coco / "val2017/c.png").resolve())
    change(coco, lambda document: document["images"][0].update(file_name=absolute))
    with pytest.raises(DamagedFileError, match="no picture"):
        read_coco(coco)
