"""Non-maximum suppression without compiled code, for `compat`, which runs before torchvision can be imported."""

from __future__ import annotations

import torch
from torch import Tensor

from elign.utils.errors import OptionError

# Rows and columns of one table of overlaps: 1 MB in float32, whatever the number of boxes. Measured on a CPU, half or
# twice of either changes little; much smaller blocks cost calls, much larger ones do not fit its cache.
_ROWS = 256
_COLUMNS = 1024


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """The boxes that are left when each one removes all those of lower score that overlap it too much.

    The same as torchvision's compiled operator on the CPU, where a kept box removes those with intersection over union
    greater than (not equal to) `threshold`, and of boxes with equal scores the first one comes first. Boxes without
    area overlap nothing. Half precision is computed in float32.

    The greedy order is kept, but a block of boxes is resolved at a time: a block is first settled within itself, and
    those it keeps then remove what they overlap of all later ones, so that later blocks are of boxes still alive only.

    Args:
        boxes: x1, y1, x2, y2 of each box, (N, 4).
        scores: Its score, (N,).
        threshold: The largest overlap that two kept boxes may have.

    Returns:
        The places of the kept boxes, highest score first: `int64`, (K,), on the device of `boxes`.

    Raises:
        OptionError: The shapes are others.

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
    """The threshold, rounded down: the compiled operator compares with it in double precision, torch in the tensor's.

    An overlap of 3/10 in float32 is a little more than the number 0.3, so it is greater than a threshold of 0.3.
    """
    rounded = torch.tensor(threshold, dtype=torch.float64).to(precision)
    if rounded.item() > threshold:
        rounded = torch.nextafter(rounded, torch.full_like(rounded, -torch.inf))
    return rounded.item()


def _overlap(first: Tensor, second: Tensor, limit: float) -> Tensor:
    """Which of the first boxes (4, N) overlap which of the second (4, M) by more than the limit: bool, (N, M)."""
    left, top, right, bottom = first[:, :, None]
    width = torch.minimum(right, second[2]).sub_(torch.maximum(left, second[0])).clamp_(min=0)
    height = torch.minimum(bottom, second[3]).sub_(torch.maximum(top, second[1])).clamp_(min=0)
    intersection = width.mul_(height)
    # In the order of the compiled operator, and divided as there: another rounding would decide close cases otherwise.
    union = ((right - left) * (bottom - top) + (second[2] - second[0]) * (second[3] - second[1])).sub_(intersection)
    return intersection.div_(union) > limit


def _settle(overlaps: Tensor) -> Tensor:
    """Which boxes of one block are kept, from who overlaps whom, (N, N) in the order of scores.

    A box is kept if no kept box before it overlaps it. Assume that all are kept and apply the rule until nothing
    changes: each turn settles at least one more box for good, in practice all of them after a few turns.
    """
    # As a product of matrices, because that is several times as fast as logical operations on a table of this size.
    removes = overlaps.triu(diagonal=1).float()
    keep = removes.new_ones(len(removes))
    while not torch.equal(keep, settled := (keep @ removes).eq(0).float()):
        keep = settled
    return keep.bool()
