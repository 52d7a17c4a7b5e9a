"""Average precision: cases worked out by hand, a slow computation by the definition, COCO, and rows."""

from __future__ import annotations

import importlib.util
import json
import random

import pytest
import torch
from tests.lab.detection.annotating import found, objects, plain_overlap

from elign.lab.detection.average_precision import (
    Detections,
    average_precisions,
    coco_average_precisions,
    coco_metadata,
    score_methods,
)
from elign.lab.detection.data import Objects
from elign.lab.detection.region_methods import Collected
from elign.lab.evaluation.inputs import EvaluationError
from elign.utils.errors import OptionError

A, B, C = (0, 0, 10, 10), (20, 20, 30, 30), (40, 40, 50, 50)
NOWHERE = (70, 70, 80, 80)
METHODS = ("area", "11-point")


ROW = [(20 * place, 0, 20 * place + 10, 10) for place in range(10)]


@pytest.mark.parametrize(
    ("detections", "truth", "area", "eleven"),
    [
        # Right, wrong, right of three: recalls 1/3, 1/3, 2/3, precisions 1, 1/2, 2/3. Area: 1/3 * 1 + 1/3 * 2/3.
        # Eleven points: recalls 0 to 0.3 have 1, 0.4 to 0.6 have 2/3, the other four 0.
        (found((A, 0, 0.9), (NOWHERE, 0, 0.8), (B, 0, 0.7)), objects((A, 0), (B, 0), (C, 0)), 5 / 9, 6 / 11),
        # Three of ten found, then nothing: eleven points see recalls 0, 0.1, 0.2 and 0.3.
        (found(*((box, 0, 0.9) for box in ROW[:3])), objects(*((box, 0) for box in ROW)), 3 / 10, 4 / 11),
    ],
)
def test_by_hand(detections, truth, area, eleven):
    results = [average_precisions([detections], [truth], classes=1, method=method)[0] for method in METHODS]
    assert results == pytest.approx([area, eleven])


def test_classes_without_an_object_that_counts_have_no_value():
    truth = [objects((A, 0), (B, 1, True), (C, 3))]
    assert average_precisions([found((A, 0, 0.5), (A, 2, 0.5))], truth, classes=3) == [1, None, None]


def test_a_detectors_output_loses_the_background():
    output = {"boxes": torch.tensor([A]).float(), "scores": torch.tensor([0.5]), "labels": torch.tensor([1])}
    assert average_precisions([Detections.of(output)], [objects((A, 0))], classes=1) == [1]


@pytest.mark.parametrize(
    ("detections", "truth", "options", "says"),
    [
        ([found()], [], {}, "1 images"),
        ([found((A, 1, 0.5))], [objects((A, 0))], {}, "class 1"),
        ([found((A, -1, 0.5))], [objects((A, 0))], {}, "class -1"),
        ([found((A, 0, float("nan")))], [objects((A, 0))], {}, "NaN"),
        ([found()], [objects()], {"method": "10-point"}, "method"),
        ([found()], [objects()], {"threshold": 0.0}, "threshold"),
    ],
)
def test_what_does_not_fit_is_named(detections, truth, options, says):
    with pytest.raises((EvaluationError, OptionError), match=says):
        average_precisions(detections, truth, classes=1, **options)


def slow(detections, truth, label, threshold, method):
    """By the definition: `detections` are (image, box, label, score), `truth` (image, box, label, difficult)."""
    mine = [t for t in truth if t[2] == label]
    total = sum(not t[3] for t in mine)
    if not total:
        return None
    taken, points, right, wrong = set(), [], 0, 0
    for image, box, _, _ in sorted((d for d in detections if d[2] == label), key=lambda d: -d[3]):
        best, best_overlap = None, -1
        for number, (other, other_box, _, _) in enumerate(mine):
            if other == image and plain_overlap(box, other_box) > best_overlap:
                best, best_overlap = number, plain_overlap(box, other_box)
        if best is not None and best_overlap >= threshold:
            if mine[best][3]:
                continue
            if best not in taken:
                taken.add(best)
                right += 1
            else:
                wrong += 1
        else:
            wrong += 1
        points.append((right, right / (right + wrong)))
    if method == "11-point":
        return sum(max((p for r, p in points if 10 * r >= level * total), default=0) for level in range(11)) / 11
    return sum(max((p for r, p in points if r >= level), default=0) for level in range(1, total + 1)) / total


