"""Coloured squares on dark noise, and small detectors."""

from __future__ import annotations

import pytest
import torch

from elign.lab.detection.detector import make_detector


def _draw(squares):
    """Class c is a square that is bright in colour channel c."""
    image = torch.rand(3, 96, 96, generator=torch.Generator().manual_seed(4)) * 0.2
    for channel, (x1, y1, x2, y2) in squares.items():
        image[channel, y1:y2, x1:x2] = 0.9
    return image, {"boxes": torch.tensor([*squares.values()]).float(), "labels": torch.tensor([*squares]) + 1}


@pytest.fixture
def scenes():
    """Two images of 96 x 96 with two squares each, and their targets."""
    squares = {0: (8, 10, 34, 36), 1: (52, 48, 84, 80)}, {2: (40, 12, 76, 48), 0: (10, 56, 38, 84)}
    return [*zip(*map(_draw, squares), strict=True)]


@pytest.fixture
def uneven(scenes):
    """Images of several sizes, one of them without an object."""
    images, targets = scenes
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    return [images[0], images[1][:, :90, :80], torch.rand(3, 70, 140)], [targets[0], targets[1], nothing]


@pytest.fixture
def make():
    """Makes a tiny detector with three classes, always the same one, on images of 96 pixels."""

    def maker(classes=3, **changes):
        torch.manual_seed(2)
        numbers = {"min_size": 96, "max_size": 144, "rois": 24, "proposals_train": (80, 30), "proposals_test": (80, 20)}
        detector = make_detector("tiny-c4", **{**numbers, **changes})
        if classes:
            detector.grow(classes)
        return detector

    return maker


@pytest.fixture
def loud(make):
    """Like `make`, in evaluation mode, with a head that is sure enough of something to give detections."""

    def maker(**changes):
        detector = make(**changes).eval()
        with torch.no_grad():
            detector.predictor.score.weight.normal_(std=0.5)
            detector.predictor.box.weight.normal_(std=0.05)
        return detector

    return maker
