import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.data.errors import DamagedFileError, DataError, DatasetNotFoundError
from elign.lab.data.image_folders import FolderLayoutError
from elign.lab.data.order import class_order
from elign.lab.detection.data.open import DETECTION_DATASETS, drawn_rows, open_detection_data
from elign.lab.detection.data.voc import VOC2007_CLASSES


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


def test_a_missing_voc_2007_says_what_to_put_where(tmp_path):
    with pytest.raises(DatasetNotFoundError) as caught:
        open_detection_data("voc2007", data_dir=tmp_path)
    for part in ("voc2007", str(tmp_path / "VOCdevkit/VOC2007"), "JPEGImages/*.jpg", "trainval.txt", "ELIGN_DATA"):
        assert part in str(caught.value)


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


def test_the_seed_decides_the_draw():
    shown = [["a"]] * 50
    draws = {tuple(drawn_rows(shown, 5, seed=seed).tolist()) for seed in range(5)}
    assert len(draws) == 5


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("voc07", {}, "Did you mean 'voc2007'"),
        ("nothing", {}, "Known are: digit-scenes, voc2007, voc, coco"),
        ("voc", {}, "'voc' needs the path .* JPEGImages"),
        ("coco", {}, "'coco' needs the path .*instances_train"),
        ("digit-scenes", {"path": "."}, "take no path"),
        ("digit-scenes", {"classes": ["a"]}, "classes of 'digit-scenes' are fixed"),
        ("voc2007", {"classes": ["a"]}, "classes of 'voc2007' are fixed"),
        ("voc2007", {"scenes": (1, 1)}, "scenes is for digit-scenes"),
        ("digit-scenes", {"scenes": (0, 1)}, "at least 1 scene"),
        ("digit-scenes", {"image_size": 20}, "image_size must be at least 48, not 20"),
        ("voc2007", {"image_size": 0}, "image_size must be at least 1, not 0"),
        ("digit-scenes", {"limit": 0}, "limit must be at least 1, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, problem):
    with pytest.raises(DataError, match=problem):
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
