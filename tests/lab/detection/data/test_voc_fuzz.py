"""Annotations in VOC's format, damaged or hostile: boxes inside of their pictures, or the named error."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.data.errors import DamagedFileError
from elign.lab.detection.data.voc import read_voc

XML = (
    b"<annotation><size><width>9</width><height>8</height></size><object><name>dog</name><difficult>1</difficult>"
    b"<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object></annotation>"
)


@pytest.fixture
def folder(tmp_path):
    from PIL import Image

    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / part).mkdir(parents=True)
    for name in ("one", "two"):
        Image.new("RGB", (9, 8)).save(tmp_path / "JPEGImages" / f"{name}.png")
        (tmp_path / "Annotations" / f"{name}.xml").write_bytes(XML)
    (tmp_path / "ImageSets/Main/train.txt").write_text("one\n")
    (tmp_path / "ImageSets/Main/val.txt").write_text("two\n")
    return tmp_path


@fuzz(150)
@given(content=damaged((XML, XML.decode().encode("utf-16")), text=True))
def test_damaged_annotations_give_boxes_or_are_named(folder, content):
    path = folder / "Annotations" / "one.xml"
    path.write_bytes(content)
    found = answer(lambda: read_voc(folder), names=path)
    for annotation in found[0] if found else ():
        width, height = annotation.size
        assert all(0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height for x1, y1, x2, y2 in annotation.boxes)


@fuzz(60)
@given(content=damaged((b"one\n", b"one 1\r\n"), text=True))
def test_damaged_lists_name_pictures_that_are_there_or_are_named(folder, content):
    path = folder / "ImageSets/Main/train.txt"
    path.write_bytes(content)
    found = answer(lambda: read_voc(folder))
    assert found is None or all(one.picture.parent == folder / "JPEGImages" for one in found[0])


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
        read_voc(folder)


def test_a_very_deep_document_is_read_or_named(folder):
    (folder / "Annotations" / "one.xml").write_text("<annotation>" * 100_000 + "</annotation>" * 100_000)
    answer(lambda: read_voc(folder))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["JPEGImages/one.png", "Annotations/one.xml"])
def test_a_pipe_is_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with bounded(seconds=10), pytest.raises(DamagedFileError, match="one"):
        read_voc(folder)


def test_a_name_twice_at_the_end_of_a_long_list_is_found_at_once(folder):
    names = [f"name{number}" for number in range(200_000)]
    (folder / "ImageSets/Main/train.txt").write_text("\n".join([*names, names[-1]]))
    with bounded(seconds=10), pytest.raises(DamagedFileError, match="twice"):
        read_voc(folder)


@fuzz(40)
@given(number=st.text(max_size=12) | st.floats().map(str) | st.integers().map(str))
def test_any_number_or_text_in_a_box(folder, number):
    text = number.replace("&", "").replace("<", "").encode(errors="replace")
    (folder / "Annotations" / "one.xml").write_bytes(XML.replace(b">9<", b">" + text + b"<"))
    answer(lambda: read_voc(folder))
