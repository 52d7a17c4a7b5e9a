from __future__ import annotations

import json

import pytest
import torch

from elign.lab.detection.data.split import Objects
from elign.lab.detection.evaluation.average_precision import Detections
from elign.lab.detection.evaluation.reading_images import Collected, read_images
from elign.lab.detection.evaluation.scoring import class_facts, coco_facts, score_readings
from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.results import read_results, write_results


def boxes(places):
    return torch.tensor([[20.0 * place, 0.0, 20.0 * place + 10, 10.0] for place in places]).reshape(-1, 4)


def truth(*labels):
    """One object of each label, side by side."""
    count = len(labels)
    return Objects(boxes(range(count)), torch.tensor(labels), torch.zeros(count, dtype=torch.bool))


def found(*entries):
    """Entries are (place, label, score)."""
    places, labels, scores = zip(*entries, strict=True)
    return Detections(boxes(places), torch.tensor(scores), torch.tensor(labels))


# Classes 0 and 1 (task 1), 2 and 3 (task 2), 4 (task 3, not seen after task 2). Nobody has an object of class 3.
OBJECTS = [truth(0, 1, 2, 4), truth(0)]
DETECTIONS = [
    # Class 0: right, right of two: 1. Class 1: wrong, right of one: 1/2. Class 2: right of one, 1. Class 3: nothing.
    found((0, 0, 0.9), (9, 1, 0.8), (1, 1, 0.7), (2, 2, 0.6), (3, 3, 0.5)),
    found((0, 0, 0.9)),
]


def test_rows_are_means_over_classes():
    gate = Collected(True, True, DETECTIONS, regions=40, moved=10.0, judged=40, agreed=30)
    (row,), precisions = score_readings({"eli/by-energy": gate}, OBJECTS, task_sizes=[2, 2])
    assert precisions == {"eli/by-energy": [1, 0.5, 1, None]}
    assert (row.task, row.reading, row.classifier, row.label_free) == (2, "eli/by-energy", "detector", True)
    assert (row.accuracy, row.old, row.new) == pytest.approx((2.5 / 3, 0.75, 1))
    assert row.by_task == pytest.approx((0.75, 1))
    assert (row.gate_accuracy, row.aligned_share, row.among_old) == (0.75, 0.25, None)


def test_cocos_numbers_are_plain_values():
    # elign.lab.detection is imported above: it makes torchvision, which torchmetrics imports, importable.
    pytest.importorskip("torchmetrics", reason="the extra coco is not installed")
    pytest.importorskip("pycocotools", reason="the extra coco is not installed")
    facts = coco_facts({"base": Collected(True, detections=DETECTIONS)}, OBJECTS, classes=4)
    assert json.loads(json.dumps(facts)) == facts
    found = facts["coco"]["base"]
    # All boxes are exact, so every overlap says the same; class 3 has no object.
    assert found["by_class"] == pytest.approx([1, 0.5, 1, None], abs=1e-6)
    assert [found[name] for name in ("AP", "AP50", "AP75")] == pytest.approx([2.5 / 3] * 3)


def test_the_first_task_has_neither_old_nor_new():
    (row,), _ = score_readings({"base": Collected(True, detections=DETECTIONS)}, OBJECTS, task_sizes=[4])
    assert (row.task, row.old, row.new, row.gate_accuracy, row.aligned_share) == (1, None, None, None, 0)
    assert row.by_task == pytest.approx((row.accuracy,))


def test_method_and_threshold_are_handed_on():
    # Class 1 with eleven points: one half at each. Class 0 with one of its two: 6 of 11 points instead of one half.
    one = [DETECTIONS[0], Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))]
    collected = {"base": Collected(True, detections=one)}
    _, precisions = score_readings(collected, OBJECTS, task_sizes=[2, 2], method="11-point")
    assert precisions["base"][:2] == pytest.approx([6 / 11, 0.5])
    moved = [Detections(one[0].boxes + 1, one[0].scores, one[0].labels), one[1]]
    _, precisions = score_readings({"base": Collected(True, detections=moved)}, OBJECTS, task_sizes=[4], threshold=0.9)
    assert precisions["base"] == [0, 0, 0, None]


def test_a_task_without_objects_has_no_value():
    collected = {"base": Collected(True, detections=DETECTIONS)}
    with pytest.raises(EvaluationError, match="no test object of task 2"):
        score_readings(collected, OBJECTS, task_sizes=[3, 1])


def test_rows_of_a_detector_go_into_the_results_and_come_back(world, tmp_path):
    collected = read_images(
        world.current, [world.images], world.readings, objects=world.objects, previous=world.previous
    )
    rows, precisions = score_readings(collected, world.objects, task_sizes=[2, 2])
    assert [row.reading for row in rows] == list(world.readings.names)
    assert {row.reading for row in rows if not row.label_free} == {
        name for name in world.readings.names if "oracle" in name or name == "previous-model"
    }
    assert len({row.accuracy for row in rows}) > 3, "the readings are all alike"
    task = {"task": 2, **class_facts(precisions)}
    path = write_results(tmp_path, rows, {}, tasks=[task])
    results = read_results(path)
    assert results.rows == rows
    assert results.tasks == [task]
    assert all(len(values) == 4 for values in results.tasks[0]["average_precision"].values())
