"""Operators of detection without compiled code: non-maximum suppression and RoIAlign against plain forms of them.

    python benchmarks/nms.py [--rounds N] [--boxes N ...] [--maps CxHxW ...]

The plain nms takes the boxes one by one and compares each kept one with all later ones at once; the plain roi_align is
torchvision's own Python form, as it is written, forward and backward. Where torchvision's compiled operators load, they
are a column of their own. All results are checked against each other in the same run; one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

import torch
from timing import medians
from torch import Tensor

from elign.lab.detection import operators

BOXES = (300, 1000, 2000)
MAPS = ("64x16x16", "256x25x38")
REGIONS, BINS, SCALE, RATIO, THRESHOLD = 32, 7, 1 / 16, 2, 0.7


def plain_nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """One kept box after another."""
    order = scores.sort(descending=True, stable=True).indices
    boxes = boxes[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for place in range(len(boxes)):
        if alive[place]:
            later = boxes[place + 1 :]
            sides = torch.minimum(boxes[place, 2:], later[:, 2:]) - torch.maximum(boxes[place, :2], later[:, :2])
            common = sides.clamp(min=0).prod(dim=1)
            alive[place + 1 :] &= ~(common / (areas[place] + areas[place + 1 :] - common) > threshold)
    return order[alive]


def random_boxes(count: int, height: int, width: int) -> Tensor:
    """Boxes on an image of this size."""
    size = torch.tensor([width, height])
    corner = torch.rand(count, 2) * size * 0.6
    return torch.cat([corner, corner + 8 + torch.rand(count, 2) * size * 0.3], dim=1)


def compare_nms(count: int, rounds: int) -> dict[str, float]:
    """Seconds of each form for so many boxes, as many as a region proposal network hands on."""
    boxes, scores = random_boxes(count, 600, 800), torch.rand(count)
    forms: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: plain_nms(boxes, scores, THRESHOLD),
        "eli": lambda: operators.nms(boxes, scores, THRESHOLD),
    }
    if operators.has_compiled_ops():
        forms["compiled"] = lambda: torch.ops.torchvision.nms(boxes, scores, THRESHOLD)
    expected = forms["plain"]()
    if not all(torch.equal(form(), expected) for form in forms.values()):
        raise SystemExit(f"{count} boxes: not the same ones are kept")
    return medians(forms, rounds=rounds)


def compare_roi_align(channels: int, height: int, width: int, rounds: int) -> dict[str, float]:
    """Seconds of each form for a forward and a backward pass on one map."""
    maps = torch.randn(1, channels, height, width, requires_grad=True)
    boxes = random_boxes(REGIONS, int(height / SCALE), int(width / SCALE))
    rois = torch.cat([torch.zeros(REGIONS, 1), boxes], dim=1)
    direction = torch.randn(REGIONS, channels, BINS, BINS)
    # The name itself would compile the function at its first call.
    python_form = import_module("torchvision.ops.roi_align")._roi_align.__wrapped__

    def both(form: Callable[..., Tensor]) -> Callable[[], tuple[Tensor, Tensor]]:
        def run() -> tuple[Tensor, Tensor]:
            pooled = form(maps, rois, SCALE, BINS, BINS, RATIO, False)
            return pooled.detach(), torch.autograd.grad(pooled, maps, direction)[0]

        return run

    forms = {
        "plain": both(python_form),
        "eli": both(operators.roi_align),
    }
    if operators.has_compiled_ops():
        forms["compiled"] = both(torch.ops.torchvision.roi_align)
    expected = forms["plain"]()
    for form in forms.values():
        for found, reference in zip(form(), expected, strict=True):
            torch.testing.assert_close(found, reference, rtol=0, atol=2e-6 * float(reference.abs().max()))
    return medians(forms, rounds=rounds)


def show(operator: str, size: str, seconds: dict[str, float]) -> None:
    """Print one row."""
    plain, eli, compiled = (seconds.get(name) for name in ("plain", "eli", "compiled"))
    last = f"{eli / compiled:.1f}x" if compiled else "does not load"
    print(f"| {operator} | {size} | {plain * 1e3:.1f} | {eli * 1e3:.1f} | {plain / eli:.0f}x | {last} |", flush=True)


def main() -> None:
    """Print one row for each operator and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--boxes", type=int, nargs="+", default=BOXES)
    parser.add_argument("--maps", nargs="+", default=MAPS, metavar="CxHxW")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| operator | size | plain (ms) | eli (ms) | faster by | of compiled |")
    print("|---|---|---:|---:|---:|---:|")
    for count in args.boxes:
        show("nms", f"{count:,} boxes", compare_nms(count, args.rounds))
    for size in args.maps:
        shape = [int(side) for side in size.split("x")]
        show("roi_align", f"{REGIONS} regions of {' x '.join(map(str, shape))}", compare_roi_align(*shape, args.rounds))


if __name__ == "__main__":
    main()
