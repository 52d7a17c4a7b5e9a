"""From stored bytes to what a network sees: normalised numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of each colour over the training images of ImageNet, as published with its usual models."""

IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of each colour over the training images of ImageNet, likewise."""

_TOP = 255
_LEVELS = _TOP + 1


class Normalise:
    """(x / 255 - mean) / std for each channel.

    Args:
        mean: Mean of each channel, for pixels in 0..1.
        std: Standard deviation of each channel, likewise.

    Raises:
        ValueError: The two differ in length or hold nothing, or a deviation is not positive.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if not mean or len(mean) != len(std):
            raise ValueError(f"mean and std must have one number for each channel, not {len(mean)} and {len(std)}")
        if not all(value > 0 for value in std):
            raise ValueError(f"std must be positive, not {tuple(std)}")
        self.channels = len(mean)
        # In units of stored bytes, so that two operations are enough.
        self._mean = (torch.tensor(mean, dtype=torch.float64) * _TOP).float().view(-1, 1, 1)
        self._std = (torch.tensor(std, dtype=torch.float64) * _TOP).float().view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise `uint8` images (B, C, H, W) to new `float32` ones."""
        return images.to(torch.float32, memory_format=torch.contiguous_format).sub_(self._mean).div_(self._std)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, for pixels in 0..1.

    Args:
        images: `uint8` images, (N, C, H, W).

    Returns:
        The means and the deviations, exact up to rounding: they come from counts, so that no copy of all images in
        floating point is needed.
    """
    levels = torch.arange(_LEVELS, dtype=torch.float64) / _TOP
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten(), minlength=_LEVELS).double()
        share = counts / counts.sum()
        mean = (share * levels).sum()
        means.append(float(mean))
        deviations.append(float((share * (levels - mean) ** 2).sum().sqrt()))
    return tuple(means), tuple(deviations)
