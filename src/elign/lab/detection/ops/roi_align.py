"""RoIAlign without compiled code, for `compat`, which runs before torchvision can be imported.

Bilinear samples are separable: a sample at (x, y) weighs the row pixels of y and the column pixels of x, it counts only
if both lie on the map, and the mean over the samples of a bin is one over y and one over x. So a region is
A @ map @ B^T, with A the (bins, height) weights of its rows and B the (bins, width) ones of its columns: two matrix
products, with any number of samples. By `grid_sample`, forward and backward took 2 to 8 times as long on a CPU, and
were off by up to 2e-5 in float32 where this is off by 5e-7, because coordinates are scaled to [-1, 1] and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from elign.utils.errors import OptionError

# The largest number of values that regions are given at a time between the two products: 16 MB in float32.
_VALUES = 4_000_000
# Samples of a bin along one axis that are handled at a time; only the adaptive sampling of huge regions has more.
_SAMPLES = 64


def roi_align(
    input: Tensor,
    boxes: Tensor | Sequence[Tensor],
    output_size: int | tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Average of bilinear samples in each bin of each region (K. He et al., "Mask R-CNN", ICCV 2017).

    The same as torchvision's compiled operator. On an axis, a bin of size s that starts at b has n samples at
    b + (i + 1/2) s / n. Samples that lie more than one pixel before the first pixel or behind the last one are 0, and
    all others on the border or beyond have the border's value. (The Python form that torchvision falls back to differs:
    it gives the border's value to samples at any distance, and adaptive bins have at most as many samples as the map
    has pixels on that axis.) Gradients go to `input` only. Computed at least in float32, under autocast too;
    a region that is not finite gives zeros.

    Args:
        input: Maps, (B, C, H, W).
        boxes: Regions x1, y1, x2, y2: one (L, 4) for each map, or all in one (K, 5) after the number of their map.
        output_size: Bins, as height and width.
        spatial_scale: What coordinates of boxes are multiplied with to be those of the maps.
        sampling_ratio: Samples of a bin along each axis; 0 or less: ceil(size of the region / bins).
        aligned: Take a pixel's centre to be at 1/2, not at 0; regions may then be smaller than one pixel.

    Returns:
        The regions in the order of `boxes`, (K, C, bins, bins), in the type of `input`.

    Raises:
        OptionError: The shapes are others, or a box names a map that does not exist.

    Example:
        >>> ramp = torch.arange(16.0).view(1, 1, 4, 4)
        >>> roi_align(ramp, [torch.tensor([[0.0, 0.0, 2.0, 2.0]])], 1, sampling_ratio=2).item()
        5.0
    """
    height, width = (output_size, output_size) if isinstance(output_size, int) else output_size
    if input.ndim != 4:
        raise OptionError(f"input must be (B, C, H, W), not {tuple(input.shape)}")
    if isinstance(boxes, Tensor):
        regions, back = _by_map(boxes, len(input))
    else:
        regions, back = [*boxes], None
    if len(regions) != len(input) or any(boxes.ndim != 2 or boxes.shape[1] != 4 for boxes in regions):
        raise OptionError(f"boxes must be one (L, 4) for each of {len(input)} maps, or a (K, 5)")
    with _no_autocast(input.device.type):
        precision = torch.float64 if input.dtype == torch.float64 else torch.float32
        offset = 0.5 if aligned else 0.0
        pooled = [input.new_empty(0, input.shape[1], height, width)]
        for features, own in zip(input.to(precision), regions, strict=True):
            if not len(own):
                continue
            # Pixels first and channels last: both products then run over long rows of channels.
            pixels = features.permute(1, 2, 0).contiguous()
            share = max(1, _VALUES // (height * max(pixels[0].numel(), _SAMPLES)))
            for some in torch.split(own.detach().to(precision), share):
                x1, y1, x2, y2 = (some * spatial_scale - offset).unbind(dim=1)
                rows = _weights(y1, y2, height, len(pixels), sampling_ratio, aligned=aligned)
                columns = _weights(x1, x2, width, pixels.shape[1], sampling_ratio, aligned=aligned)
                pooled.append(_read(pixels, rows, columns).to(input.dtype))
        found = torch.cat(pooled)
    return found if back is None else found[back]


def _by_map(boxes: Tensor, maps: int) -> tuple[list[Tensor], Tensor | None]:
    """The boxes of each map, and the places that bring them back into their order (None if they are in it)."""
    if boxes.ndim != 2 or boxes.shape[1] != 5:
        raise OptionError(f"boxes in one tensor must be (K, 5), not {tuple(boxes.shape)}")
    numbers = boxes[:, 0].long()
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < maps:
        raise OptionError(f"the first column of boxes must be from 0 to {maps - 1}, the numbers of the maps")
    order = numbers.argsort(stable=True)
    counts = numbers.bincount(minlength=maps).tolist()
    in_order = bool((numbers.diff() >= 0).all())
    return [*torch.split(boxes[order, 1:], counts)], None if in_order else order.argsort()


def _no_autocast(device: str) -> AbstractContextManager[object]:
    """Products in the precision of their factors; asked first, because some devices know no autocast at all."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


@torch.no_grad()
def _weights(start: Tensor, end: Tensor, bins: int, pixels: int, ratio: int, *, aligned: bool) -> Tensor:
    """How much each pixel of one axis counts in each bin of each region: (K, bins, pixels)."""
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


def _read(pixels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The regions (K, C, bins, bins) with these weights, (K, bins, H) and (K, bins, W), of a map (H, W, C)."""
    strips = rows.flatten(0, 1) @ pixels.flatten(1)
    regions = columns[:, None] @ strips.view(*rows.shape[:2], *pixels.shape[1:])
    return regions.permute(0, 3, 1, 2).contiguous()
