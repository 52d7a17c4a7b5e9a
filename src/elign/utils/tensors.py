"""Small tensor helpers that several layers share: compute types, noise, balanced accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Progress = Callable[[int, int, float], None]
"""Called now and then during a fit, with (iterations done, iterations in all, current loss)."""


def compute_dtype(z: Tensor) -> torch.dtype:
    """Compute in float32, or in float64 for float64 latents: half precision loses small steps."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def rounded(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Round scores to a type in which those that are finite stay so: minus infinity is for classes without data."""
    if scores.dtype == dtype:
        return scores
    most = torch.finfo(dtype).max
    return torch.where(scores == -torch.inf, scores, scores.clamp(-most, most)).to(dtype)


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw Gaussian numbers with the dtype and device of `like`; a generator may live on another device."""
    device = generator.device if generator else like.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def fixed_generator(z: Tensor) -> torch.Generator:
    """Make a generator that gives the same noise for the same rows, so that a choice made on them can be repeated."""
    return torch.Generator(z.device).manual_seed(0)


def balanced_accuracy(right: Tensor, labels: Tensor) -> float:
    """Average the accuracy over classes: a class of few samples weighs as much as one of many.

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
