"""Digit scenes: where the digits are, and what the seed decides."""

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from elign.lab.data.base import ImageData
from elign.lab.data.digits import load_digits_dataset
from elign.lab.detection.data import open_detection_data, scenes
from elign.lab.detection.data.scenes import INK, ink_of, paste


def digit_scenes(counts, *, side=96, seed=3):
    data = open_detection_data("digit-scenes", scenes=counts, image_size=side, seed=seed)
    return data.train, data.test


@pytest.fixture(scope="module")
def made():
    return digit_scenes((120, 40))


def test_scenes_have_one_to_four_digits_inside_of_the_canvas(made):
    for split, count in zip(made, (120, 40), strict=True):
        assert len(split) == len(split.objects) == count
        assert (split.image(5).shape, split.image(5).dtype) == ((3, 96, 96), torch.uint8)
        assert {len(objects) for objects in split.objects} == {1, 2, 3, 4}
        boxes = torch.cat([objects.boxes for objects in split.objects])
        assert (boxes.min() >= 0) & (boxes.max() <= 96)
        sides = boxes[:, 2:] - boxes[:, :2]
        assert (sides[:, 1].min() >= 12) & (sides.max() <= 50)
        assert not any(objects.difficult.any() for objects in split.objects)


def test_classes_are_about_even_and_digits_overlap_now_and_then_but_little(made):
    counts = torch.cat([objects.labels for objects in made[0].objects]).bincount(minlength=10)
    assert len(counts) == 10
    assert counts.max() - counts.min() <= 4
    overlaps = [box_iou(each.boxes, each.boxes).fill_diagonal_(0).max() for each in made[0].objects]
    assert 0 < max(overlaps) <= 0.2


def test_the_seed_decides_everything(made, untouched_random_state):
    again, other = digit_scenes((15, 9)), digit_scenes((15, 9), seed=4)
    for one, two, three in zip(made, again, other, strict=True):
        # The first scenes do not depend on how many follow.
        for row, objects in enumerate(two.objects):
            assert torch.equal(one.image(row), two.image(row))
            assert all(map(torch.equal, vars(one.objects[row]).values(), vars(objects).values()))
            assert not torch.equal(two.image(row), three.image(row))


def test_training_scenes_show_training_digits_and_test_scenes_test_digits(monkeypatch):
    wide, tall = torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.zeros(10, 1, 8, 8, dtype=torch.uint8)
    wide[:, :, 3:5], tall[:, :, :, 3:5] = 255, 255
    labels = torch.arange(10)
    data = ImageData("bars", wide, labels, tall, labels, tuple("0123456789"))
    monkeypatch.setattr(scenes, "load_digits_dataset", lambda: data)
    train, test = digit_scenes((20, 20))
    for split, wider in ((train, True), (test, False)):
        sides = torch.cat([objects.boxes[:, 2:] - objects.boxes[:, :2] for objects in split.objects])
        assert ((sides[:, 0] > sides[:, 1]) == wider).all()


def test_boxes_are_tight_around_the_ink():
    generator = np.random.default_rng(0)
    digits = load_digits_dataset().train_images[:60, 0].numpy()
    for digit in digits:
        ink = ink_of(digit, int(generator.integers(16, 41)), generator)
        strong = ink >= INK
        assert all(side.any() for side in (strong[0], strong[-1], strong[:, 0], strong[:, -1]))
        canvas = np.full((96, 96, 3), 120, dtype=np.float32)
        paste(canvas, ink, (20, 31), generator)
        rows, columns = np.nonzero(np.abs(canvas - 120).max(axis=2) > 10)
        height, width = ink.shape
        assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (20, 31, 20 + width, 31 + height)


def test_a_box_holds_more_contrast_than_the_ground(made):
    """The pixels in a box vary more than those of a scene elsewhere: the boxes are where the digits are."""
    inside, outside = [], []
    for row, objects in enumerate(made[0].objects):
        image = made[0].image(row).float()
        covered = torch.zeros(96, 96, dtype=torch.bool)
        for x1, y1, x2, y2 in objects.boxes.int().tolist():
            covered[y1:y2, x1:x2] = True
            inside.append(float(image[:, y1:y2, x1:x2].std(dim=(1, 2)).mean()))
        outside.append(float(image[:, ~covered].std(dim=1).mean()))
    assert np.mean(inside) > 1.3 * np.mean(outside)


def test_scrambled_digits_keep_their_ink_and_lose_their_shape():
    generator = np.random.default_rng(0)
    digit = load_digits_dataset().train_images[0, 0].numpy()
    scrambled = scenes._scrambled(digit, generator)
    assert sorted(scrambled.flatten()) == sorted(digit.flatten())
    assert (scrambled != digit).mean() > 0.3


def test_the_smallest_canvas_has_room():
    train, _ = digit_scenes((150, 1), side=48)
    assert all(len(objects) >= 1 for objects in train.objects)
