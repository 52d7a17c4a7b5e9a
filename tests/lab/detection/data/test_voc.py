import tarfile
from pathlib import Path

import pytest
import torch

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.image_folders import FolderLayoutError
from elign.lab.detection.data.open import open_detection_data
from elign.lab.detection.data.voc import VOC2007_CLASSES, find_voc, read_voc

BOMB = (
    '<?xml version="1.0" encoding="{0}"?><!DOCTYPE a [<!ENTITY x "dog">]>'
    "<annotation><object><name>&x;</name></object></annotation>"
)


def test_annotations_are_read_in_the_order_of_the_lists(voc):
    train, test = read_voc(voc)
    assert [annotation.picture.name for annotation in train] == ["one.png", "two.png", "three.png"]
    assert [annotation.picture.name for annotation in test] == ["four.png"]
    assert train[1].source == voc / "Annotations" / "two.xml"
    assert train[1].size == (20, 50)
    assert train[1].names == ("cat", "person")
    assert train[1].difficult == (False, True)


def test_pixels_counted_from_1_become_continuous_coordinates(voc):
    train, _ = read_voc(voc)
    # A box that is all of the picture, and one from the fifth to the tenth column.
    assert train[0].boxes == ((0, 0, 40, 30),)
    assert train[1].boxes[0] == (4, 5, 10, 20)


@pytest.mark.parametrize("inner", [".", "VOC2007", "VOCdevkit/VOC2007"])
def test_the_folder_is_found_where_the_archives_put_it(tmp_path, write_voc, inner):
    root = write_voc(tmp_path / inner)
    assert find_voc(tmp_path) == root
    assert find_voc(tmp_path / "nowhere") is None


@pytest.mark.parametrize("lists", [("train", "test"), ("train", "val"), ("trainval", "test")])
def test_the_lists_that_make_a_pair_are_taken(tmp_path, write_voc, lists):
    root = write_voc(tmp_path, lists=lists)
    # Alone, or as it overlaps with another, it is no list to evaluate with.
    (root / "ImageSets/Main" / ("val.txt" if lists[0] == "trainval" else "trainval.txt")).write_text("one\n")
    if lists == ("train", "test"):
        (root / "ImageSets/Main/trainval.txt").unlink()
    elif lists == ("train", "val"):
        assert not (root / "ImageSets/Main/test.txt").exists()
    train, test = read_voc(root)
    assert (len(train), len(test)) == (3, 1)


@pytest.mark.parametrize("suffix", [".jpg", ".webp", ".PNG"])
def test_pictures_may_be_of_any_kind(tmp_path, write_voc, suffix):
    train, _ = read_voc(write_voc(tmp_path, suffix=suffix))
    assert {annotation.picture.suffix for annotation in train} == {suffix}


@pytest.mark.parametrize("part", ["JPEGImages", "Annotations"])
def test_a_missing_folder_is_named(voc, part):
    (voc / part).rename(voc / "elsewhere")
    with pytest.raises(FolderLayoutError, match=f"no folder {part}"):
        read_voc(voc)


def test_a_missing_list_is_named(voc):
    (voc / "ImageSets/Main/test.txt").unlink()
    with pytest.raises(FolderLayoutError, match="lists of training and test images are missing"):
        read_voc(voc)


def test_an_image_for_training_and_for_testing_is_refused(voc):
    (voc / "ImageSets/Main/test.txt").write_text("four\ntwo\n")
    with pytest.raises(FolderLayoutError, match="'two' is for training and for testing"):
        read_voc(voc)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"one\ntwo\nsix\n", "'six', and there is no such picture"),
        (b"../Annotations/one\n", "no such picture"),
        (b"one\ntwo\none\n", "'one' twice"),
        (b"\n\n", "names no image"),
        (b"\xff\xfe\n", "cannot be read"),
    ],
)
def test_a_wrong_list_is_named(voc, content, problem):
    path = voc / "ImageSets/Main/trainval.txt"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=problem) as caught:
        read_voc(voc)
    assert caught.value.path == path


