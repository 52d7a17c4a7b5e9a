"""A tiny detector on small random images: 2 classes first, then 1 more."""

import pytest
import torch

from elign.lab.detection.detector import make_detector
from elign.lab.detection.learners import DETECTION_LEARNERS

SMALL = {
    "min_size": 64,
    "max_size": 64,
    "anchors": (16, 32),
    "proposals_train": (60, 24),
    "proposals_test": (60, 24),
    "region_samples": 16,
    "rois": 16,
    "pool": 4,
}


@pytest.fixture
def make():
    """Makes a learner that has grown for tasks of these sizes, of which the first detector is the same each time."""

    def made(name, tasks=(2, 1), options=None, seed=0, **changes):
        torch.manual_seed(seed)
        settings = {**SMALL, "unknown": name == "ore", **changes}
        learner = DETECTION_LEARNERS[name](lambda: make_detector("tiny-c4", **settings), options=options)
        for size in tasks:
            learner.grow(size)
        return learner

    return made


@pytest.fixture
def batch():
    """Gives a batch of three images, with objects of the classes with these labels in turn."""

    def given(*labels, seed=1):
        generator = torch.Generator().manual_seed(seed)
        images = [torch.rand(3, 64, 64, generator=generator) for _ in range(3)]
        boxes = torch.tensor([[8.0, 8.0, 30.0, 34.0], [30.0, 20.0, 60.0, 50.0]])
        kinds = [torch.tensor([labels[(i + j) % len(labels)] for j in range(2)]) for i in range(3)]
        return images, [{"boxes": boxes.clone(), "labels": kind} for kind in kinds]

    return given


@pytest.fixture
def train():
    """Takes steps of SGD as the loop does, and gives the terms of the last one."""

    def taken(learner, images, targets, steps=2, rate=0.01, first=1):
        torch.manual_seed(3)
        learner.train()
        optimizer = torch.optim.SGD(learner.groups(), lr=rate, momentum=0.9, weight_decay=1e-2)
        rows = torch.arange(len(images))

        def fetch(chosen):
            return [images[row] for row in chosen], [targets[row] for row in chosen]

        for step in range(first, first + steps):
            optimizer.zero_grad()
            terms = learner(images, targets)
            torch.stack([*terms.values()]).sum().backward()
            learner.before_step()
            optimizer.step()
            learner.after_step(step, rows, targets, fetch, rate)
        return terms

    return taken
