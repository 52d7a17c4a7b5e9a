"""Class means and cosines to them, for forward prototypes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.classifiers.nearest_mean import NearestMean
from elign.lab.models.heads import directions
from elign.lab.seeds import derive_seed


def count_classes(labels: Tensor) -> int:
    """Number of different labels."""
    return int((torch.bincount(labels) > 0).sum())


def class_means(latents: Tensor, labels: Tensor, classes: range) -> Tensor:
    """Mean latent of each class, (len(classes), D), in class order. Every class must have at least one row."""
    return NearestMean(normalize=False).fit(z=latents, labels=labels - classes.start).means


def cosines(latents: Tensor, means: Tensor) -> Tensor:
    """`<z / |z|, m_c / |m_c|>` for every latent and class, (N, classes)."""
    return directions(latents) @ directions(means).t()


def move_prototypes(
    prototypes: Mapping[str, Tensor], born: Tensor, aligners: Mapping[str, Aligner], *, seed: int
) -> dict[str, Tensor]:
    """Prototypes after a task: those from before moved forward into the current space, then the new classes' own.

    Args:
        prototypes: (known, D) for each forward aligner, and `none`; empty at the first task.
        born: Mean latent of each new class, (seen - known, D).
        aligners: Fitted forward aligners by name. A name without one, `none`, stays where it is.
        seed: Of the noise of aligners that use some.

    Returns:
        (seen, D) for each name.
    """
    moved = {}
    for name, before in prototypes.items():
        generator = torch.Generator().manual_seed(derive_seed(seed, f"forward noise, {name}"))
        there = aligners[name].align(before, generator=generator) if name in aligners else before
        moved[name] = torch.cat([there, born])
    return moved
