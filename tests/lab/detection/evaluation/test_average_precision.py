"""Average precision: cases worked out by hand, and a slow computation of its own by the definition."""

from __future__ import annotations

import random

import pytest
import torch

from elign.lab.detection.data.split import Objects
from elign.lab.detection.evaluation.average_precision import Detections, average_precisions
from elign.lab.evaluation.errors import EvaluationError
from elign.utils.errors import OptionError

A, B, C = (0, 0, 10, 10), (20, 20, 30, 30), (40, 40, 50, 50)
NOWHERE = (70, 70, 80, 80)
METHODS = ("area", "11-point")


def objects(*entries):
    """Entries are (box, label) or (box, label, difficult)."""
    return Objects(
        boxes=torch.tensor([entry[0] for entry in entries], dtype=torch.float32).reshape(-1, 4),
        labels=torch.tensor([entry[1] for entry in entries], dtype=torch.int64),
        difficult=torch.tensor([len(entry) > 2 and entry[2] for entry in entries], dtype=torch.bool),
    )


def found(*entries):
    """Entries are (box, label, score)."""
    return Detections(
        boxes=torch.tensor([entry[0] for entry in entries], dtype=torch.float32).reshape(-1, 4),
        scores=torch.tensor([entry[2] for entry in entries], dtype=torch.float32),
        labels=torch.tensor([entry[1] for entry in entries], dtype=torch.int64),
    )


def both(detections, truth, **options):
    options = {"classes": 1, **options}
    return [average_precisions(detections, truth, method=method, **options)[0] for method in METHODS]


def test_right_wrong_right_of_three():
    # right, wrong, right: recalls 1/3, 1/3, 2/3, precisions 1, 1/2, 2/3; one object is never found.
    # Area: 1/3 * 1 + 1/3 * 2/3 = 5/9. Eleven points: recalls 0 to 0.3 have 1, 0.4 to 0.6 have 2/3, the other four 0:
    # (4 * 1 + 3 * 2/3) / 11 = 6/11.
    detections = [found((A, 0, 0.9), (NOWHERE, 0, 0.8), (B, 0, 0.7))]
    assert both(detections, [objects((A, 0), (B, 0), (C, 0))]) == pytest.approx([5 / 9, 6 / 11])


def test_scores_rank_detections_of_all_images_together():
    # The second image's wrong detection comes between the two right ones, whose order is not that of the images.
    # wrong, right, right of two: precisions 0, 1/2, 2/3, so 2/3 everywhere.
    detections = [found((A, 0, 0.3)), found((NOWHERE, 0, 0.9), (B, 0, 0.5))]
    assert both(detections, [objects((A, 0)), objects((B, 0))]) == pytest.approx([2 / 3, 2 / 3])


def test_precision_is_the_best_at_any_higher_recall():
    # right, wrong, wrong, right, right of three: precisions 1, 1/2, 1/3, 1/2, 3/5; at recall 2/3 it counts as 3/5.
    # Area: (1 + 3/5 + 3/5) / 3 = 11/15. Eleven points: 4 of 1 and 7 of 3/5: 8.2 / 11.
    detections = [
        found((A, 0, 0.9), (NOWHERE, 0, 0.8), (NOWHERE, 0, 0.7), (B, 0, 0.6), (C, 0, 0.5)),
    ]
    assert both(detections, [objects((A, 0), (B, 0), (C, 0))]) == pytest.approx([11 / 15, 8.2 / 11])


def test_second_detection_of_an_object_is_wrong():
    # right, wrong, right of two: area (1 + 2/3) / 2 = 5/6; eleven points: 6 of 1, 5 of 2/3: (6 + 10/3) / 11 = 28/33.
    detections = [found((A, 0, 0.9), ((0, 0, 10, 9), 0, 0.8), (B, 0, 0.7))]
    assert both(detections, [objects((A, 0), (B, 0))]) == pytest.approx([5 / 6, 28 / 33])


def test_an_object_that_is_taken_does_not_hand_a_detection_on_to_the_next_one():
    # The detection overlaps both objects by more than one half, the first by more; so does the second detection, which
    # therefore is wrong though the other object is free (COCO would give it that one).
    near = (0, 0, 10, 14)
    detections = [found((A, 0, 0.9), ((0, 0, 10, 11), 0, 0.8))]
    assert both(detections, [objects((A, 0), (near, 0))]) == pytest.approx([1 / 2, 6 / 11])


