"""Detection data sets: opening by name, the images and boxes that a task sees, mirroring, pictures in files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.lab.detection.annotating import objects, write_voc

from elign import ElignError
from elign.lab.data.base import DamagedFileError, DataError, DatasetNotFoundError
from elign.lab.data.folders import FolderLayoutError
from elign.lab.detection.data import (
    DetectionSplit,
    augmented,
    drawn_rows,
    fetch,
    open_detection_data,
    task_rows,
)
from elign.lab.detection.data.annotated import Annotation, Named, checked_box, make_split, scaled_size
from elign.lab.detection.data.voc import Voc2007


def test_only_the_objects_of_some_classes():
    some = objects(((4, 0, 5, 1), 3, True), ((8, 0, 9, 1), 1), ((0, 0, 1, 1), 0))
    assert some.of(range(1, 4)).boxes[:, 0].tolist() == [4.0, 8.0]
    assert some.of(range(1, 4)).difficult.tolist() == [True, False]
    assert some.of(range(1, 4), difficult=False).labels.tolist() == [1]
    assert some.of(range(4, 9)).boxes.shape == some.of(range(0)).boxes.shape == (0, 4)
    with pytest.raises(ValueError, match="consecutive"):
        some.of(range(0, 4, 2))


@pytest.mark.parametrize(
    ("field", "value"), [("boxes", torch.zeros(1, 5)), ("labels", torch.zeros(1)), ("difficult", torch.zeros(2).bool())]
)
def test_tensors_that_do_not_fit_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        replace(objects(((0, 0, 1, 1), 0)), **{field: value})


IMAGES = torch.randint(0, 256, (4, 3, 6, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def split() -> DetectionSplit:
    """Four images of 6 x 8 that may be mirrored."""
    entries = [((0, 0, 2, 2), 0), ((1, 1, 5, 4), 2)], [((2, 2, 3, 5), 1, True)], [], [((4, 1, 8, 6), 2)]
    return DetectionSplit([objects(*some) for some in entries], lambda row: IMAGES[row], flips=True)


def test_an_image_belongs_to_every_task_that_has_a_class_on_it(split):
    assert task_rows(split, range(0, 1)).tolist() == [0]
    assert task_rows(split, range(1, 3)).tolist() == [0, 1, 3]
    assert task_rows(split, range(3, 5)).dtype == torch.int64


def test_fetched_images_have_the_boxes_of_the_classes_only(split):
    images, targets = fetch(split, torch.tensor([3, 0, 1]), range(2, 3))
    for image, row in zip(images, (3, 0, 1), strict=True):
        assert torch.equal(image, IMAGES[row].float() / 255)
    assert [target["labels"].tolist() for target in targets] == [[3], [3], []]
    assert targets[1]["boxes"].tolist() == [[1, 1, 5, 4]]
    assert targets[2]["boxes"].shape == (0, 4)
    _, easy = fetch(split, torch.tensor([1]), range(0, 3), difficult=False)
    assert len(easy[0]["labels"]) == 0
    for row in (4, -1):
        with pytest.raises(IndexError, match=r"0\.\.3"):
            fetch(split, torch.tensor([row]), range(0, 3))


def test_a_row_is_mirrored_alike_in_any_batch(split, untouched_random_state):
    rows = torch.arange(4)
    seen = set()
    for seed in range(-3, 12):
        together, targets = fetch(split, rows, range(0, 3), seed=seed)
        for row in range(4):
            alone, target = fetch(split, torch.tensor([row]), range(0, 3), seed=seed)
            assert torch.equal(alone[0], together[row])
            assert torch.equal(target[0]["boxes"], targets[row]["boxes"])
        plain, _ = fetch(split, rows, range(0, 3))
        seen.add(tuple(not torch.equal(one, other) for one, other in zip(together, plain, strict=True)))
        upright, _ = fetch(replace(split, flips=False), rows, range(0, 3), seed=seed)
        assert all(torch.equal(one, other) for one, other in zip(upright, plain, strict=True))
    # Each image is mirrored with some seeds, and the images of a batch do not all go the same way.
    assert len(seen) > 4
    assert all({choice[row] for choice in seen} == {True, False} for row in range(4))


@given(st.integers(0, 2**32), st.tuples(*[st.integers(0, 15)] * 4))
def test_boxes_go_with_their_pixels(seed, corners):
    x1, x2 = sorted(corners[:2])
    y1, y2 = sorted(corners[2:])
    x2, y2 = x2 + 1, y2 + 1
    image = torch.zeros(3, 17, 16, dtype=torch.uint8)
    image[:, y1:y2, x1:x2] = 1
    mirrored, found = augmented(image, objects(((x1, y1, x2, y2), 1, True)), seed=seed)
    left, top, right, bottom = map(int, found.boxes[0].tolist())
    expected = torch.zeros_like(image)
    expected[:, top:bottom, left:right] = 1
    assert torch.equal(mirrored, expected)
    assert (found.labels.tolist(), found.difficult.tolist()) == ([1], [True])


def test_a_folder_of_ones_own_has_the_classes_that_are_found(voc):
    data = open_detection_data("voc", path=voc)
    assert (data.name, data.classes) == ("voc", ("cat", "dog", "person"))
    assert [objects.labels.tolist() for objects in data.train.objects] == [[1], [0, 2], [2]]
    assert data.test.objects[0].labels.tolist() == [0, 1]
    assert data.test.objects[0].difficult.tolist() == [True, False]
    assert data.train.image(1).shape == (3, 50, 20)
    assert data.train.flips
    assert not open_detection_data("voc", path=voc, flips=False).train.flips


@pytest.mark.parametrize("inner", ["VOCdevkit/VOC2007", "VOC2007"])
def test_voc_2007_is_found_in_the_data_folder(tmp_path, monkeypatch, inner):
    train = {name: ((9, 9), [(name, 1, 1, 5, 5, 0)]) for name in reversed(Voc2007.classes)}
    write_voc(tmp_path / inner, train=train)
    data = open_detection_data("voc2007", data_dir=tmp_path)
    assert data.classes == Voc2007.classes
    assert [objects.labels.item() for objects in data.train.objects] == list(range(19, -1, -1))
    monkeypatch.setenv("ELIGN_DATA", str(tmp_path))
    assert len(open_detection_data("voc2007").train) == 20
    assert len(open_detection_data("voc2007", path=tmp_path / inner, data_dir=tmp_path / "empty").train) == 20


def test_coco_by_its_path_and_smaller(coco):
    data = open_detection_data("coco", path=coco)
    assert data.classes == ("zebra", "ant")
    assert data.train.objects[0].labels.tolist() == [0, 1]
    assert data.train.objects[0].difficult.tolist() == [True, False]
    assert data.test.objects[0].labels.tolist() == [0]
    small = open_detection_data("coco", path=coco, image_size=32).train
    assert [small.image(row).shape for row in (0, 1)] == [(3, 24, 32), (3, 20, 20)]
    assert small.objects[0].boxes.tolist() == [[0, 0, 32, 24], [4, 4, 12, pytest.approx(6.4)]]


def test_digit_scenes_are_the_same_in_any_order_of_classes():
    plain = open_detection_data("digit-scenes", scenes=(12, 3), seed=2)
    shuffled = open_detection_data("digit-scenes", scenes=(12, 3), seed=2, order=1993)
    assert plain.classes == tuple("0123456789")
    assert shuffled.classes[:3] == ("4", "2", "7")
    for split, other in ((plain.train, shuffled.train), (plain.test, shuffled.test)):
        for row in range(len(split)):
            assert torch.equal(split.image(row), other.image(row))
            names = [plain.classes[label] for label in split.objects[row].labels]
            assert names == [shuffled.classes[label] for label in other.objects[row].labels]
    assert not plain.train.flips
    assert open_detection_data("digit-scenes", scenes=(1, 1), image_size=128).train.image(0).shape == (3, 128, 128)


def test_a_limit_keeps_some_training_images_of_each_class():
    full, few, shuffled = (
        open_detection_data("digit-scenes", scenes=(90, 5), **options)
        for options in ({}, {"limit": 3}, {"limit": 3, "order": 5})
    )
    assert len(few.test) == len(full.test)
    assert 8 <= len(few.train) <= 30
    assert all(len(task_rows(few.train, range(label, label + 1))) >= 3 for label in range(10))
    assert [few.train.image(row).sum() for row in range(len(few.train))] == [
        shuffled.train.image(row).sum() for row in range(len(shuffled.train))
    ]


@given(
    st.lists(st.sets(st.sampled_from("abcdef"), max_size=4), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(0, 5),
)
def test_each_class_has_its_share_and_no_image_is_idle(shown, limit, seed):
    rows = drawn_rows(shown, limit, seed=seed)
    assert rows == sorted(set(rows)) == drawn_rows(shown, limit, seed=seed)
    for name in "abcdef":
        available = sum(name in names for names in shown)
        assert sum(name in shown[row] for row in rows) >= min(limit, available)
    assert len(rows) <= limit * len(set().union(*shown))
    assert all(shown[row] for row in rows)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("voc07", {}, "Did you mean 'voc2007'"),
        ("voc", {}, "needs data.path"),
        ("coco", {}, "needs data.path"),
        ("digit-scenes", {"path": "."}, "option path"),
        ("voc", {"path": ".", "scenes": (1, 1)}, "option scenes"),
        ("digit-scenes", {"scenes": (0, 1)}, "scenes"),
        ("digit-scenes", {"image_size": 40}, "at least 48 pixels"),
        ("voc2007", {"image_size": 0}, "image_size"),
        ("digit-scenes", {"limit": 0}, "limit"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, problem):
    with pytest.raises(ElignError, match=problem):
        open_detection_data(name, **options)


@pytest.mark.parametrize("name", ["voc2007", "voc", "coco"])
def test_a_path_that_leads_nowhere_is_named(tmp_path, name):
    with pytest.raises(FolderLayoutError, match="no such folder"):
        open_detection_data(name, path=tmp_path / "nowhere")
    with pytest.raises(FolderLayoutError):
        open_detection_data(name, path=tmp_path)
    if name == "voc2007":
        with pytest.raises(DatasetNotFoundError) as caught:
            open_detection_data(name, data_dir=tmp_path)
        assert caught.value.folder == tmp_path / "VOCdevkit/VOC2007"


@pytest.mark.parametrize(
    ("name", "pictures", "error", "problem"),
    [
        ("voc", {"train": {"bare": ((9, 9), [])}}, DataError, "No object is annotated"),
        ("voc2007", {}, DataError, "'aeroplane'"),
        (
            "voc",
            {"test": {"odd": ((9, 9), [("bird", 1, 1, 2, 2, 0)])}},
            DamagedFileError,
            r"odd.xml .*'bird' is not one of cat, dog, person",
        ),
    ],
)
def test_classes_must_be_on_training_pictures(tmp_path, name, pictures, error, problem):
    with pytest.raises(error, match=problem):
        open_detection_data(name, path=write_voc(tmp_path, **pictures))


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4)),
        ((-1, -0.5, 3, 4), (0, 0, 3, 4)),
        ((1, 2, 41, 21), (1, 2, 40, 20)),
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
def test_a_box_is_cut_at_the_border_or_refused(box, expected):
    if isinstance(expected, tuple):
        assert checked_box(box, (40, 20)) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            checked_box(box, (40, 20))


@pytest.fixture
def annotation(tmp_path):
    """Annotations of a picture of 40 x 20 that is red on the left, blue on the right."""
    picture = Image.new("RGB", (40, 20), (255, 0, 0))
    picture.paste((0, 0, 255), (20, 0, 40, 20))
    picture.save(tmp_path / "half.png")

    def made(*named, size=(40, 20)):
        objects = tuple(Named(name, box, False) for name, box in named)
        return Annotation(Path("said.xml"), tmp_path / "half.png", size, objects)

    return made


def test_a_large_picture_is_scaled_with_its_boxes(annotation):
    said = annotation(("b", (0.0, 0.0, 20.0, 20.0)), ("a", (20.0, 10.0, 40.0, 20.0)))
    whole, split = (make_split([said, annotation()], ["a", "b"], size, flips=True) for size in (None, 10))
    assert whole.image(0).shape == (3, 20, 40)
    assert whole.image(0).dtype == torch.uint8
    assert split.image(0).shape == (3, 5, 10)
    assert split.objects[0].boxes.tolist() == [[0, 0, 5, 5], [5, 2.5, 10, 5]]
    assert split.objects[0].labels.tolist() == [1, 0]
    assert split.objects[1].boxes.shape == (0, 4)
    assert split.image(0)[:, 2, 1].tolist() == [255, 0, 0]
    assert split.image(0)[:, 2, 8].tolist() == [0, 0, 255]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 1500))
def test_scaling_keeps_the_shape_and_never_enlarges(width, height, limit):
    size = scaled_size((width, height), limit)
    assert max(size) == min(max(width, height), limit)
    assert min(size) >= 1
    scale = max(size) / max(width, height)
    assert all(abs(new - old * scale) <= 1 for new, old in zip(size, (width, height), strict=True))


def test_a_picture_of_another_size_is_named(annotation):
    split = make_split([annotation(size=(20, 40))], ["a"], None, flips=True)
    with pytest.raises(DamagedFileError, match=r"40 x 20 pixels, but said.xml says 20 x 40"):
        split.image(0)
