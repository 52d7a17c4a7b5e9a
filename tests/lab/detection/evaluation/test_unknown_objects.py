"""Telling unknown objects apart, on a detector whose logits are what the test says."""

from __future__ import annotations

import pytest
import torch

from elign.lab.detection.evaluation.unknown_objects import MEASURES, unknown_facts
from elign.lab.detection.models import make_detector, settings_of

CLASSES = 2


@pytest.fixture
def detector():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = make_detector("tiny-c4", settings=settings_of("tiny-c4", min_size=64, max_size=96, unknown=True))
        made.grow(CLASSES)
    return made


def batches(*, objects=8, labels=(1, 2, 3, 4), seed=0):
    """Images with bright squares for known classes and dark ones for those to come."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        image = torch.full((3, 64, 64), 0.5) + 0.01 * torch.rand(3, 64, 64, generator=generator)
        boxes, found = [], []
        for number in range(objects):
            x, y = 8 * number % 64, 32 * (number // 4)
            label = labels[number % len(labels)]
            image[:, y : y + 16, x : x + 8] = (1.0 if label <= CLASSES else 0.0) + 0.05 * number
            boxes.append([x, y, x + 8.0, y + 16.0])
            found.append(label)
        yield [image], [{"boxes": torch.tensor(boxes), "labels": torch.tensor(found)}]


@torch.no_grad()
def teach(detector, *, right):
    """A head whose known classes are sure of bright squares (or, if not `right`, of dark ones)."""
    latents = torch.cat([_latents(detector, batch) for batch in batches(seed=1)])
    labels = torch.cat([target["labels"] for _, targets in batches(seed=1) for target in targets])
    bright, dark = (latents[mask].mean(dim=0) for mask in (labels <= CLASSES, labels > CLASSES))
    # The first class has the logit 3 in the middle of one kind and -3 in the middle of the other.
    direction = (6 if right else -6) * (bright - dark) / (bright - dark).square().sum()
    score = detector.predictor.score
    score.weight.zero_()
    score.bias.zero_()
    score.weight[1], score.bias[1] = direction, -direction @ (bright + dark) / 2
    score.weight[-1], score.bias[-1] = -score.weight[1], -score.bias[1]


def _latents(detector, batch):
    images, targets = batch
    seen, placed = detector.eval().transform(images, targets)
    return detector.read(detector.features(seen.tensors), [placed[0]["boxes"]], seen.image_sizes).latents


def test_a_head_that_is_sure_of_its_own_classes_tells_others_apart(detector):
    teach(detector, right=True)
    facts = unknown_facts(detector, batches(seed=2), batches(seed=3))["unknown"]
    assert facts["objects"] == {"known": 8, "unknown": 8}
    assert list(facts["area_under_roc"]) == list(MEASURES)
    for name, area in facts["area_under_roc"].items():
        assert area > 0.9, name


def test_the_rule_of_ore_learns_which_energies_are_unknown_ones(detector):
    teach(detector, right=False)
    areas = unknown_facts(detector, batches(seed=2), batches(seed=3))["unknown"]["area_under_roc"]
    # It was shown which energies belong to what; the others take certainty for knowledge.
    assert areas["energy"] > 0.9
    assert max(areas[name] for name in ("free-energy", "doubt", "output")) < 0.1


@pytest.mark.parametrize("labels", [(1, 2), (3, 4)])
def test_nothing_is_said_where_one_kind_is_missing(detector, labels):
    assert unknown_facts(detector, batches(), batches(labels=labels)) == {}
    assert unknown_facts(detector, batches(labels=labels), batches()) == {}
