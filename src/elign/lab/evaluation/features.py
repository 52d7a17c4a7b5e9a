"""Latents of the images of a task: extracted once, kept in one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor

from elign.lab.config.schema import AlignerConfig
from elign.lab.data.base import Split
from elign.lab.environment import derive_seed
from elign.lab.models.classifier import Classifier
from elign.lab.storage import read_tensors, write_tensors
from elign.lab.training.device import Engine
from elign.utils.extraction import extract_pairs

LATER = ("new_previous", "memory_previous")
"""Fields that files of version 0.1 do not have."""


def _nothing() -> Tensor:
    return torch.empty(0, 0)


@dataclass(frozen=True, eq=False)
class TaskLatents:
    """Latents after a task was learned. Labels are numbered in the order of arrival.

    Args:
        test: Test images of all classes so far, under the current model, (N, D).
        test_labels: Their labels, (N,).
        new: Training images of the task's own classes, not augmented, under the current model, (M, D).
        new_labels: Their labels, (M,).
        memory: Exemplars of all classes so far, not augmented, under the current model, (K, D); K may be 0.
        memory_labels: Their labels, (K,).
        pairs_previous: Augmented training images of the task's own classes under the previous model, (P, D); P is 0
            for the first task.
        pairs_current: The same augmented images under the current model, (P, D).
        new_previous: The images of `new` under the previous model, (M, D); empty for the first task.
        memory_previous: The images of `memory` under the previous model, (K, D); empty for the first task.
    """

    test: Tensor
    test_labels: Tensor
    new: Tensor
    new_labels: Tensor
    memory: Tensor
    memory_labels: Tensor
    pairs_previous: Tensor
    pairs_current: Tensor
    new_previous: Tensor = field(default_factory=_nothing)
    memory_previous: Tensor = field(default_factory=_nothing)

    @property
    def old_classes(self) -> int:
        """Number of classes that came before this task."""
        return int(self.new_labels.min())

    @property
    def classes(self) -> int:
        """Number of classes so far."""
        return int(self.new_labels.max()) + 1

    def save(self, path: Path) -> None:
        """Write everything to one file."""
        write_tensors(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> TaskLatents:
        """Read what `save` wrote; raise `DamagedRunError` for anything else."""
        names = [field.name for field in fields(cls)]
        tensors, _ = read_tensors(path, expect=[name for name in names if name not in LATER])
        return cls(**{name: tensor for name, tensor in tensors.items() if name in names})


@torch.no_grad()
def latents_of(model: Classifier, split: Split, rows: Tensor, *, engine: Engine, size: int) -> Tensor:
    """Extract the latents of the images in these rows, not augmented: (N, D) on the CPU."""
    model.eval()
    mine, size = engine.part(rows, size)
    batches = split.batches(mine, size=size)
    found = [engine.gather(model.latents(engine.images(images))).cpu() for images, _ in batches]
    return torch.cat(found)[: len(rows)] if found else torch.empty(0, model.backbone.latent_dim)


def pairs_of(
    previous: Classifier,
    current: Classifier,
    split: Split,
    rows: Tensor,
    aligner: AlignerConfig,
    *,
    engine: Engine,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Extract the latents of the same augmented images under two models: what an aligner is fitted on.

    Each of `aligner.passes` passes has another augmentation.
    """
    batches = _Augmented(split, rows, engine=engine, size=aligner.batch_size, seed=seed)
    previous.eval(), current.eval()
    pair = extract_pairs(
        lambda images: engine.gather(previous.latents(images)),
        lambda images: engine.gather(current.latents(images)),
        batches,
        passes=aligner.passes,
        mixup=aligner.mixup,
        seed=derive_seed(seed, engine.purpose("mixup")),
    )
    # Where the rows did not divide evenly among processes, each pass has a few too many.
    dim = current.backbone.latent_dim
    before, after = (side.cpu().view(aligner.passes, -1, dim)[:, : len(rows)].reshape(-1, dim) for side in pair)
    return before, after


class _Augmented:
    """Batches with another augmentation in each pass."""

    def __init__(self, split: Split, rows: Tensor, *, engine: Engine, size: int, seed: int) -> None:
        self._split, self._rows, self._engine, self._size, self._seed = split, rows, engine, size, seed
        self._passes = 0

    def __iter__(self) -> Iterator[Tensor]:
        # In another order each time: a batch of mixup blends images with each other, and files are sorted by class.
        generator = torch.Generator().manual_seed(derive_seed(self._seed, f"order of pass {self._passes}"))
        rows = self._rows[torch.randperm(len(self._rows), generator=generator)]
        seed = derive_seed(self._seed, self._engine.purpose(f"augmentation of pass {self._passes}"))
        self._passes += 1
        rows, size = self._engine.part(rows, self._size)
        for images, _ in self._split.batches(rows, size=size, augment=seed):
            yield self._engine.images(images)