def random_scene(draw):
    """Few places, few scores: many duplicates, ties and partial overlaps, on three images and of two classes."""

    def box():
        x, y = draw.randint(0, 3), draw.randint(0, 3)
        return x, y, x + draw.randint(1, 3), y + draw.randint(1, 3)

    detections = [
        (draw.randrange(3), box(), draw.randrange(2), draw.choice([0.25, 0.5, 0.75])) for _ in range(draw.randrange(15))
    ]
    truth = [(draw.randrange(3), box(), draw.randrange(2), draw.random() < 0.3) for _ in range(draw.randrange(8))]
    return sorted(detections, key=lambda d: d[0]), truth


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.75])
def test_equals_the_definition(threshold, method):
    for seed in range(60):
        detections, truth = random_scene(random.Random(seed))
        fast = average_precisions(
            [found(*(d[1:] for d in detections if d[0] == image)) for image in range(3)],
            [objects(*(t[1:] for t in truth if t[0] == image)) for image in range(3)],
            classes=2,
            threshold=threshold,
            method=method,
        )
        assert fast == pytest.approx([slow(detections, truth, label, threshold, method) for label in range(2)]), seed


needs_coco = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torchmetrics", "pycocotools"))), reason="the extra coco is not installed"
)


def scene(*, right, wrong, seed, classes=2):
    """An image of five objects of each class, of which some are found, with wrong detections among the right ones."""
    generator = torch.Generator().manual_seed(seed)
    # Boxes that do not touch each other, so that a detection can only mean one of them.
    boxes = torch.tensor([[40.0 * i, 0.0, 40.0 * i + 20, 20.0] for i in range(5 * classes)])
    labels = torch.arange(classes).repeat_interleave(5)
    hit = torch.cat([torch.arange(5)[:right] + 5 * label for label in range(classes)])
    missed = torch.arange(classes).repeat_interleave(wrong)
    detections = Detections(
        boxes=torch.cat([boxes[hit] + torch.rand(len(hit), 4, generator=generator), boxes[missed] + 500]),
        scores=torch.rand(len(hit) + len(missed), generator=generator),
        labels=torch.cat([labels[hit], missed]),
    )
    return detections, Objects(boxes, labels, torch.zeros(len(labels), dtype=torch.bool))


@needs_coco
def test_equals_the_area_where_both_definitions_coincide():
    # All wrong detections first, then all objects: precision is 10 / 13 at every recall, for 101 points and the area.
    scenes = [scene(right=5, wrong=0, seed=seed) for seed in (0, 1)]
    scenes.append((found(*((box, 0, 2.0) for box in ROW[-3:])), objects()))
    detections, truth = zip(*scenes, strict=True)
    assert coco_average_precisions(detections, truth, classes=3)["AP50"] == pytest.approx([10 / 13, 1, None])
    assert average_precisions(detections, truth, classes=3) == pytest.approx([10 / 13, 1, None])


@needs_coco
@pytest.mark.parametrize("seed", range(3))
def test_is_near_the_area_else(seed):
    scenes = [scene(right=4, wrong=2, seed=10 * seed + i) for i in range(6)]
    detections, truth = zip(*scenes, strict=True)
    coco = coco_average_precisions(detections, truth, classes=2)
    area = average_precisions(detections, truth, classes=2)
    # 101 points of a falling curve are off its area by at most one of them.
    assert coco["AP50"] == pytest.approx(area, abs=1 / 100)
    assert 0 < area[0] < 1
    at_75 = average_precisions(detections, truth, classes=2, threshold=0.75)
    assert coco["AP75"] == pytest.approx(at_75, abs=1 / 100)


@needs_coco
@pytest.mark.parametrize(("height", "expected"), [(15.5, [0.6, 1, 1]), (14.4, [0.5, 1, 0])])
def test_mean_is_over_ten_overlaps(height, expected):
    # Overlaps of 0.775 and 0.72 with 20 x 20: enough for the thresholds up to 0.75, and for those up to 0.7.
    coco = coco_average_precisions([found(((0, 0, 20, height), 0, 0.9))], [objects(((0, 0, 20, 20), 0))], classes=1)
    assert [coco[name][0] for name in ("AP", "AP50", "AP75")] == pytest.approx(expected)


