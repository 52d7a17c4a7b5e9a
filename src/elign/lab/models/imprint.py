"""Weight imprinting: start the prototypes of new classes at the mean direction of their latents."""

from __future__ import annotations

import torch
from torch import Tensor

from elign.lab.models.heads import SplitCosineHead, directions
from elign.utils.errors import LatentError
from elign.utils.tensors import check_finite


@torch.no_grad()
def imprint(head: SplitCosineHead, latents: Tensor, labels: Tensor) -> None:
    """Set `head.new` in place: w_c = normalise(mean_i z_i / |z_i|) * mean |w_old|, for every new class c.

    LUCIR does this before each task after the first, and the ELI paper's code base for iCaRL too.

    Args:
        head: The head of the task that begins.
        latents: (N, dim), of un-augmented training images of the new classes; those of old classes are passed over.
        labels: (N,) integers, positions among all classes of the head: the first new class has the number of old ones.

    Raises:
        LatentError: Shapes that do not fit, labels outside the head, latents that are not finite, or a new class that
            has no image or whose latents have no mean direction. The head is then unchanged.
    """
    _check(head, latents, labels)
    latents = latents.to(head.new.device, torch.promote_types(latents.dtype, torch.float32))
    labels = labels.to(head.new.device)
    old = head.old.shape[0]
    wanted = range(old, old + head.new.shape[0])
    absent = sorted(set(wanted) - set(labels.tolist()))
    if absent:
        raise LatentError(f"no latents to imprint for class {_named(absent)}; every new class needs an image")
    means = torch.stack([directions(latents[labels == label]).mean(dim=0) for label in wanted])
    flat = [label for label, mean in zip(wanted, means, strict=True) if not mean.any()]
    if flat:
        raise LatentError(f"the latents of class {_named(flat)} have no mean direction (all zero, or they cancel out)")
    length = torch.linalg.vector_norm(head.old.to(means.dtype), dim=1).mean()
    head.new.copy_(directions(means) * length)


def _named(classes: list[int]) -> str:
    return ", ".join(map(str, classes))


def _check(head: SplitCosineHead, latents: Tensor, labels: Tensor) -> None:
    if latents.ndim != 2 or latents.shape[1] != head.dim:
        raise LatentError(f"latents must be (N, {head.dim}), got {tuple(latents.shape)}")
    if labels.shape != latents.shape[:1]:
        raise LatentError(f"labels must be ({latents.shape[0]},), one for each latent, got {tuple(labels.shape)}")
    check_finite(latents, "latents")
    if labels.is_floating_point() or ((labels < 0) | (labels >= head.classes)).any():
        raise LatentError(f"labels must be whole numbers from 0 to {head.classes - 1}, positions among all classes")
