"""RoIAlign against its definition in plain loops, and against torchvision's own forms of it."""

from __future__ import annotations

import math
from importlib import import_module
from unittest import mock

import numpy as np
import pytest
import torch

from elign import OptionError
from elign.lab.detection import compat
from elign.lab.detection.ops import roi_align

MODULE = import_module("elign.lab.detection.ops.roi_align")
HEIGHT, WIDTH, SCALE, BINS = 5, 7, 0.5, (2, 3)
INSIDE = [
    [1.0, 0.5, 9.0, 8.0],
    [3.3, 2.1, 5.2, 9.4],
    [0.0, 0.0, 14.0, 10.0],
    [6.0, 4.0, 6.5, 4.2],
    [2.0, 2.0, 2.0, 2.0],
]
# Beyond the first or the last pixel's centre, but with all samples less than a pixel from them, aligned or not.
PARTLY_OUTSIDE = [[-0.9, -0.8, 5.0, 6.0], [9.0, 6.0, 14.0, 10.0], [-0.5, -0.9, 14.0, 10.0]]
FAR_OUTSIDE = [
    [-2.4, -2.8, 5.0, 6.0],
    [9.0, 6.0, 15.9, 12.9],
    [-9.0, -3.0, 4.0, 16.0],
    [40.0, 40.0, 50.0, 50.0],
    [-20.0, 1.0, 40.0, 5.0],
    [-8.0, -9.0, -3.0, -4.0],
]
INVERTED = [[8.0, 6.0, 3.0, 2.0]]
options = pytest.mark.parametrize(
    ("ratio", "aligned"), [(1, False), (2, False), (2, True), (3, True), (-1, False), (0, True)]
)


def plain_weights(box, ratio, aligned):
    """How much each pixel counts in each bin of one region, (bins, bins, H, W), sample by sample."""
    weights = np.zeros((*BINS, HEIGHT, WIDTH))
    offset = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (value * SCALE - offset for value in box)
    sizes = [y2 - y1, x2 - x1] if aligned else [max(y2 - y1, 1.0), max(x2 - x1, 1.0)]
    samples = [ratio if ratio > 0 else math.ceil(size / bins) for size, bins in zip(sizes, BINS, strict=True)]
    steps = [size / bins for size, bins in zip(sizes, BINS, strict=True)]
    for row in range(BINS[0]):
        for column in range(BINS[1]):
            for i in range(samples[0]):
                for j in range(samples[1]):
                    y = y1 + row * steps[0] + (i + 0.5) * steps[0] / samples[0]
                    x = x1 + column * steps[1] + (j + 0.5) * steps[1] / samples[1]
                    add_sample(weights[row, column], y, x, 1 / (samples[0] * samples[1]))
    return weights


def add_sample(weights, y, x, share):
    if y < -1 or y > HEIGHT or x < -1 or x > WIDTH:
        return
    y, x = min(max(y, 0), HEIGHT - 1), min(max(x, 0), WIDTH - 1)
    top, left = math.floor(y), math.floor(x)
    for row, in_row in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, in_column in ((left, 1 - (x - left)), (left + 1, x - left)):
            if in_row * in_column:
                weights[row, column] += share * in_row * in_column


def both(align, maps, boxes, ratio, aligned):
    """What an implementation gives, and its gradient with respect to the maps."""
    maps = maps.clone().requires_grad_()
    found = align(maps, boxes, ratio, aligned)
    generator = torch.Generator().manual_seed(5)
    direction = torch.randn(found.shape, generator=generator, dtype=torch.float64).to(found.dtype)
    return found.detach(), torch.autograd.grad(found, maps, direction)[0], direction


def ours(maps, boxes, ratio, aligned):
    return roi_align(maps, boxes, BINS, SCALE, ratio, aligned)


@pytest.fixture
def maps():
    return torch.randn(2, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(3))


@options
@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
def test_is_its_definition(maps, ratio, aligned, dtype, accuracy):
    maps = maps.to(dtype)
    per_map = [INSIDE + FAR_OUTSIDE, PARTLY_OUTSIDE + INVERTED]
    found, gradient, direction = both(
        ours, maps, [torch.tensor(boxes, dtype=dtype) for boxes in per_map], ratio, aligned
    )
    weights = [torch.from_numpy(np.stack([plain_weights(box, ratio, aligned) for box in boxes])) for boxes in per_map]
    parts = torch.split(direction.double(), [len(boxes) for boxes in per_map])
    for number, (own, part) in enumerate(zip(weights, parts, strict=True)):
        expected = torch.einsum("kpqhw,chw->kcpq", own, maps[number].double())
        mine = torch.split(found, [len(boxes) for boxes in per_map])[number]
        torch.testing.assert_close(mine.double(), expected, rtol=0, atol=accuracy)
        expected = torch.einsum("kpqhw,kcpq->chw", own, part)
        torch.testing.assert_close(gradient[number].double(), expected, rtol=0, atol=3 * accuracy)


