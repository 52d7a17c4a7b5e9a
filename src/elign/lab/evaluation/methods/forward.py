"""Nearest class means from birth, moved forward into the current model's space after each task; without exemplars."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.aligners.energy import EnergyAligner
from elign.aligners.kernel import LocalShift
from elign.aligners.linear import MeanShift, Ridge
from elign.classifiers.nearest_mean import NearestMean
from elign.lab.config.schema import EnergyConfig
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import EvalInputs
from elign.lab.evaluation.methods.base import BASELINES, Prediction, method
from elign.lab.models.classifier import directions

_TEXTS = {
    "none": "nearest class mean of the time when the class was learned",
    "mean-shift": "the same, moved forward after each task by one shift",
    "ridge": "the same, moved forward by a linear map",
    "eli": "the same, moved forward by ELI with the models exchanged",
    "local-shift": "the same, each moved as new images near it moved",
}
FORWARD = tuple(_TEXTS)
"""Names of the forward prototypes, in the order of their rows."""


def fit_forward(previous: Tensor, current: Tensor, *, settings: EnergyConfig, seed: int) -> dict[str, Aligner]:
    """Fit aligners from the previous space to the current one: all of `FORWARD` but `none`."""
    energy = settings.options_of(EnergyAligner) | {"seed": derive_seed(seed, "forward energy model")}
    aligners: dict[str, Aligner] = {
        "mean-shift": MeanShift(),
        "ridge": Ridge(**settings.options_of(Ridge)),
        "eli": EnergyAligner(**energy),
        "local-shift": LocalShift(seed=derive_seed(seed, "anchors")),
    }
    return {name: aligner.fit_latents(previous, current, direction="forward") for name, aligner in aligners.items()}


def move_prototypes(inputs: EvalInputs) -> dict[str, Tensor]:
    """Return the prototypes after a task: those from before in the current space, then the new classes' own means."""
    born = NearestMean(normalize=False).fit(z=inputs.new, labels=inputs.new_labels - inputs.old_classes).means
    moved = {}
    for name in FORWARD:
        before = inputs.previous_prototypes.get(name, born[:0])
        if name in inputs.forward:
            before = inputs.forward[name].align(before, generator=inputs.generator(f"forward noise, {name}"))
        moved[name] = torch.cat([before, born])
    return moved


def _nearest(inputs: EvalInputs, name: str) -> Prediction:
    return Prediction(directions(inputs.test) @ directions(inputs.prototypes[name]).t(), "prototypes")


for _name, _text in _TEXTS.items():
    _forward = method(f"forward/{_name}", group=BASELINES, text=_text, needs=("latents",), first_task=True)
    _forward(partial(_nearest, name=_name))
