from __future__ import annotations

import pytest
import torch

from elign.lab.detection.data.split import Objects
from elign.lab.detection.evaluation.matching import old_regions
from elign.lab.evaluation.errors import EvaluationError


def image(boxes, labels, difficult=None):
    return Objects(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(difficult or [False] * len(labels), dtype=torch.bool),
    )


def regions(*boxes):
    return torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)


def test_regions_on_old_objects():
    first = image([[0, 0, 10, 10], [20, 0, 30, 10]], [1, 2])
    second = image([[0, 0, 10, 10]], [0], [True])
    proposed = [
        regions([0, 0, 10, 5], [0, 0, 10, 4.9], [20, 0, 30, 10], [50, 50, 60, 60]),  # overlaps 0.5, 0.49, 1, 0
        regions(),
        regions([1, 0, 10, 10]),
    ]
    old = old_regions(proposed, [first, image([], []), second], known=2)
    assert old.tolist() == [True, False, False, False, True]
    assert old.dtype == torch.bool
    assert old_regions(proposed, [first, image([], []), second], known=3)[2]
    assert old_regions(proposed, [first, image([], []), second], known=2, threshold=0.49)[1]


def test_the_best_match_decides_not_any_match():
    # The region overlaps the old object by 10/18 (enough) and the new one by more.
    truth = image([[0, 0, 10, 18], [0, 0, 10, 11]], [0, 5])
    assert old_regions([regions([0, 0, 10, 10])], [truth], known=5).tolist() == [False]
    assert old_regions([regions([0, 0, 10, 10])], [truth.of(range(5))], known=5).tolist() == [True]


def test_images_without_objects_or_regions():
    assert old_regions([regions([0, 0, 1, 1])], [image([], [])], known=1).tolist() == [False]
    assert old_regions([regions()], [image([[0, 0, 1, 1]], [0])], known=1).shape == (0,)


def test_images_must_be_the_same():
    with pytest.raises(EvaluationError, match="1 images"):
        old_regions([regions()], [], known=1)