@options
def test_is_torchvisions_python_form(maps, ratio, aligned):
    # The form as it is written: a call of the name would compile it first. It has the border's value at any distance,
    # so boxes far outside are left to the definition above; adaptive samples of inverted boxes are not defined there.
    uncompiled = import_module("torchvision.ops.roi_align")._roi_align.__wrapped__
    boxes = [torch.tensor(INSIDE[:4]), torch.tensor(PARTLY_OUTSIDE)]
    rois = torch.cat([torch.tensor([0.0] * 4 + [1.0] * 3)[:, None], torch.cat(boxes)], dim=1)
    expected = both(lambda x, rois, r, a: uncompiled(x, rois, SCALE, *BINS, r, a), maps, rois, ratio, aligned)
    for given in (boxes, rois):
        found = both(ours, maps, given, ratio, aligned)
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=2e-6)
        torch.testing.assert_close(found[1], expected[1], rtol=0, atol=2e-6)


@pytest.mark.skipif(not compat.has_compiled_ops(), reason="torchvision's compiled operators do not load here")
@options
def test_is_the_compiled_operator(maps, ratio, aligned):
    from torchvision.ops import roi_align as compiled

    boxes = [torch.tensor(INSIDE + FAR_OUTSIDE), torch.tensor(PARTLY_OUTSIDE)]
    expected = both(lambda x, rois, r, a: compiled(x, rois, BINS, SCALE, r, a), maps, boxes, ratio, aligned)
    found = both(ours, maps, boxes, ratio, aligned)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("limits", [{"_VALUES": 1}, {"_SAMPLES": 1}, {"_SAMPLES": 3}])
def test_pieces_change_nothing(maps, limits):
    boxes = [torch.tensor(INSIDE + FAR_OUTSIDE), torch.tensor(PARTLY_OUTSIDE)]
    found, gradient, _ = both(ours, maps, boxes, -1, False)
    with mock.patch.multiple(MODULE, **limits):
        again, gradient_again, _ = both(ours, maps, boxes, -1, False)
    torch.testing.assert_close(again, found, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient_again, gradient, rtol=0, atol=1e-6)


def test_boxes_of_maps_in_any_order(maps):
    boxes = torch.tensor(INSIDE)
    numbers = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    found = roi_align(maps, torch.cat([numbers[:, None], boxes], dim=1), BINS, SCALE, 2)
    for number, box, region in zip(numbers.long(), boxes, found, strict=True):
        alone = roi_align(maps[number][None], [box[None]], BINS, SCALE, 2)[0]
        torch.testing.assert_close(region, alone, rtol=0, atol=1e-6)


def test_maps_without_boxes(maps):
    boxes, none = torch.tensor(INSIDE), torch.empty(0, 4)
    found = roi_align(maps, [none, boxes], 2, SCALE, 2)
    assert torch.equal(found, roi_align(maps[1:], [boxes], 2, SCALE, 2))
    maps.requires_grad_()
    nothing = roi_align(maps, [none, none], BINS, SCALE, 2)
    assert nothing.shape == (0, 3, *BINS)
    assert roi_align(maps, torch.empty(0, 5), BINS).shape == (0, 3, *BINS)
    (nothing.sum() + 0 * maps.sum()).backward()


def test_under_autocast_it_is_computed_in_float32(maps):
    boxes = [torch.tensor(INSIDE), torch.tensor(PARTLY_OUTSIDE)]
    half = maps.bfloat16()
    expected = roi_align(half.float(), boxes, BINS, SCALE, 2)
    with torch.autocast("cpu", torch.bfloat16):
        from_half = roi_align(half, boxes, BINS, SCALE, 2)
        from_float = roi_align(half.float(), boxes, BINS, SCALE, 2)
    assert from_half.dtype == torch.bfloat16
    assert torch.equal(from_half, expected.bfloat16())
    assert torch.equal(from_float, expected)


def test_boxes_have_no_gradient_and_what_is_not_finite_gives_zeros(maps):
    boxes = torch.tensor([[math.nan, 0.0, 4.0, 4.0], [0.0, 0.0, math.inf, 4.0], INSIDE[0]], requires_grad=True)
    for ratio in (2, -1):
        found = roi_align(maps[:1], [boxes], BINS, SCALE, ratio)
        assert not found.requires_grad
        assert not found[:2].any()
        assert found[2].all()


@pytest.mark.parametrize(
    "boxes",
    [
        [torch.zeros(1, 4)],
        [torch.zeros(1, 5)] * 2,
        torch.zeros(3, 4),
        torch.tensor([[2.0, 0, 0, 1, 1]]),
        torch.tensor([[-1.0, 0, 0, 1, 1]]),
    ],
)
def test_wrong_boxes_are_named(maps, boxes):
    with pytest.raises(OptionError, match="boxes"):
        roi_align(maps, boxes, BINS)


def test_maps_must_be_a_batch(maps):
    with pytest.raises(OptionError, match="input must be"):
        roi_align(maps[0], [torch.zeros(1, 4)], BINS)
