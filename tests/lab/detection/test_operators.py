"""nms and roi_align against plain definitions, and torchvision with and without its compiled operators."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from textwrap import dedent
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.detection.annotating import plain_overlap
from torchvision import ops

from elign import ElignError, OptionError
from elign.lab.detection import operators
from elign.lab.detection.operators import nms

COMPILED = operators.has_compiled_ops()
with_operators = pytest.mark.skipif(not COMPILED, reason="torchvision's compiled operators do not load here")
without_operators = pytest.mark.skipif(COMPILED, reason="torchvision's compiled operators load here")


def roi_align(maps, boxes, bins, scale=1.0, ratio=-1, aligned=False):
    """Our operator, on boxes of each map or with the numbers of their maps."""
    if not isinstance(boxes, torch.Tensor):
        boxes = torch.cat([torch.nn.functional.pad(own, (1, 0), value=place) for place, own in enumerate(boxes)])
    height, width = (bins, bins) if isinstance(bins, int) else bins
    return operators.roi_align(maps, boxes, scale, height, width, ratio, aligned)


def run(code, *, path=None):
    """The last line that a fresh process prints."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-W", "error::UserWarning", "-c", dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@without_operators
def test_torchvision_is_importable_after_an_import_that_failed():
    code = """
        import torch
        try:
            import torchvision
        except RuntimeError as error:
            assert "torchvision::nms does not exist" in str(error)
        else:
            raise SystemExit("this torchvision needs no help")
        import elign.lab.detection
        import torchvision
        elign.lab.detection.operators.prepare()
        boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.0], [5.0, 5.0, 9.0, 9.0]])
        print(torchvision.ops.nms(boxes, torch.tensor([0.1, 0.3, 0.2]), 0.5).tolist(), torchvision.extension._has_ops())
    """
    assert run(code) == "[1, 2] False"


@pytest.fixture
def fake(tmp_path):
    """A torchvision that has what `prepare` looks at and decides as the real one does, without a library."""
    package = tmp_path / "torchvision"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text("from torchvision import extension, ops\n")
    decide = "def _has_ops():\n    return torch.loads\n\n\ndef _assert_has_ops():\n    assert _has_ops()\n"
    load = "torch.loads = True\ntry:\n    torch.ops.load_library(LIBRARY)\nexcept OSError:\n    torch.loads = False\n"
    library = package / f"_C{EXTENSION_SUFFIXES[0]}"
    (package / "extension.py").write_text(f"import torch\n\nLIBRARY = {str(library)!r}\n{load}\n\n{decide}")
    (package / "ops" / "__init__.py").write_text("from torchvision.ops import boxes, roi_align\n")
    for module in ("boxes", "roi_align"):
        (package / "ops" / f"{module}.py").write_text("from torchvision.extension import _assert_has_ops, _has_ops\n")
    return library


def put(library, content):
    """A library that loads (any that torch can load: one of its own), one that does not, or none."""
    if content == "good":
        shutil.copy(torch._C.__file__, library)
    elif content == "damaged":
        library.write_bytes(b"not a library")


def test_nothing_is_touched_where_the_library_loads(fake):
    code = """
        import torch
        import torchvision
        from elign.lab.detection import operators

        operators.prepare()
        assert operators.has_compiled_ops()
        assert not hasattr(torch.ops.torchvision, "nms")
        modules = torchvision.ops.boxes, torchvision.ops.roi_align
        names = "_assert_has_ops", "_has_ops"
        print([getattr(module, name) is vars(torchvision.extension)[name] for module in modules for name in names])
    """
    put(fake, "good")
    assert run(code, path=fake.parents[1]) == "[True, True, True, True]"