def test_a_missing_annotation_is_named(voc):
    (voc / "Annotations/two.xml").unlink()
    with pytest.raises(DamagedFileError, match=r"'two', and there is no .*two.xml"):
        read_voc(voc)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("</annotation>", "", "no element found"),
        ("<name>cat</name>", "<name> </name>", "no name"),
        ("<bndbox>", "<box>", "mismatched tag"),
        ("annotation>", "notes>", "'notes', not 'annotation'"),
        ("<xmin>5</xmin>", "<xmin>five</xmin>", "xmin must be a number, not 'five'"),
        ("<xmin>5</xmin>", "", "xmin must be a number, not ''"),
        ("<xmin>5</xmin>", "<xmin>11</xmin>", "'cat': the box .* is empty"),
        ("<xmin>5</xmin>", "<xmin>-5</xmin>", "'cat': the box -6, .* is not inside"),
        ("<ymax>20</ymax>", "<ymax>52</ymax>", "20 x 50 pixels"),
        ("<ymax>20</ymax>", "<ymax>inf</ymax>", "not finite"),
        ("<difficult>1<", "<difficult>yes<", "'person' has difficult 'yes'"),
        ("<width>20<", "<width>inf<", "infinity"),
    ],
)
def test_a_wrong_annotation_is_named(voc, old, new, problem):
    path = voc / "Annotations/two.xml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DamagedFileError, match=problem) as caught:
        read_voc(voc)
    assert caught.value.path == path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_documents_that_could_declare_entities_are_refused(voc, encoding):
    (voc / "Annotations/two.xml").write_bytes(BOMB.format(encoding).encode(encoding))
    with pytest.raises(DamagedFileError, match="DOCTYPE"):
        read_voc(voc)


@pytest.mark.parametrize("size", ["", "<size><width>0</width><height>0</height></size>"])
def test_a_size_that_a_tool_left_out_comes_from_the_picture(voc, size):
    path = voc / "Annotations/two.xml"
    text = path.read_text()
    path.write_text(text[: text.index("<size>")] + size + text[text.index("</size>") + len("</size>") :])
    assert read_voc(voc)[0][1].size == (20, 50)


def test_an_image_may_have_no_object_or_no_difficult_flag(voc):
    (voc / "Annotations/two.xml").write_text("<annotation></annotation>")
    path = voc / "Annotations/one.xml"
    path.write_text(path.read_text().replace("<difficult>0</difficult>", ""))
    train, _ = read_voc(voc)
    assert train[1].boxes == train[1].names == ()
    assert train[0].difficult == (False,)


def test_the_classes_of_voc_2007_are_20_in_alphabetical_order():
    assert len(set(VOC2007_CLASSES)) == 20
    assert sorted(VOC2007_CLASSES) == list(VOC2007_CLASSES)


def test_real_objects_on_the_ground(tmp_path, shared_data):
    archive = shared_data / "foda31-224-webp.tar.xz"
    if not archive.is_file():
        pytest.skip("no copy of FOD-A: ELIGN_SHARED_DATA names no folder with foda31-224-webp.tar.xz")
    kept: set[str] = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            # The lists come first; every eighth image is enough.
            path = tmp_path / Path(*Path(member.name).parts[1:])
            content = tar.extractfile(member).read() if member.isfile() else b""
            if path.suffix == ".txt":
                names = content.decode().split()[::8]
                kept.update(names)
                content = "\n".join(names).encode()
            elif path.stem not in kept:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    data = open_detection_data("voc", path=tmp_path)
    assert (len(data.train), len(data.test), len(data.classes)) == (463, 116, 31)
    assert data.classes[0] == "AdjustableClamp"
    assert data.classes[30] == "Wrench"
    boxes = torch.cat([objects.boxes for objects in data.train.objects])
    assert boxes.min() == 0
    assert boxes.max() == 224
    assert data.test.image(100).shape == (3, 224, 224)
