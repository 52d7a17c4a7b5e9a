"""nms and roi_align in plain torch, and torchvision where its compiled operators do not load.

Written by hand because a torchvision that was built for CUDA cannot load its library beside a CPU build of torch.
Without the library there is no `nms`, and `roi_align` has to be compiled on the user's machine at the first call.
`elign.lab.detection` runs `prepare`, which, if and only if the library does not load,

- registers the operators of this file with torch's dispatcher, where the library would have registered its own:
  torchvision's functions, modules and models find them by name, in training too;
- tells the modules of these two functions that there are operators. Told to all of torchvision, `roi_pool` and others,
  which stay without an operator, would lose the error that says so.
"""

from __future__ import annotations

import functools
import importlib
from contextlib import nullcontext

import torch
from torch import Tensor

from elign.lab.environment import import_torchvision
from elign.utils.errors import ElignError, OptionError

# Rows and columns of one table of overlaps: 1 MB in float32, whatever the number of boxes. Measured on a CPU, half or
# twice of either changes little; much smaller blocks cost calls, much larger ones do not fit its cache.
_ROWS = 256
_COLUMNS = 1024


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the places of the boxes that remain when each removes those of lower score that overlap it too much.

    Boxes are (N, 4), scores (N,), the places `int64` (K,), highest score first.

    The same as torchvision's compiled operator on the CPU, where a kept box removes those with intersection over union
    greater than (not equal to) `threshold`, and of boxes with equal scores the first one comes first. Boxes without
    area overlap nothing. Half precision is computed in float32.

    A block of boxes is resolved at a time: it is settled within itself, then those it keeps remove what they overlap of
    all later boxes.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.0], [5.0, 5.0, 6.0, 6.0]])
        >>> nms(boxes, torch.tensor([0.5, 0.9, 0.7]), 0.4).tolist()
        [1, 2]
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise OptionError(f"boxes must be (N, 4) and scores (N,), not {tuple(boxes.shape)} and {tuple(scores.shape)}")
    order = scores.detach().sort(descending=True, stable=True).indices
    precision = torch.float64 if boxes.dtype == torch.float64 else torch.float32
    corners = boxes.detach()[order].to(precision).t().contiguous()
    limit = _largest_not_above(threshold, precision)
    kept = [order[:0]]
    while len(order):
        block = corners[:, :_ROWS]
        keep = _settle(_overlap(block, block, limit))
        kept.append(order[:_ROWS][keep])
        order, corners = order[_ROWS:], corners[:, _ROWS:]
        block = block[:, keep]
        later = torch.split(corners, _COLUMNS, dim=1)
        alive = torch.cat([~_overlap(block, some, limit).any(dim=0) for some in later])
        order, corners = order[alive], corners[:, alive]
    return torch.cat(kept)


def _largest_not_above(threshold: float, precision: torch.dtype) -> float:
    """Round the threshold down: the compiled operator compares with it in double precision, torch in the tensor's.

    An overlap of 3/10 in float32 is a little more than the number 0.3, so it is greater than a threshold of 0.3.
    """
    rounded = torch.tensor(threshold, dtype=torch.float64).to(precision)
    if rounded.item() > threshold:
        rounded = torch.nextafter(rounded, torch.full_like(rounded, -torch.inf))
    return rounded.item()


def _overlap(first: Tensor, second: Tensor, limit: float) -> Tensor:
    """Return which of the first boxes (4, N) overlap which of the second (4, M) by more than the limit: (N, M)."""
    left, top, right, bottom = first[:, :, None]
    width = torch.minimum(right, second[2]).sub_(torch.maximum(left, second[0])).clamp_(min=0)
    height = torch.minimum(bottom, second[3]).sub_(torch.maximum(top, second[1])).clamp_(min=0)
    intersection = width.mul_(height)
    # In the order of the compiled operator, and divided as there: another rounding would decide close cases otherwise.
    union = ((right - left) * (bottom - top) + (second[2] - second[0]) * (second[3] - second[1])).sub_(intersection)
    return intersection.div_(union) > limit


def _settle(overlaps: Tensor) -> Tensor:
    """Return which boxes of one block are kept, from who overlaps whom, (N, N) in the order of scores.

    A box is kept if no kept box before it overlaps it. Assume that all are kept and apply the rule until nothing
    changes: each turn settles at least one more box for good, in practice all of them after a few turns.
    """
    # As a product of matrices, because that is several times as fast as logical operations on a table of this size.
    removes = overlaps.triu(diagonal=1).float()
    keep = removes.new_ones(len(removes))
    while not torch.equal(keep, settled := (keep @ removes).eq(0).float()):
        keep = settled
    return keep.bool()