def test_what_somebody_else_only_defined_is_supplied(fake):
    # Torchvision is imported already, without operators: one is defined without an implementation, others are not.
    code = """
        import torch
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
        import elign.lab.detection

        torchvision.ops.boxes._assert_has_ops()
        torchvision.ops.roi_align._assert_has_ops()
        assert torchvision.ops.roi_align._has_ops() and not torchvision.extension._has_ops()
        assert torch.ops.torchvision.nms(torch.ones(1, 4), torch.ones(1), 0.5).tolist() == [0]
        print(torch.ops.torchvision.roi_align(torch.ones(1, 1, 4, 4), torch.zeros(1, 5), 1.0, 1, 1, 2, False).item())
    """
    put(fake, "damaged")
    assert run(code, path=fake.parents[1]) == "1.0"


@pytest.mark.parametrize("function", [operators.prepare, operators.has_compiled_ops])
def test_a_missing_torchvision_is_named(function, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(operators.TorchvisionMissingError, match=r"pip install 'elign\[lab\]'") as caught:
        function()
    assert isinstance(caught.value, ElignError)
    assert isinstance(caught.value, ImportError)


def test_torchvisions_functions_and_modules_give_what_ours_do():
    boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 8.0, 7.0], [3.0, 1.0, 12.0, 9.0]])
    scores = torch.tensor([0.3, 0.9, 0.5])
    assert ops.nms(boxes, scores, 0.5).tolist() == [1, 2]
    assert ops.batched_nms(boxes, scores, torch.tensor([0, 1, 1]), 0.5).tolist() == [1, 2, 0]
    maps = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = roi_align(maps, [boxes], 3, 0.5, 2)
    pooler = ops.MultiScaleRoIAlign(["0"], 3, 2)
    for found in (
        ops.roi_align(maps, [boxes], 3, 0.5, 2),
        ops.RoIAlign(3, 0.5, 2)(maps, [boxes]),
        pooler({"0": maps}, [boxes], [(12, 12)]),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
        gradients = (torch.autograd.grad((values**2).sum(), maps, retain_graph=True)[0] for values in (found, expected))
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


@without_operators
def test_operators_that_stay_missing_still_say_so():
    with pytest.raises(RuntimeError, match="Couldn't load custom"):
        ops.roi_pool(torch.zeros(1, 1, 4, 4), [torch.zeros(1, 4)], 2)


def plain_nms(boxes, scores, threshold):
    """The definition, box by box in Python's numbers; an overlap is rounded as in the tensor's type."""
    kept = []
    for place in sorted(range(len(boxes)), key=lambda place: -scores[place]):
        if all(not np.float32(plain_overlap(boxes[place], boxes[other])) > np.float64(threshold) for other in kept):
            kept.append(place)
    return kept


def random_boxes(count, *, spread):
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(count, 2, generator=generator) * spread
    size = torch.rand(count, 2, generator=generator) * 100 + 5
    return torch.cat([corner, corner + size], dim=1), torch.rand(count, generator=generator)


# Whole numbers in a small square: many overlaps are equal to a threshold, many boxes are alike, some have no area.
a_box = st.tuples(*[st.integers(0, 6)] * 2, *[st.integers(0, 5)] * 2).map(
    lambda b: [b[0], b[1], b[0] + b[2], b[1] + b[3]]
)


@given(
    st.lists(st.tuples(a_box, st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=20),
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.6, 0.7, 1.0]),
    st.sampled_from([(256, 1024), (4, 3), (1, 1)]),
)
def test_is_the_plain_loop(scored, threshold, table):
    boxes, scores = [box for box, _ in scored], [score for _, score in scored]
    with mock.patch.multiple(operators, _ROWS=table[0], _COLUMNS=table[1]):
        kept = nms(torch.tensor(boxes, dtype=torch.float32).view(-1, 4), torch.tensor(scores), threshold)
    assert kept.dtype == torch.int64
    assert kept.tolist() == plain_nms(boxes, scores, threshold)


@with_operators
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.7])
def test_is_the_compiled_operator(threshold):
    boxes, scores = random_boxes(3000, spread=300)
    boxes, scores = boxes.round(), (scores * 50).round()
    assert torch.equal(nms(boxes, scores, threshold), torch.ops.torchvision.nms(boxes, scores, threshold))


