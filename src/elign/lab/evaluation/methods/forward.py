"""Nearest class means from birth, moved forward into the current model's space after each task; without exemplars."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.aligners.energy import EnergyAligner
from elign.aligners.kernel import LocalShift
from elign.aligners.linear import MeanShift, Ridge
from elign.classifiers.nearest_mean import NearestMean
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import AlignerSettings, EvalInputs
from elign.lab.evaluation.methods.base import BASELINES, Prediction, method
from elign.lab.models.growing_heads import directions

_TEXTS = {
    "none": "nearest class mean of the time when the class was learned",
    "mean-shift": "the same, moved forward after each task by one shift",
    "ridge": "the same, moved forward by a linear map",
    "eli": "the same, moved forward by ELI with the models exchanged",
    "local-shift": "the same, each moved as new images near it moved",
}
FORWARD = tuple(_TEXTS)
"""Names of the forward prototypes, in the order of their rows."""


def fit_forward(previous: Tensor, current: Tensor, *, settings: AlignerSettings, seed: int) -> dict[str, Aligner]:
    """Fit aligners from the previous space to the current one: all of `FORWARD` but `none`."""
    aligners: dict[str, Aligner] = {
        "mean-shift": MeanShift(),
        "ridge": Ridge(penalty=settings.ridge_penalty),
        "eli": EnergyAligner(**settings.energy_options(), seed=derive_seed(seed, "forward energy model")),
        "local-shift": LocalShift(seed=derive_seed(seed, "anchors")),
    }
    return {name: aligner.fit_latents(previous, current, direction="forward") for name, aligner in aligners.items()}


def move_prototypes(
    prototypes: Mapping[str, Tensor],
    forward: Mapping[str, Aligner],
    latents: Tensor,
    labels: Tensor,
    *,
    old_classes: int,
    seed: int,
) -> dict[str, Tensor]:
    """Return the prototypes after a task: those from before in the current space, then the new classes' own means.

    Args:
        prototypes: (old classes, D) for each name of `FORWARD`; empty at the first task.
        forward: Fitted forward aligners by name. A name without one, `none`, stays where it is.
        latents: Training latents of the new classes.
        labels: Their labels.
        old_classes: Number of classes before the task.
        seed: Of the noise of aligners that use some.
    """
    born = NearestMean(normalize=False).fit(z=latents, labels=labels - old_classes).means
    moved = {}
    for name in FORWARD:
        before = prototypes.get(name, born[:0])
        if name in forward:
            generator = torch.Generator().manual_seed(derive_seed(seed, f"forward noise, {name}"))
            before = forward[name].align(before, generator=generator)
        moved[name] = torch.cat([before, born])
    return moved


def _nearest(inputs: EvalInputs, name: str) -> Prediction:
    return Prediction(directions(inputs.test) @ directions(inputs.prototypes[name]).t(), "prototypes")


for _name, _text in _TEXTS.items():
    _forward = method(f"forward/{_name}", group=BASELINES, text=_text, needs=("latents",), first_task=True)
    _forward(partial(_nearest, name=_name))
