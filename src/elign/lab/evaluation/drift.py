"""How far latents drifted, and how much of it an aligner undoes, on held-out test images of old classes.

Facts to report, made with test data: nothing is chosen by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.lab.evaluation.material import Material


@dataclass(frozen=True)
class Drift:
    """Means over test images of old classes, of their values z and of the previous model's z_prev.

    Args:
        distance: `mean |z - z_prev|`.
        cosine_distance: `mean 1 - <z, z_prev> / (|z| |z_prev|)`.
        moved: `mean |z - z_cur|`, the length of an aligner's moves; 0 for no aligner.
    """

    distance: float
    cosine_distance: float
    moved: float


def measure_drift(material: Material, *, old: Tensor, previous: Tensor) -> dict[str, Drift]:
    """Drift before (`base`) and after each aligner.

    Args:
        material: Of the task.
        old: Which test samples are of old classes, (N,) bool.
        previous: What their values were under the previous model, (old samples, D).
    """
    current = material.space.values(material.test)[old]
    everywhere = torch.ones(len(material.test))

    def after(aligner: str) -> Tensor:
        return material.space.values(material.move_test(aligner, everywhere))[old]

    places: Iterable[tuple[str, Tensor]] = [("base", current), *((name, after(name)) for name in material.aligners)]
    return {
        name: Drift(
            distance=float((z - previous).norm(dim=1).mean()),
            cosine_distance=float((1 - F.cosine_similarity(z, previous, dim=1)).mean()),
            moved=float((z - current).norm(dim=1).mean()),
        )
        for name, z in places
    }
