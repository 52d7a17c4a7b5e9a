"""Folders in VOC's format, whole, damaged or hostile: boxes inside of their pictures, or the named error."""

import os
import tarfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz
from tests.lab.detection.annotating import voc_xml, write_voc

from elign import ElignError
from elign.lab.data.base import DamagedFileError
from elign.lab.data.folders import FolderLayoutError
from elign.lab.detection.data import open_detection_data
from elign.lab.detection.data.voc import Voc

VOC = Voc("voc")


def test_annotations_are_read_in_the_order_of_the_lists(voc):
    train, test, classes = VOC.read(voc)
    assert [annotation.picture.name for annotation in train] == ["one.png", "two.png", "three.png"]
    assert [annotation.picture.name for annotation in test] == ["four.png"]
    assert classes == ("cat", "dog", "person")
    assert (train[1].source, train[1].size) == (voc / "Annotations" / "two.xml", (20, 50))
    # Pixels are counted from 1: a box that is all of the picture, and one from the fifth to the tenth column.
    assert train[0].objects == (("dog", (0, 0, 40, 30), False),)
    assert train[1].objects == (("cat", (4, 5, 10, 20), False), ("person", (1, 2, 4, 5), True))


@pytest.mark.parametrize(
    ("lists", "alone"), [(("train", "test"), None), (("train", "val"), "trainval"), (("trainval", "test"), "val")]
)
def test_the_lists_that_make_a_pair_are_taken(tmp_path, lists, alone):
    root = write_voc(tmp_path, lists=lists)
    if alone:  # alone, or as it overlaps with another, it is no list to evaluate with
        (root / f"ImageSets/Main/{alone}.txt").write_text("one\n")
    train, test, _ = VOC.read(root)
    assert (len(train), len(test)) == (3, 1)


@pytest.mark.parametrize("suffix", [".jpg", ".webp", ".PNG"])
def test_pictures_may_be_of_any_kind(tmp_path, suffix):
    train, _, _ = VOC.read(write_voc(tmp_path, suffix=suffix))
    assert {annotation.picture.suffix for annotation in train} == {suffix}


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("JPEGImages", "no folder JPEGImages"),
        ("Annotations", "no folder Annotations"),
        ("ImageSets/Main/test.txt", "lists .* are missing"),
        ("ImageSets", "no ImageSets/Main"),
        (None, "'two' is for training and for testing"),
    ],
)
def test_another_layout_is_named(voc, part, problem):
    if part:
        (voc / part).rename(voc / "elsewhere")
    else:
        (voc / "ImageSets/Main/test.txt").write_text("four\ntwo\n")
    with pytest.raises(FolderLayoutError, match=problem):
        VOC.read(voc)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"one\ntwo\nsix\n", "'six'.* no such picture"),
        (b"../Annotations/one\n", "no such picture"),
        (b"one\ntwo\none\n", "'one' twice"),
        (b"\n\n", "names no image"),
        (b"\xff\xfe\n", "cannot be read"),
        (b"one\ntwo\nthree\n", "'two'.*two.xml"),
    ],
)
def test_a_wrong_list_is_named(voc, content, problem):
    path = voc / "ImageSets/Main/trainval.txt"
    path.write_bytes(content)
    if b"three" in content:
        (voc / "Annotations/two.xml").unlink()
    with pytest.raises(DamagedFileError, match=problem) as caught:
        VOC.read(voc)
    assert caught.value.path == path


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
        VOC.read(voc)
    assert caught.value.path == path


@pytest.mark.parametrize("size", ["", "<size><width>0</width><height>0</height></size>"])
def test_a_size_that_a_tool_left_out_comes_from_the_picture(voc, size):
    path = voc / "Annotations/two.xml"
    text = path.read_text()
    path.write_text(text[: text.index("<size>")] + size + text[text.index("</size>") + len("</size>") :])
    assert VOC.read(voc)[0][1].size == (20, 50)


def test_an_image_may_have_no_object_or_no_difficult_flag(voc):
    (voc / "Annotations/two.xml").write_text("<annotation></annotation>")
    path = voc / "Annotations/one.xml"
    path.write_text(path.read_text().replace("<difficult>0</difficult>", ""))
    train, _, _ = VOC.read(voc)
    assert train[1].objects == ()
    assert not train[0].objects[0].difficult


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


SIZE, DOG = (9, 8), ("dog", 1, 2, 9, 8, 1)
XML = voc_xml(SIZE, [DOG]).encode()


@pytest.fixture
def folder(tmp_path):
    return write_voc(tmp_path, {"one": (SIZE, [DOG])}, {"two": (SIZE, [DOG])}, lists=("train", "val"))


NUMBERS = st.text(max_size=12) | st.floats().map(str) | st.integers().map(str)


@fuzz(200)
@given(data=st.data())
def test_any_damage_gives_boxes_or_is_named(folder, data):
    path = folder / "Annotations" / "one.xml"
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged((XML, XML.decode().encode("utf-16")), text=True)))
    else:
        text = data.draw(NUMBERS).replace("&", "").replace("<", "").encode(errors="replace")
        path.write_bytes(XML.replace(b">9<", b">" + text + b"<"))
    found = answer(lambda: VOC.read(folder), names=path)
    for annotation in found[0] if found else ():
        width, height = annotation.size
        assert all(0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height for _, (x1, y1, x2, y2), _ in annotation.objects)
    path.write_bytes(XML)
    (folder / "ImageSets/Main/train.txt").write_bytes(data.draw(damaged((b"one\n", b"one 1\r\n"), text=True)))
    found = answer(lambda: VOC.read(folder))
    assert found is None or all(one.picture.parent == folder / "JPEGImages" for one in found[0])
    (folder / "ImageSets/Main/train.txt").write_text("one\n")


def laughs(levels: int) -> str:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, levels))
    return f'<!DOCTYPE x [<!ENTITY e0 "ha">{entities}]><annotation>&e{levels - 1};</annotation>'


@pytest.mark.parametrize(
    "content",
    [
        laughs(12),
        '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]><annotation>&e;</annotation>',
        '<!DOCTYPE x [<!ENTITY % p SYSTEM "file:///etc/hostname"> %p;]><annotation/>',
        '<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd"><annotation/>',
        "<annotation>&undeclared;</annotation>",
    ],
    ids=["billion laughs", "a file", "a parameter", "a web page", "undeclared"],
)
def test_entities_are_refused_before_they_are_expanded(folder, content):
    (folder / "Annotations" / "one.xml").write_text(content)
    with bounded(seconds=10, megabytes=32), pytest.raises(DamagedFileError, match=r"one\.xml.*(DOCTYPE|entity)"):
        VOC.read(folder)


def test_a_very_deep_document_is_read_or_named(folder):
    (folder / "Annotations" / "one.xml").write_text("<annotation>" * 100_000 + "</annotation>" * 100_000)
    answer(lambda: VOC.read(folder))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["JPEGImages/one.png", "Annotations/one.xml", "ImageSets/Main/train.txt"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_opened(folder, name, kind):
    (folder / name).unlink()
    os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    with bounded(seconds=10, megabytes=32), pytest.raises(ElignError):
        VOC.read(folder)


def test_a_name_twice_at_the_end_of_a_long_list_is_found_at_once(folder):
    names = [f"name{number}" for number in range(200_000)]
    (folder / "ImageSets/Main/train.txt").write_text("\n".join([*names, names[-1]]))
    with bounded(seconds=10), pytest.raises(DamagedFileError, match="twice"):
        VOC.read(folder)
