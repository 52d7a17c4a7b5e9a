"""Non-maximum suppression against a plain loop, and against the compiled operator where there is one."""

from __future__ import annotations

from importlib import import_module
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign import OptionError
from elign.lab.detection import compat
from elign.lab.detection.ops import nms

MODULE = import_module("elign.lab.detection.ops.nms")


def plain_nms(boxes, scores, threshold, *, rounded=float):
    """The definition, box by box in Python's numbers; `rounded` is what the tensor's type makes of an overlap."""
    kept = []
    for place in sorted(range(len(boxes)), key=lambda place: -scores[place]):
        if all(not plain_overlap(boxes[place], boxes[other], rounded) > threshold for other in kept):
            kept.append(place)
    return kept


def plain_overlap(first, second, rounded):
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    intersection = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    union = sum(areas) - intersection
    return rounded(intersection / union) if union else 0.0


def float32(number):
    return float(np.float32(number))


def random_boxes(count, *, spread, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator, dtype=dtype) * spread
    size = torch.rand(count, 2, generator=generator, dtype=dtype) * 100 + 5
    return torch.cat([corner, corner + size], dim=1), torch.rand(count, generator=generator, dtype=dtype)


# Whole numbers in a small square: many overlaps are equal to a threshold, many boxes are alike, some have no area.
a_box = st.tuples(*[st.integers(0, 6)] * 2, *[st.integers(0, 5)] * 2).map(
    lambda b: [b[0], b[1], b[0] + b[2], b[1] + b[3]]
)
scored_boxes = st.lists(st.tuples(a_box, st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=20)
thresholds = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.6, 0.7, 1.0])


@given(scored_boxes, thresholds, st.sampled_from([(256, 1024), (4, 3), (1, 1)]))
def test_is_the_plain_loop(scored, threshold, table):
    boxes, scores = [box for box, _ in scored], [score for _, score in scored]
    with mock.patch.multiple(MODULE, _ROWS=table[0], _COLUMNS=table[1]):
        kept = nms(torch.tensor(boxes, dtype=torch.float32).view(-1, 4), torch.tensor(scores), threshold)
    assert kept.dtype == torch.int64
    assert kept.tolist() == plain_nms(boxes, scores, threshold, rounded=float32)


@pytest.mark.parametrize(("spread", "threshold"), [(60, 0.3), (100, 0.7)])
def test_many_boxes_are_the_plain_loop(spread, threshold):
    boxes, scores = random_boxes(400, spread=spread, dtype=torch.float64)
    expected = plain_nms(boxes.tolist(), scores.tolist(), threshold)
    assert 1 < len(expected) < 400
    assert nms(boxes, scores, threshold).tolist() == expected


@pytest.mark.skipif(not compat.has_compiled_ops(), reason="torchvision's compiled operators do not load here")
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.7])
def test_is_the_compiled_operator(threshold):
    boxes, scores = random_boxes(3000, spread=300)
    boxes, scores = boxes.round(), (scores * 50).round()
    assert torch.equal(nms(boxes, scores, threshold), torch.ops.torchvision.nms(boxes, scores, threshold))


def test_an_overlap_equal_to_the_threshold_is_kept():
    boxes = torch.tensor([[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    assert nms(boxes, torch.tensor([1.0, 0.5]), 0.5).tolist() == [0, 1]
    assert nms(boxes, torch.tensor([1.0, 0.5]), 0.4999).tolist() == [0]


@pytest.mark.parametrize(("tenths", "kept"), [(3, [0]), (7, [0, 1])])
def test_the_threshold_is_not_rounded_as_the_overlap_is(tenths, kept):
    # In float32, 3/10 is a little more than the number 0.3, and 7/10 a little less than 0.7.
    boxes = torch.tensor([[0.0, 0.0, 10.0, 1.0], [0.0, 0.0, tenths, 1.0]])
    assert nms(boxes, torch.tensor([1.0, 0.5]), tenths / 10).tolist() == kept


def test_of_equal_scores_the_first_is_kept():
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0]]).repeat(500, 1)
    assert nms(boxes, torch.ones(500), 0.5).tolist() == [0]
    assert nms(boxes, torch.ones(500), 1.0).tolist() == list(range(500))


def test_a_long_chain_is_followed_to_its_end():
    # Each box overlaps its neighbours only, so every second one is removed, and with it its claim on the next.
    left = torch.arange(600.0) * 10
    boxes = torch.stack([left, torch.zeros(600), left + 19, torch.ones(600)], dim=1)
    assert nms(boxes, -left, 0.2).tolist() == list(range(0, 600, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    boxes, scores = (values.to(dtype) for values in random_boxes(300, spread=100))
    kept = nms(boxes, scores, 0.5)
    assert 1 < len(kept) < 300
    assert torch.equal(kept, nms(boxes.float(), scores.float(), 0.5))


def test_no_boxes_leave_none():
    kept = nms(torch.empty(0, 4), torch.empty(0), 0.5)
    assert kept.dtype == torch.int64
    assert kept.shape == (0,)


def test_boxes_with_gradient_and_inference_mode():
    boxes, scores = random_boxes(50, spread=50)
    expected = nms(boxes, scores, 0.5)
    assert torch.equal(nms(boxes.requires_grad_(), scores.requires_grad_(), 0.5), expected)
    with torch.inference_mode():
        assert torch.equal(nms(boxes, scores, 0.5), expected)


def test_no_table_grows_with_the_number_of_boxes():
    boxes, scores = random_boxes(5000, spread=100)
    sizes = []

    def overlap(first, second, limit):
        sizes.append(first.shape[1] * second.shape[1])
        return real(first, second, limit)

    real = MODULE._overlap
    with mock.patch.object(MODULE, "_overlap", overlap):
        nms(boxes, scores, 0.5)
    assert max(sizes) <= MODULE._ROWS * MODULE._COLUMNS


@pytest.mark.parametrize(("boxes", "scores"), [((3, 5), (3,)), ((3, 4), (2,)), ((4,), (1,)), ((3, 4), (3, 1))])
def test_wrong_shapes_are_named(boxes, scores):
    with pytest.raises(OptionError, match=r"boxes must be \(N, 4\)"):
        nms(torch.zeros(boxes), torch.zeros(scores), 0.5)
