"""Latents of images under a model, each computed once. Imported by the runner."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from eli.extraction import extract_pairs
from eli.lab.data.split import Split
from eli.lab.experiments.engine import Engine
from eli.lab.models.classifier import Classifier
from eli.lab.seeds import derive_seed


@torch.no_grad()
def latents_of(model: Classifier, split: Split, rows: Tensor, *, engine: Engine, size: int) -> Tensor:
    """Latents of the images in these rows, not augmented: (N, D) on the CPU."""
    model.eval()
    found = [model.latents(engine.images(images)).cpu() for images, _ in split.batches(rows, size=size)]
    return torch.cat(found) if found else torch.empty(0, model.backbone.latent_dim)


def pairs_of(
    previous: Classifier,
    current: Classifier,
    split: Split,
    rows: Tensor,
    *,
    engine: Engine,
    size: int,
    passes: int,
    mixup: float | None,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Latents of the same augmented images under two models: what an aligner learns from.

    Args:
        previous: The model before the task.
        current: The model after it.
        split: The training images.
        rows: Those of the task's own classes.
        engine: Device and layout.
        size: Images per batch.
        passes: How often each image is taken, augmented anew each time.
        mixup: Alpha of the Beta distribution of mixup, None for none.
        seed: Of augmentation and mixup.
    """
    batches = _Augmented(split, rows, engine=engine, size=size, seed=seed)
    previous.eval(), current.eval()
    pair = extract_pairs(
        previous.latents, current.latents, batches, passes=passes, mixup=mixup, seed=derive_seed(seed, "mixup")
    )
    return pair[0].cpu(), pair[1].cpu()


class _Augmented:
    """Batches that are augmented anew each time they are gone through."""

    def __init__(self, split: Split, rows: Tensor, *, engine: Engine, size: int, seed: int) -> None:
        self._split, self._rows, self._engine, self._size, self._seed = split, rows, engine, size, seed
        self._passes = 0

    def __iter__(self) -> Iterator[Tensor]:
        # In a new order each time: a batch of mixup blends images with each other, and files are sorted by class.
        generator = torch.Generator().manual_seed(derive_seed(self._seed, f"order of pass {self._passes}"))
        rows = self._rows[torch.randperm(len(self._rows), generator=generator)]
        seed = derive_seed(self._seed, f"augmentation of pass {self._passes}")
        self._passes += 1
        for images, _ in self._split.batches(rows, size=self._size, augment=seed):
            yield self._engine.images(images)
