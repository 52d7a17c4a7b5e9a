"""Latents of images under a model, each computed once; several processes share the images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from elign.lab.data.split import Split
from elign.lab.experiments.crew import call_all
from elign.lab.experiments.engine import Engine
from elign.lab.models.classifier import Classifier
from elign.lab.seeds import derive_seed
from elign.utils.extraction import extract_pairs


@torch.no_grad()
def latents_of(model: Classifier, split: Split, rows: Tensor, *, engine: Engine, size: int) -> Tensor:
    """Latents of the images in these rows, not augmented: (N, D) on the CPU."""
    call_all(engine, latents_of, model, split, rows, size=size)
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
    call_all(engine, pairs_of, previous, current, split, rows, size=size, passes=passes, mixup=mixup, seed=seed)
    batches = _Augmented(split, rows, engine=engine, size=size, seed=seed)
    previous.eval(), current.eval()
    pair = extract_pairs(
        lambda images: engine.gather(previous.latents(images)),
        lambda images: engine.gather(current.latents(images)),
        batches,
        passes=passes,
        mixup=mixup,
        seed=derive_seed(seed, engine.purpose("mixup")),
    )
    # Each pass has a few rows too many, where they did not divide evenly.
    dim = current.backbone.latent_dim
    before, after = (side.cpu().view(passes, -1, dim)[:, : len(rows)].reshape(-1, dim) for side in pair)
    return before, after


class _Augmented:
    """Batches that are augmented anew each time they are gone through."""

    def __init__(self, split: Split, rows: Tensor, *, engine: Engine, size: int, seed: int) -> None:
        self._split, self._rows, self._engine, self._size, self._seed = split, rows, engine, size, seed
        self._passes = 0

    def __iter__(self) -> Iterator[Tensor]:
        # In a new order each time: a batch of mixup blends images with each other, and files are sorted by class.
        generator = torch.Generator().manual_seed(derive_seed(self._seed, f"order of pass {self._passes}"))
        rows = self._rows[torch.randperm(len(self._rows), generator=generator)]
        seed = derive_seed(self._seed, self._engine.purpose(f"augmentation of pass {self._passes}"))
        self._passes += 1
        rows, size = self._engine.part(rows, self._size)
        for images, _ in self._split.batches(rows, size=size, augment=seed):
            yield self._engine.images(images)
