"""How far latents drifted, and how much of it an aligner undoes, on held-out test images of old classes.

These numbers are made with test data and are only reported: nothing is chosen by them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.lab.evaluation.inputs import EvalInputs


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


def measure_drift(inputs: EvalInputs, *, old: Tensor, previous: Tensor) -> dict[str, Drift]:
    """Measure the drift before (`base`) and after each aligner.

    Args:
        inputs: Of the task.
        old: Which test samples are of old classes, (N,) bool.
        previous: Their latents under the previous model, (old samples, D).
    """
    target, everywhere = inputs.target, torch.ones(len(inputs.test))
    before, current = target.previous(previous), target.values(inputs.test)[old]
    moved = {name: target.values(inputs.move_test(name, everywhere))[old] for name in inputs.aligners}
    return {
        name: Drift(
            distance=float((z - before).norm(dim=1).mean()),
            cosine_distance=float((1 - F.cosine_similarity(z, before, dim=1)).mean()),
            moved=float((z - current).norm(dim=1).mean()),
        )
        for name, z in {"base": current, **moved}.items()
    }
