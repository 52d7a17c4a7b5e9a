from __future__ import annotations

import sys

import pytest
import torch

from elign.lab.detection.data.split import Objects
from elign.lab.detection.evaluation.average_precision import Detections, average_precisions
from elign.lab.detection.evaluation.coco_average_precision import coco_average_precisions, require_coco
from elign.lab.extras import MissingExtraError

# elign.lab.detection first: it makes torchvision, which torchmetrics imports, importable where it lacks operators.
pytest.importorskip("torchmetrics", reason="the extra coco is not installed")
pytest.importorskip("pycocotools", reason="the extra coco is not installed")


def grid(count):
    """Boxes that do not touch each other, so that a detection can only mean one of them."""
    return torch.tensor([[40.0 * i, 0.0, 40.0 * i + 20, 20.0] for i in range(count)])


def scene(*, right, wrong, seed, classes=2):
    """An image of five objects of each class, of which some are found, with wrong detections among the right ones."""
    generator = torch.Generator().manual_seed(seed)
    boxes, labels = grid(5 * classes), torch.arange(classes).repeat_interleave(5)
    hit = torch.cat([torch.arange(5)[:right] + 5 * label for label in range(classes)])
    missed = torch.arange(classes).repeat_interleave(wrong)
    found = Detections(
        boxes=torch.cat([boxes[hit] + torch.rand(len(hit), 4, generator=generator), boxes[missed] + 500]),
        scores=torch.rand(len(hit) + len(missed), generator=generator),
        labels=torch.cat([labels[hit], missed]),
    )
    return found, Objects(boxes, labels, torch.zeros(len(labels), dtype=torch.bool))


def test_equals_the_area_where_both_definitions_coincide():
    # All wrong detections first, then all objects: precision is 10 / 13 at every recall, for 101 points and the area.
    scenes = [scene(right=5, wrong=0, seed=seed) for seed in (0, 1)]
    false = torch.full((3, 4), 900.0) + torch.tensor([0.0, 0.0, 20.0, 20.0]) + 30 * torch.arange(3).unsqueeze(1)
    scenes.append(
        (
            Detections(false, torch.full((3,), 2.0), torch.zeros(3, dtype=torch.int64)),
            Objects(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)),
        )
    )
    detections, objects = ([s[i] for s in scenes] for i in (0, 1))
    coco = coco_average_precisions(detections, objects, classes=3)
    assert coco.at_50 == pytest.approx((10 / 13, 1, None))
    assert average_precisions(detections, objects, classes=3) == pytest.approx([10 / 13, 1, None])


@pytest.mark.parametrize("seed", range(3))
def test_is_near_the_area_else(seed):
    scenes = [scene(right=4, wrong=2, seed=10 * seed + i) for i in range(6)]
    detections, objects = ([s[i] for s in scenes] for i in (0, 1))
    coco = coco_average_precisions(detections, objects, classes=2)
    area = average_precisions(detections, objects, classes=2)
    # 101 points of a falling curve are off its area by at most one of them.
    assert coco.at_50 == pytest.approx(area, abs=1 / 100)
    assert 0 < area[0] < 1
    at_75 = average_precisions(detections, objects, classes=2, threshold=0.75)
    assert coco.at_75 == pytest.approx(at_75, abs=1 / 100)


def test_mean_is_over_ten_overlaps():
    # 20 x 20 and 20 x 15.5: overlap 0.775, enough for the six thresholds 0.5, ..., 0.75.
    boxes = grid(1)
    truth = Objects(boxes, torch.tensor([0]), torch.tensor([False]))
    found = Detections(boxes - torch.tensor([0.0, 0.0, 0.0, 4.5]), torch.tensor([0.9]), torch.tensor([0]))
    coco = coco_average_precisions([found], [truth], classes=1)
    assert (coco.mean, coco.at_50, coco.at_75) == (pytest.approx((0.6,)), pytest.approx((1,)), pytest.approx((1,)))


def test_difficult_objects_need_not_be_found():
    found, truth = scene(right=4, wrong=0, seed=0, classes=1)
    difficult = torch.tensor([False] * 4 + [True])
    assert coco_average_precisions([found], [truth], classes=1).at_50[0] < 1
    truth = Objects(truth.boxes, truth.labels, difficult)
    assert coco_average_precisions([found], [truth], classes=1).at_50 == pytest.approx((1,))


def test_nothing_there():
    nothing = Objects(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool))
    empty = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    for found, truth, value in (
        ([], [], None),
        ([empty], [nothing], None),
        ([empty], [scene(right=1, wrong=0, seed=0, classes=1)[1]], 0),
    ):
        assert coco_average_precisions(found, truth, classes=1).mean == (value,)


@pytest.mark.parametrize("package", ["torchmetrics.detection", "pycocotools"])
def test_without_the_extra_the_message_says_what_to_install(monkeypatch, package):
    require_coco()
    monkeypatch.setitem(sys.modules, package, None)
    for call in (require_coco, lambda: coco_average_precisions([], [], classes=1)):
        with pytest.raises(MissingExtraError, match=r"pip install 'elign\[lab,coco\]'"):
            call()
