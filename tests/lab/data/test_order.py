import numpy as np
import pytest
import torch

from elign.lab.data.dataset import ImageData
from elign.lab.data.order import _draw, class_order, imagenet100_classes, reorder

WNIDS = [f"n{number:08d}" for number in range(1000)]


def test_the_published_order_of_cifar100():
    order = class_order(100)
    assert order[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert sorted(order) == list(range(100))
    assert all(type(label) is int for label in order)


def test_the_seed_decides_and_none_is_the_natural_order():
    assert class_order(10, seed=None) == tuple(range(10))
    assert class_order(10, seed=1) == class_order(10, seed=1) != class_order(10, seed=2)


def test_global_random_numbers_are_left_alone(untouched_random_state):
    class_order(100)
    imagenet100_classes(WNIDS)


def test_no_class_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        class_order(0)


def test_imagenet100_is_the_published_draw_in_sorted_order():
    assert _draw(1000, 100, 1993)[:5] == [54, 7, 894, 512, 126]
    chosen = imagenet100_classes(WNIDS)
    assert list(chosen) == sorted(chosen)
    assert len(set(chosen)) == 100
    assert {WNIDS[index] for index in (54, 7, 894, 512, 126)} <= set(chosen)
    drawn = np.random.RandomState(1993).choice(WNIDS, 100, replace=False)  # as in the published code: names, not places
    assert set(chosen) == set(drawn)
    assert imagenet100_classes(WNIDS[::-1]) == chosen


@pytest.mark.parametrize("wnids", [WNIDS[:-1], [*WNIDS[:-1], WNIDS[0]], [*WNIDS, WNIDS[0]]])
def test_imagenet100_wants_all_thousand(wnids):
    with pytest.raises(ValueError, match="1000 different names"):
        imagenet100_classes(wnids)


@pytest.fixture
def data():
    images = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1)
    return ImageData("made-up", images, torch.tensor([0, 1, 2, 1]), images[:2], torch.tensor([2, 0]), ("a", "b", "c"))


def test_labels_become_places_in_the_order(data):
    moved = reorder(data, (2, 0, 1))
    assert moved.classes == ("c", "a", "b")
    assert moved.train_labels.tolist() == [1, 2, 0, 2]
    assert moved.test_labels.tolist() == [0, 1]
    assert torch.equal(moved.train_images, data.train_images)
    assert data.train_labels.tolist() == [0, 1, 2, 1]


def test_every_image_keeps_the_name_of_its_class(data):
    for order in (class_order(3), class_order(3, seed=None), (1, 2, 0)):
        moved = reorder(data, order)
        for split in ("train_labels", "test_labels"):
            before = [data.classes[label] for label in getattr(data, split)]
            assert [moved.classes[label] for label in getattr(moved, split)] == before


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (0, 1, 3), (0, 1, 2, 3), (-1, 0, 1)])
def test_what_is_no_order_is_refused(data, order):
    with pytest.raises(ValueError, match=r"each label 0\.\.2"):
        reorder(data, order)
