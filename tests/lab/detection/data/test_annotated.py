"""Pictures in files with boxes: checks, scaling, classes."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from elign.lab.data.base import DamagedFileError, DataError
from elign.lab.detection.data.annotated import (
    Annotation,
    check_classes,
    checked_box,
    found_classes,
    make_split,
    scaled_size,
)


def annotation(picture: Path, size=(40, 20), boxes=((0.0, 0.0, 40.0, 20.0),), names=("a",)) -> Annotation:
    return Annotation(
        source=Path("said.xml"), picture=picture, size=size, boxes=boxes, names=names, difficult=(False,) * len(names)
    )


@pytest.fixture
def picture(tmp_path) -> Path:
    """Red on the left, blue on the right: 40 x 20."""
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 0, 255), (20, 0, 40, 20))
    image.save(tmp_path / "half.png")
    return tmp_path / "half.png"


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4)),
        ((-1, -0.5, 3, 4), (0, 0, 3, 4)),
        ((1, 2, 41, 21), (1, 2, 40, 20)),
    ],
)
def test_a_box_is_cut_at_the_border(box, expected):
    assert checked_box(box, (40, 20)) == expected


@pytest.mark.parametrize(
    ("box", "problem"),
    [
        ((-1.5, 2, 3, 4), "not inside"),
        ((1, -3, 3, 4), "not inside"),
        ((1, 2, 41.5, 4), "not inside"),
        ((1, 2, 3, 22), "not inside"),
        ((3, 2, 3, 4), "empty"),
        ((1, 4, 3, 2), "empty"),
        ((40, 2, 41, 4), "empty"),
        ((float("nan"), 2, 3, 4), "not finite"),
        ((1, 2, float("inf"), 4), "not finite"),
    ],
)
def test_what_is_no_box_on_the_picture_is_refused(box, problem):
    with pytest.raises(ValueError, match=problem):
        checked_box(box, (40, 20))


def test_a_picture_is_handed_out_as_it_is(picture):
    split = make_split([annotation(picture)], ["a"], image_size=None, flips=True)
    image = split.image(0)
    assert image.dtype == torch.uint8
    assert image.shape == (3, 20, 40)
    assert image[:, 0, 0].tolist() == [255, 0, 0]
    assert image[:, 19, 39].tolist() == [0, 0, 255]
    assert split.flips
    assert len(split) == 1


def test_a_large_picture_is_scaled_with_its_boxes(picture):
    boxes = ((0.0, 0.0, 20.0, 20.0), (20.0, 10.0, 40.0, 20.0))
    split = make_split([annotation(picture, boxes=boxes, names=("a", "b"))], ["a", "b"], image_size=10, flips=False)
    assert split.image(0).shape == (3, 5, 10)
    assert split.objects[0].boxes.tolist() == [[0, 0, 5, 5], [5, 2.5, 10, 5]]
    assert split.image(0)[:, 2, 1].tolist() == [255, 0, 0]
    assert split.image(0)[:, 2, 8].tolist() == [0, 0, 255]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 1500))
def test_scaling_keeps_the_shape_and_never_enlarges(width, height, limit):
    size = scaled_size((width, height), limit)
    assert max(size) == min(max(width, height), limit)
    assert min(size) >= 1
    scale = max(size) / max(width, height)
    assert all(abs(new - old * scale) <= 1 for new, old in zip(size, (width, height), strict=True))


def test_a_picture_of_another_size_is_named(picture):
    split = make_split([annotation(picture, size=(20, 40), boxes=(), names=())], ["a"], image_size=None, flips=True)
    with pytest.raises(DamagedFileError, match=r"40 x 20 pixels, but said.xml says 20 x 40") as caught:
        split.image(0)
    assert caught.value.path == picture


def test_labels_are_places_among_the_classes(picture):
    boxes = ((0.0, 0.0, 1.0, 1.0),) * 3
    split = make_split(
        [annotation(picture, boxes=boxes, names=("a", "c", "b")), annotation(picture, boxes=(), names=())],
        ["b", "c", "a"],
        image_size=None,
        flips=True,
    )
    assert split.objects[0].labels.tolist() == [2, 1, 0]
    assert split.objects[1].boxes.shape == (0, 4)


def test_an_unknown_class_is_named_with_its_file(picture):
    with pytest.raises(DamagedFileError, match=r"said.xml .*'a' is not one of b, c"):
        make_split([annotation(picture)], ["b", "c"], image_size=None, flips=True)
    many = [str(number) for number in range(20)]
    with pytest.raises(DamagedFileError, match="7 and 12 more"):
        make_split([annotation(picture)], many, image_size=None, flips=True)


def test_classes_must_be_there(picture):
    train = [annotation(picture, names=("b",)), annotation(picture)]
    assert found_classes(train) == ("a", "b")
    check_classes("own", ("b", "a"), train)
    for classes, problem in (((), "No object"), (("a", "b", "a"), "'a' is named twice"), (("a", "b", "z"), "'z'")):
        with pytest.raises(DataError, match=problem):
            check_classes("own", classes, train)
