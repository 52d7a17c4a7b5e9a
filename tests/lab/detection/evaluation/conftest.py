"""Two small detectors, before and after a task, images they look at, and methods: shared by these tests."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from elign.lab.detection.config import TREE
from elign.lab.detection.data import Objects
from elign.lab.detection.detector import make_detector
from elign.lab.detection.region_methods import RegionMethods

KNOWN, NEW = 2, 2
QUICK = TREE.compose([]).aligner.replace(iterations=30, hidden=(16,), steps=5, learning_rate=5e-3, step_size=0.5)


def make_images():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, 64, 80, generator=generator), torch.rand(3, 72, 60, generator=generator)]


@torch.no_grad()
def spread(layer, latents, width):
    """Untrained heads say much the same of every region: centre and widen what this one says of these."""
    layer.weight.mul_(width / (latents @ layer.weight.t()).std(dim=0).unsqueeze(1))
    layer.bias.copy_(-(latents.mean(dim=0) @ layer.weight.t()))


def make_pair(**changes):
    """A detector of two classes and, after a task that brought two more, one whose weights have drifted."""
    changes = {"proposals_test": (60, 20), "score_threshold": 0.1, **changes}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        previous = make_detector("tiny-c4", min_size=64, max_size=96, **changes)
        previous.grow(KNOWN)
        current = deepcopy(previous)
        current.grow(NEW)
        for parameter in current.parameters():
            parameter.data.add_(0.1 * parameter.data.std(correction=0) * torch.randn_like(parameter))
    for detector in (previous, current):
        with torch.no_grad():
            latents = detector.eval().regions(make_images()).latents
        spread(detector.predictor.score, latents, width=1.5)
        spread(detector.predictor.box, latents, width=0.3)
    return previous, current


@pytest.fixture(scope="session")
def world():
    """Detectors, images, their regions under the current detector, objects on some of the regions, and methods."""
    previous, current = make_pair()
    images = make_images()
    with torch.no_grad():
        regions = current.regions(images)
    # Regions themselves are the objects, so that an untrained network has something to find: two old, two new.
    objects = [
        Objects(boxes[[0, 5]], torch.tensor([number, KNOWN + number]), torch.tensor([False, False]))
        for number, boxes in enumerate(regions.boxes)
    ]
    # As if all latents had drifted by one vector, longer than they differ from each other.
    drift = torch.randn(regions.latents.shape[1], generator=torch.Generator().manual_seed(2))
    pairs = regions.latents + regions.latents.std(dim=0).mean() * drift, regions.latents
    methods = RegionMethods(*pairs, old_classes=KNOWN, settings=QUICK, seed=3)
    return SimpleNamespace(
        previous=previous,
        current=current,
        images=images,
        regions=regions,
        objects=objects,
        methods=methods,
        old_classes=KNOWN,
        make_pair=make_pair,
        settings=QUICK,
    )
