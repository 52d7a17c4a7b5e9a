"""Detection data sets: opening by name, the images and boxes a task sees, mirroring."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign import ElignError
from elign.lab.data.base import DamagedFileError, DataError, DatasetNotFoundError
from elign.lab.data.folders import FolderLayoutError
from elign.lab.data.scenario import class_order
from elign.lab.detection.data.base import (
    DETECTION_DATASETS,
    Objects,
    augmented,
    drawn_rows,
    fetch,
    open_detection_data,
    task_rows,
)
from elign.lab.detection.data.scenes import SceneSplit
from elign.lab.detection.data.voc import VOC2007_CLASSES


def objects(*rows) -> Objects:
    return Objects(
        boxes=torch.tensor([row[:4] for row in rows], dtype=torch.float32).view(-1, 4),
        labels=torch.tensor([row[4] for row in rows], dtype=torch.int64),
        difficult=torch.tensor([row[5] for row in rows], dtype=torch.bool),
    )


def test_only_the_objects_of_some_classes():
    some = objects((4, 0, 5, 1, 3, True), (8, 0, 9, 1, 1, False), (0, 0, 1, 1, 0, False))
    assert some.of(range(1, 4)).boxes[:, 0].tolist() == [4.0, 8.0]
    assert some.of(range(1, 4)).difficult.tolist() == [True, False]
    assert some.of(range(1, 4), difficult=False).labels.tolist() == [1]
    assert some.of(range(4, 9)).boxes.shape == some.of(range(0)).boxes.shape == (0, 4)
    with pytest.raises(ValueError, match="consecutive"):
        some.of(range(0, 4, 2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("boxes", torch.zeros(4, 5)),
        ("boxes", torch.zeros(3, 4)),
        ("boxes", torch.zeros(4, 4, dtype=torch.float64)),
        ("labels", torch.zeros(4)),
        ("difficult", torch.zeros(4, dtype=torch.int64)),
        ("difficult", torch.zeros(3, dtype=torch.bool)),
    ],
)
def test_tensors_that_do_not_fit_are_refused(field, value):
    labels = torch.zeros(4, dtype=torch.int64)
    fields = {"boxes": torch.zeros(4, 4), "labels": labels, "difficult": labels.bool()}
    with pytest.raises(ValueError, match=field):
        Objects(**(fields | {field: value}))


@pytest.fixture
def split() -> SceneSplit:
    """Four images of 6 x 8 that may be mirrored."""
    images = torch.randint(0, 256, (4, 3, 6, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = [
        objects((0, 0, 2, 2, 0, False), (1, 1, 5, 4, 2, False)),
        objects((2, 2, 3, 5, 1, True)),
        objects(),
        objects((4, 1, 8, 6, 2, False)),
    ]
    return SceneSplit(images, found, flips=True)


def test_an_image_belongs_to_every_task_that_has_a_class_on_it(split):
    assert task_rows(split, range(0, 1)).tolist() == [0]
    assert task_rows(split, range(1, 3)).tolist() == [0, 1, 3]
    none = task_rows(split, range(3, 5))
    assert none.tolist() == []
    assert none.dtype == torch.int64


def test_fetched_images_have_the_boxes_of_the_classes_only(split):
    images, targets = fetch(split, torch.tensor([3, 0, 1]), range(2, 3))
    for image, row in zip(images, (3, 0, 1), strict=True):
        assert image.dtype == torch.float32
        assert torch.equal(image, split.images[row].float() / 255)
    assert [target["labels"].tolist() for target in targets] == [[3], [3], []]
    assert targets[1]["boxes"].tolist() == [[1, 1, 5, 4]]
    assert targets[2]["boxes"].shape == (0, 4)
    _, easy = fetch(split, torch.tensor([1]), range(0, 3), difficult=False)
    assert len(easy[0]["labels"]) == 0


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
    # Each image is mirrored with some seeds, and the images of a batch do not all go the same way.
    assert len(seen) > 4
    assert all({choice[row] for choice in seen} == {True, False} for row in range(4))


def test_what_must_not_be_mirrored_is_not(split):
    upright = replace(split, flips=False)
    for seed in range(10):
        images, _ = fetch(upright, torch.arange(4), range(0, 3), seed=seed)
        assert all(torch.equal(image, raw.float() / 255) for image, raw in zip(images, split.images, strict=True))


@given(st.integers(0, 2**32), st.tuples(*[st.integers(0, 15)] * 4))
def test_boxes_go_with_their_pixels(seed, corners):
    x1, x2 = sorted(corners[:2])
    y1, y2 = sorted(corners[2:])
    x2, y2 = x2 + 1, y2 + 1
    image = torch.zeros(3, 17, 16, dtype=torch.uint8)
    image[:, y1:y2, x1:x2] = 1
    mirrored, found = augmented(image, objects((x1, y1, x2, y2, 1, True)), seed=seed)
    left, top, right, bottom = map(int, found.boxes[0].tolist())
    expected = torch.zeros_like(image)
    expected[:, top:bottom, left:right] = 1
    assert torch.equal(mirrored, expected)
    assert found.labels.tolist() == [1]
    assert found.difficult.tolist() == [True]


def test_half_of_the_images_are_mirrored():
    image = torch.arange(3 * 2 * 4).view(3, 2, 4)
    mirrored = sum(not torch.equal(augmented(image, objects(), seed=seed)[0], image) for seed in range(400))
    assert 150 < mirrored < 250


@pytest.mark.parametrize("rows", [torch.tensor([4]), torch.tensor([-1])])
def test_rows_outside_are_refused(split, rows):
    with pytest.raises(IndexError, match=r"0\.\.3"):
        fetch(split, rows, range(0, 3))


def test_a_folder_of_ones_own_has_the_classes_that_are_found(voc):
    data = open_detection_data("voc", path=voc)
    assert data.name == "voc"
    assert data.classes == ("cat", "dog", "person")
    assert [objects.labels.tolist() for objects in data.train.objects] == [[1], [0, 2], [2]]
    assert data.test.objects[0].labels.tolist() == [0, 1]
    assert data.test.objects[0].difficult.tolist() == [True, False]
    assert data.train.image(1).shape == (3, 50, 20)
    assert data.train.flips
    assert not open_detection_data("voc", path=voc, flips=False).train.flips


def test_an_order_renumbers_the_classes(voc):
    plain, shuffled = open_detection_data("voc", path=voc), open_detection_data("voc", path=voc, order=1)
    assert shuffled.classes == tuple(plain.classes[label] for label in class_order(3, seed=1))
    assert shuffled.classes != plain.classes
    for one, other in zip(plain.train.objects, shuffled.train.objects, strict=True):
        names = [
            [data.classes[label] for label in objects.labels] for data, objects in ((plain, one), (shuffled, other))
        ]
        assert names[0] == names[1]


def test_classes_can_be_named(voc):
    data = open_detection_data("voc", path=voc, classes=["person", "cat", "dog"])
    assert data.classes == ("person", "cat", "dog")
    assert data.train.objects[1].labels.tolist() == [1, 0]
    with pytest.raises(DamagedFileError, match=r"two.xml .*'person'"):
        open_detection_data("voc", path=voc, classes=["cat", "dog"])
    with pytest.raises(DataError, match="class 'bird'"):
        open_detection_data("voc", path=voc, classes=["person", "cat", "dog", "bird"])


def test_a_test_class_without_training_images_is_refused(tmp_path, write_voc):
    root = write_voc(tmp_path, test={"odd": ((9, 9), [("bird", 1, 1, 2, 2, 0)])})
    with pytest.raises(DamagedFileError, match=r"odd.xml .*'bird' is not one of cat, dog, person"):
        open_detection_data("voc", path=root)


@pytest.mark.parametrize("inner", ["VOCdevkit/VOC2007", "VOC2007"])
def test_voc_2007_is_found_in_the_data_folder(tmp_path, write_voc, monkeypatch, inner):
    train = {name: ((9, 9), [(name, 1, 1, 5, 5, 0)]) for name in reversed(VOC2007_CLASSES)}
    write_voc(tmp_path / inner, train=train)
    data = open_detection_data("voc2007", data_dir=tmp_path)
    assert data.classes == VOC2007_CLASSES
    assert [objects.labels.item() for objects in data.train.objects] == list(range(19, -1, -1))
    monkeypatch.setenv("ELIGN_DATA", str(tmp_path))
    assert len(open_detection_data("voc2007").train) == 20
    assert len(open_detection_data("voc2007", path=tmp_path / inner, data_dir=tmp_path / "empty").train) == 20


def test_a_missing_voc_2007_says_where_to_put_it(tmp_path):
    with pytest.raises(DatasetNotFoundError) as caught:
        open_detection_data("voc2007", data_dir=tmp_path)
    assert caught.value.folder == tmp_path / "VOCdevkit/VOC2007"


def test_coco_by_its_path(coco):
    data = open_detection_data("coco", path=coco)
    assert data.classes == ("zebra", "ant")
    assert data.train.objects[0].labels.tolist() == [0, 1]
    assert data.train.objects[0].difficult.tolist() == [True, False]
    assert data.test.objects[0].labels.tolist() == [0]
    assert data.train.image(0).shape == (3, 30, 40)
    assert open_detection_data("coco", path=coco, classes=("ant", "zebra")).classes == ("ant", "zebra")


def test_pictures_can_be_made_smaller(coco):
    data = open_detection_data("coco", path=coco, image_size=20)
    assert data.train.image(0).shape == (3, 15, 20)
    assert data.train.objects[0].boxes.tolist() == [[0, 0, 20, 15], [2.5, 2.5, 7.5, 4]]
    assert data.train.image(1).shape == (3, 20, 20)


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
    full = open_detection_data("digit-scenes", scenes=(90, 5))
    few = open_detection_data("digit-scenes", scenes=(90, 5), limit=3)
    shuffled = open_detection_data("digit-scenes", scenes=(90, 5), limit=3, order=5)
    assert len(few.test) == len(full.test)
    assert 8 <= len(few.train) <= 30
    shown = torch.zeros(10, dtype=torch.int64)
    for objects in few.train.objects:
        shown[objects.labels.unique()] += 1
    assert shown.min() >= 3
    assert [few.train.image(row).sum() for row in range(len(few.train))] == [
        shuffled.train.image(row).sum() for row in range(len(shuffled.train))
    ]


def test_a_limit_in_a_folder(voc):
    data = open_detection_data("voc", path=voc, limit=1)
    names = [{data.classes[label] for label in objects.labels} for objects in data.train.objects]
    assert names == [{"dog"}, {"cat", "person"}]
    assert [data.train.image(row).shape[1] for row in (0, 1)] == [30, 50]
    assert len(data.test) == 1


@given(
    st.lists(st.sets(st.sampled_from("abcdef"), max_size=4), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(0, 5),
)
def test_each_class_has_its_share_and_no_image_is_idle(shown, limit, seed):
    rows = drawn_rows(shown, limit, seed=seed).tolist()
    assert rows == sorted(set(rows))
    assert rows == drawn_rows(shown, limit, seed=seed).tolist()
    for name in "abcdef":
        available = sum(name in names for names in shown)
        assert sum(name in shown[row] for row in rows) >= min(limit, available)
    assert len(rows) <= limit * len(set().union(*shown))
    assert all(shown[row] for row in rows)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("voc07", {}, "Did you mean 'voc2007'"),
        ("nothing", {}, "There are: coco, digit-scenes, voc, voc2007"),
        ("voc", {}, "'voc' needs the path .* JPEGImages"),
        ("coco", {}, "'coco' needs the path .*instances_train"),
        ("digit-scenes", {"path": "."}, "option path"),
        ("digit-scenes", {"classes": ["a"]}, "option classes"),
        ("voc2007", {"classes": ["a"]}, "option classes"),
        ("voc2007", {"scenes": (1, 1)}, "option scenes"),
        ("digit-scenes", {"scenes": (0, 1)}, "at least 1 scene"),
        ("digit-scenes", {"image_size": 20}, "at least 1 scene of 48 pixels"),
        ("voc2007", {"image_size": 0}, "image_size must be at least 1, not 0"),
        ("digit-scenes", {"limit": 0}, "limit must be at least 1, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, problem):
    with pytest.raises(ElignError, match=problem):
        open_detection_data(name, **options)


@pytest.mark.parametrize("name", ["voc2007", "voc", "coco"])
def test_a_path_that_leads_nowhere_is_named(tmp_path, name):
    with pytest.raises(FolderLayoutError, match="there is no such folder"):
        open_detection_data(name, path=tmp_path / "nowhere")
    with pytest.raises(FolderLayoutError):
        open_detection_data(name, path=tmp_path)
    assert name in DETECTION_DATASETS


def test_a_folder_without_objects_is_refused(tmp_path, write_voc):
    root = write_voc(tmp_path, train={"bare": ((9, 9), [])})
    with pytest.raises(DataError, match="No object is annotated"):
        open_detection_data("voc", path=root)