# The largest number of values that regions are given at a time between the two products: 16 MB in float32.
_VALUES = 4_000_000
# Samples of a bin along one axis that are handled at a time; only the adaptive sampling of huge regions has more.
_SAMPLES = 64


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Average bilinear samples in each bin of each region (K. He et al., "Mask R-CNN", ICCV 2017).

    The same as torchvision's compiled operator. On an axis, a bin of size s that starts at b has n samples at
    b + (i + 1/2) s / n. Samples that lie more than one pixel before the first pixel or behind the last one are 0, and
    all others on the border or beyond have the border's value (torchvision's Python form gives it at any distance).
    Gradients go to `input` only. Computed at least in float32, under autocast too; a region that is not finite gives
    zeros.

    Args:
        input: Maps, (B, C, H, W).
        rois: Number of the map, x1, y1, x2, y2 of each region, (K, 5).
        spatial_scale: What coordinates of regions are multiplied with to be those of the maps.
        pooled_height: Bins of a region.
        pooled_width: Bins of a region.
        sampling_ratio: Samples of a bin along each axis; 0 or less: ceil(size of the region / bins).
        aligned: Take a pixel's centre to be at 1/2, not at 0; regions may then be smaller than one pixel.

    Example:
        >>> ramp = torch.arange(16.0).view(1, 1, 4, 4)
        >>> roi_align(ramp, torch.tensor([[0, 0.0, 0.0, 2.0, 2.0]]), 1.0, 1, 1, sampling_ratio=2).item()
        5.0
    """
    if input.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5:
        raise OptionError(f"input must be (B, C, H, W), rois (K, 5), not {tuple(input.shape)} and {tuple(rois.shape)}")
    numbers = rois[:, 0].long()
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(input):
        raise OptionError(f"the first column of rois must be from 0 to {len(input) - 1}, the numbers of the maps")
    order = numbers.argsort(stable=True)
    by_map = torch.split(rois[order, 1:], numbers.bincount(minlength=len(input)).tolist())
    # Asked first, because some devices have no autocast.
    device = input.device.type
    with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
        precision = torch.float64 if input.dtype == torch.float64 else torch.float32
        offset = 0.5 if aligned else 0.0
        pooled = [input.new_empty(0, input.shape[1], pooled_height, pooled_width)]
        for features, own in zip(input.to(precision), by_map, strict=True):
            if not len(own):
                continue
            # Pixels first and channels last: both products then run over long rows of channels.
            pixels = features.permute(1, 2, 0).contiguous()
            share = max(1, _VALUES // (pooled_height * max(pixels[0].numel(), _SAMPLES)))
            for some in torch.split(own.detach().to(precision), share):
                x1, y1, x2, y2 = (some * spatial_scale - offset).unbind(dim=1)
                rows = _weights(y1, y2, pooled_height, len(pixels), sampling_ratio, aligned=aligned)
                columns = _weights(x1, x2, pooled_width, pixels.shape[1], sampling_ratio, aligned=aligned)
                pooled.append(_pool(pixels, rows, columns).to(input.dtype))
        found = torch.cat(pooled)
    # Regions that are in the order of their maps, as torchvision gives them, need no copy.
    return found if bool((numbers.diff() >= 0).all()) else found[order.argsort()]


@torch.no_grad()
def _weights(start: Tensor, end: Tensor, bins: int, pixels: int, ratio: int, *, aligned: bool) -> Tensor:
    """Return how much each pixel of one axis counts in each bin of each region: (K, bins, pixels)."""
    finite = start.isfinite() & end.isfinite()
    start, end = start.where(finite, 0), end.where(finite, 0)
    size = end - start
    if not aligned:
        size = size.clamp(min=1)
    step = size / bins
    samples = torch.full_like(step, ratio) if ratio > 0 else step.ceil()
    samples = samples.where(finite, 0)[:, None, None]
    step = step[:, None, None]
    origin = start[:, None, None] + torch.arange(bins, device=start.device)[:, None] * step
    weights = start.new_zeros(len(start), bins, pixels)
    most = int(samples.max())
    for first in range(0, most, _SAMPLES):
        number = torch.arange(first, min(first + _SAMPLES, most), device=start.device)
        # In the order in which the compiled operator computes it, so that both agree on which samples are on the map.
        place = origin + (number + 0.5) * step / samples
        counts = (number < samples) & (place >= -1) & (place <= pixels)
        place = place.where(counts, 0).clamp(0, pixels - 1)
        low = place.floor()
        part, pixel = place - low, low.long()
        weights.scatter_add_(2, pixel, ((1 - part) / samples).where(counts, 0))
        weights.scatter_add_(2, (pixel + 1).clamp(max=pixels - 1), (part / samples).where(counts, 0))
    return weights


def _pool(pixels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the regions (K, C, bins, bins) with these weights, (K, bins, H) and (K, bins, W), of a map (H, W, C)."""
    strips = rows.flatten(0, 1) @ pixels.flatten(1)
    regions = columns[:, None] @ strips.view(*rows.shape[:2], *pixels.shape[1:])
    return regions.permute(0, 3, 1, 2).contiguous()


_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": (
        "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor"
    ),
}


class TorchvisionMissingError(ElignError, ImportError):
    """Detection was asked for, but torchvision is not installed."""


def has_compiled_ops() -> bool:
    """Import torchvision; return whether its compiled operators load."""
    try:
        return bool(import_torchvision().extension._has_ops())
    except ModuleNotFoundError as error:
        raise TorchvisionMissingError("detection needs torchvision: pip install 'elign[lab]'") from error


def prepare() -> None:
    """Import torchvision and supply `nms` and `roi_align` if its compiled operators do not load."""
    if not has_compiled_ops():
        _supply()


@functools.cache
def _supply() -> torch.library.Library:
    """Define what is missing, implement it, and tell torchvision; the operators live as long as the result.

    Registered as a fragment, beside those of others: only one may own the name "torchvision".
    """
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + schema)  # type: ignore[no-untyped-call]
    # One kernel for all devices. Places of boxes have no gradient; that of roi_align is the one of its own operations.
    library.impl("nms", nms, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    library.impl("roi_align", roi_align, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
    # Not by attributes: in torchvision.ops, `roi_align` is the function.
    boxes, pooling = (importlib.import_module(f"torchvision.ops.{name}") for name in ("boxes", "roi_align"))
    vars(boxes).update(_assert_has_ops=lambda: None)
    vars(pooling).update(_assert_has_ops=lambda: None, _has_ops=lambda: True)
    return library
