from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.detection.data.scenes import SceneSplit
from elign.lab.detection.data.split import Objects
from elign.lab.detection.data.tasks import augmented, fetch, target_of, task_rows


def objects(*rows) -> Objects:
    return Objects(
        boxes=torch.tensor([row[:4] for row in rows], dtype=torch.float32).view(-1, 4),
        labels=torch.tensor([row[4] for row in rows], dtype=torch.int64),
        difficult=torch.tensor([row[5] for row in rows], dtype=torch.bool),
    )


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
    assert task_rows(split, range(1, 3), difficult=False).tolist() == [0, 3]
    none = task_rows(split, range(3, 5))
    assert none.tolist() == []
    assert none.dtype == torch.int64


def test_the_detector_counts_classes_from_1():
    target = target_of(objects((0, 0, 2, 2, 0, False), (1, 1, 5, 4, 2, True)))
    assert set(target) == {"boxes", "labels"}
    assert target["labels"].tolist() == [1, 3]
    assert target["boxes"].tolist() == [[0, 0, 2, 2], [1, 1, 5, 4]]


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