@pytest.mark.parametrize(("tenths", "kept"), [(3, [0]), (7, [0, 1])])
def test_the_threshold_is_not_rounded_as_the_overlap_is(tenths, kept):
    # In float32, 3/10 is a little more than the number 0.3, and 7/10 a little less than 0.7.
    boxes = torch.tensor([[0.0, 0.0, 10.0, 1.0], [0.0, 0.0, tenths, 1.0]])
    assert nms(boxes, torch.tensor([1.0, 0.5]), tenths / 10).tolist() == kept


def test_a_long_chain_is_followed_to_its_end():
    # Each box overlaps its neighbours only, so every second one is removed, and with it its claim on the next.
    left = torch.arange(600.0) * 10
    boxes = torch.stack([left, torch.zeros(600), left + 19, torch.ones(600)], dim=1)
    assert nms(boxes, -left, 0.2).tolist() == list(range(0, 600, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    boxes, scores = (values.to(dtype) for values in random_boxes(300, spread=100))
    expected = nms(boxes.float(), scores.float(), 0.5)
    assert 1 < len(expected) < 300
    assert torch.equal(nms(boxes.requires_grad_(), scores.requires_grad_(), 0.5), expected)
    with torch.inference_mode():
        assert torch.equal(nms(boxes, scores, 0.5), expected)


def test_no_table_grows_with_the_number_of_boxes():
    boxes, scores = random_boxes(5000, spread=100)
    sizes = []

    def overlap(first, second, limit):
        sizes.append(first.shape[1] * second.shape[1])
        return real(first, second, limit)

    real = operators._overlap
    with mock.patch.object(operators, "_overlap", overlap):
        nms(boxes, scores, 0.5)
    assert max(sizes) <= operators._ROWS * operators._COLUMNS


@pytest.mark.parametrize(("boxes", "scores"), [((3, 5), (3,)), ((3, 4), (2,)), ((4,), (1,)), ((3, 4), (3, 1))])
def test_wrong_shapes_are_named(boxes, scores):
    with pytest.raises(OptionError, match=r"boxes must be \(N, 4\)"):
        nms(torch.zeros(boxes), torch.zeros(scores), 0.5)


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
    parts = (values.double().split([len(boxes) for boxes in per_map]) for values in (found, direction))
    for features, slope, boxes, mine, part in zip(maps, gradient, per_map, *parts, strict=True):
        weights = torch.from_numpy(np.stack([plain_weights(box, ratio, aligned) for box in boxes]))
        expected = torch.einsum("kpqhw,chw->kcpq", weights, features.double())
        torch.testing.assert_close(mine, expected, rtol=0, atol=accuracy)
        expected = torch.einsum("kpqhw,kcpq->chw", weights, part)
        torch.testing.assert_close(slope.double(), expected, rtol=0, atol=3 * accuracy)


@with_operators
@options
def test_pooling_is_the_compiled_operator(maps, ratio, aligned):
    boxes = [torch.tensor(INSIDE + FAR_OUTSIDE), torch.tensor(PARTLY_OUTSIDE)]
    expected = both(lambda x, rois, r, a: ops.roi_align(x, rois, BINS, SCALE, r, a), maps, boxes, ratio, aligned)
    torch.testing.assert_close(both(ours, maps, boxes, ratio, aligned), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("limits", [{"_VALUES": 1}, {"_SAMPLES": 1}, {"_SAMPLES": 3}])
def test_pieces_change_nothing(maps, limits):
    boxes = [torch.tensor(INSIDE + FAR_OUTSIDE), torch.tensor(PARTLY_OUTSIDE)]
    whole = both(ours, maps, boxes, -1, False)
    with mock.patch.multiple(operators, **limits):
        torch.testing.assert_close(both(ours, maps, boxes, -1, False), whole, rtol=0, atol=1e-6)


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


@pytest.mark.parametrize("boxes", [torch.zeros(3, 4), torch.tensor([[2.0, 0, 0, 1, 1]]), -torch.ones(1, 5)])
def test_wrong_boxes_are_named(maps, boxes):
    with pytest.raises(OptionError, match="rois"):
        roi_align(maps, boxes, BINS)