def test_difficult_objects_need_not_be_found_and_their_detections_do_not_count():
    # Both detections of the difficult object vanish: right of one, whatever their scores.
    detections = [found((B, 0, 0.9), (B, 0, 0.8), (A, 0, 0.7))]
    assert both(detections, [objects((A, 0), (B, 0, True))]) == [1, 1]
    assert both(detections, [objects((A, 0), (B, 0))]) != [1, 1]
    # Too far off the difficult object: wrong, so wrong, right of one.
    far = (20, 20, 30, 24)
    assert both([found((far, 0, 0.9), (A, 0, 0.7))], [objects((A, 0), (B, 0, True))]) == [0.5, 0.5]


def test_classes_without_an_object_that_counts_have_no_value():
    truth = [objects((A, 0), (B, 1, True), (C, 3))]
    assert average_precisions([found((A, 0, 0.5), (A, 2, 0.5))], truth, classes=3) == [1, None, None]


def test_an_object_of_another_class_is_not_found():
    assert average_precisions([found((A, 1, 0.9))], [objects((A, 0), (B, 1))], classes=2) == [0, 0]


def test_overlap_of_exactly_the_threshold_is_enough():
    # 10 x 10 and 10 x 5: intersection over union 1/2.
    half = (0, 0, 10, 5)
    assert both([found((half, 0, 0.9))], [objects((A, 0))]) == [1, 1]
    assert both([found((half, 0, 0.9))], [objects((A, 0))], threshold=0.51) == [0, 0]


def test_pixels_counts_the_last_one():
    # First and last pixel 0 and 9: ten of them. With 0 to 4, five: one half. Continuous, 9 * 4 / 81 is less.
    assert both([found(((0, 0, 9, 4), 0, 0.9))], [objects(((0, 0, 9, 9), 0))], pixels=True) == [1, 1]
    assert both([found(((0, 0, 9, 4), 0, 0.9))], [objects(((0, 0, 9, 9), 0))]) == [0, 0]
    assert both([found(((3, 3, 3, 3), 0, 0.9))], [objects(((3, 3, 3, 3), 0))], pixels=True, threshold=1) == [1, 1]


def test_recall_of_three_tenths_reaches_three_tenths():
    # Three of ten found, then nothing: eleven points see recalls 0, 0.1, 0.2 and 0.3.
    boxes = [(20 * i, 0, 20 * i + 10, 10) for i in range(10)]
    detections = [found(*((box, 0, 0.9) for box in boxes[:3]))]
    assert both(detections, [objects(*((box, 0) for box in boxes))]) == pytest.approx([3 / 10, 4 / 11])


def test_equal_scores_keep_the_order_of_images():
    truth = [objects((A, 0)), objects((B, 0))]
    wrong_first = [found((NOWHERE, 0, 0.5)), found((B, 0, 0.5))]
    assert both(wrong_first, truth) == pytest.approx([1 / 4, 3 / 11])
    assert both(wrong_first[::-1], truth[::-1]) == pytest.approx([1 / 2, 6 / 11])


def test_nothing_found_and_nothing_there():
    assert both([found()], [objects((A, 0))]) == [0, 0]
    assert both([found((A, 0, 0.9))], [objects()]) == [None, None]
    assert both([], []) == [None, None]


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


def test_shapes_are_checked():
    with pytest.raises(EvaluationError, match="boxes"):
        Detections(torch.zeros(2, 4), torch.zeros(1), torch.zeros(1, dtype=torch.int64))


def slow_overlap(first, second):
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    common = max(width, 0) * max(height, 0)
    area = (first[2] - first[0]) * (first[3] - first[1]) + (second[2] - second[0]) * (second[3] - second[1])
    return common / (area - common)


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
            if other == image and slow_overlap(box, other_box) > best_overlap:
                best, best_overlap = number, slow_overlap(box, other_box)
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
        expected = [slow(detections, truth, label, threshold, method) for label in range(2)]
        assert [value is None for value in fast] == [value is None for value in expected], seed
        known = [value for value in expected if value is not None]
        assert [value for value in fast if value is not None] == pytest.approx(known), seed
