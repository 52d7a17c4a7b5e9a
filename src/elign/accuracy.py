"""Balanced accuracy: what choices on training data are made by."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_accuracy(right: Tensor, labels: Tensor) -> float:
    """Mean over classes of the share that is right: a class of few samples weighs as much as one of many.

    Args:
        right: Which predictions are right, (N,) bool.
        labels: The classes, (N,).

    Example:
        >>> import torch
        >>> balanced_accuracy(torch.tensor([True, False, True]), torch.tensor([4, 4, 7]))
        0.75
    """
    classes, places = torch.unique(labels.cpu(), return_inverse=True)
    sums = torch.zeros(len(classes), dtype=torch.float64, device="cpu").index_add_(0, places, right.cpu().double())
    return float((sums / torch.bincount(places)).mean())