@needs_coco
def test_difficult_objects_need_not_be_found():
    detections, truth = scene(right=4, wrong=0, seed=0, classes=1)
    assert coco_average_precisions([detections], [truth], classes=1)["AP50"][0] < 1
    truth = Objects(truth.boxes, truth.labels, torch.tensor([False] * 4 + [True]))
    assert coco_average_precisions([detections], [truth], classes=1)["AP50"] == pytest.approx([1])


@needs_coco
def test_nothing_there():
    there = scene(right=1, wrong=0, seed=0, classes=1)[1]
    for detections, truth, value in (([], [], None), ([found()], [objects()], None), ([found()], [there], 0)):
        assert coco_average_precisions(detections, truth, classes=1)["AP"] == [value]


# Classes 0 and 1 (task 1), 2 and 3 (task 2), 4 (task 3, not seen after task 2). Nobody has an object of class 3.
OBJECTS = [objects(*zip(ROW, (0, 1, 2, 4), strict=False)), objects((ROW[0], 0))]
DETECTIONS = [
    # Class 0: right, right of two: 1. Class 1: wrong, right of one: 1/2. Class 2: right of one, 1. Class 3: nothing.
    found((ROW[0], 0, 0.9), (ROW[9], 1, 0.8), (ROW[1], 1, 0.7), (ROW[2], 2, 0.6), (ROW[3], 3, 0.5)),
    found((ROW[0], 0, 0.9)),
]


def test_rows_are_means_over_classes():
    gate = Collected(True, True, DETECTIONS, regions=40, moved=10.0, judged=40, agreed=30)
    (row,), precisions = score_methods({"eli/by-energy": gate}, OBJECTS, task_sizes=[2, 2])
    assert precisions == {"eli/by-energy": [1, 0.5, 1, None]}
    assert (row.task, row.method, row.classifier, row.label_free) == (2, "eli/by-energy", "detector", True)
    assert (row.accuracy, row.old, row.new) == pytest.approx((2.5 / 3, 0.75, 1))
    assert row.by_task == pytest.approx((0.75, 1))
    assert (row.gate_accuracy, row.aligned_share, row.among_old) == (0.75, 0.25, None)


@needs_coco
def test_cocos_numbers_are_plain_values():
    metadata = coco_metadata({"base": Collected(True, detections=DETECTIONS)}, OBJECTS, classes=4)
    assert json.loads(json.dumps(metadata)) == metadata
    found = metadata["coco"]["base"]
    # All boxes are exact, so every overlap says the same; class 3 has no object.
    assert found["by_class"] == pytest.approx([1, 0.5, 1, None], abs=1e-6)
    assert [found[name] for name in ("AP", "AP50", "AP75")] == pytest.approx([2.5 / 3] * 3)


def test_the_first_task_has_neither_old_nor_new():
    base = {"base": Collected(True, detections=DETECTIONS)}
    (row,), _ = score_methods(base, OBJECTS, task_sizes=[4])
    assert (row.task, row.old, row.new, row.gate_accuracy, row.aligned_share) == (1, None, None, None, 0)
    assert row.by_task == pytest.approx((row.accuracy,))
    with pytest.raises(EvaluationError, match="no test object"):
        score_methods(base, OBJECTS, task_sizes=[3, 1])


def test_method_and_threshold_are_handed_on():
    # Class 1 with eleven points: one half at each. Class 0 with one of its two: 6 of 11 points instead of one half.
    one = [DETECTIONS[0], found()]
    collected = {"base": Collected(True, detections=one)}
    _, precisions = score_methods(collected, OBJECTS, task_sizes=[2, 2], method="11-point")
    assert precisions["base"][:2] == pytest.approx([6 / 11, 0.5])
    moved = [Detections(one[0].boxes + 1, one[0].scores, one[0].labels), one[1]]
    _, precisions = score_methods({"base": Collected(True, detections=moved)}, OBJECTS, task_sizes=[4], threshold=0.9)
    assert precisions["base"] == [0, 0, 0, None]
