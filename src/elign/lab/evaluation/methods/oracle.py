"""Oracles: methods that know which test samples are old. Baselines of the paper's protocol, and bounds."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from elign.lab.evaluation.inputs import EvalInputs
from elign.lab.evaluation.methods.base import BOUNDS, ORACLES, OldSamples, Prediction, aligned, method, predictions

_bound = partial(method, group=BOUNDS, uses_labels=True, colour="oracle")


def _aligned(inputs: EvalInputs, old: OldSamples, aligner: str) -> list[Prediction]:
    return aligned(inputs, aligner, old.mask)


for _name, _text in {
    "mean-shift": "one constant shift of truly old samples",
    "ridge": "a linear map of truly old samples",
    "random-shift": "as long as ELI's moves, in a random direction",
    "untrained": "ELI with the energy model it starts from",
}.items():
    _oracle = method(f"{_name}/oracle", group=ORACLES, text=_text, uses_labels=True, colour="oracle")
    _oracle(partial(_aligned, aligner=_name))


def _masked(inputs: EvalInputs, old: OldSamples, scores: Tensor) -> Tensor:
    """Return scores in which old samples cannot be taken for new classes."""
    new_classes = torch.arange(inputs.classes) >= inputs.old_classes
    return scores.masked_fill(old.mask.unsqueeze(1) & new_classes, -torch.inf)


@_bound("oracle-mask", text="base; truly old samples choose among old classes")
def _mask(inputs: EvalInputs, old: OldSamples) -> list[Prediction]:
    base = predictions(inputs, inputs.test, inputs.memory)
    return [Prediction(_masked(inputs, old, each.scores), each.classifier) for each in base]


@_bound("oracle-mask-both", text="base; old among old classes, new among new ones")
def _mask_both(inputs: EvalInputs, old: OldSamples) -> list[Prediction]:
    wrong_side = old.mask.unsqueeze(1) != (torch.arange(inputs.classes) < inputs.old_classes)
    base = predictions(inputs, inputs.test, inputs.memory)
    return [Prediction(each.scores.masked_fill(wrong_side, -torch.inf), each.classifier) for each in base]


@_bound("previous-model", text="truly old samples go to the previous model")
def _previous_model(inputs: EvalInputs, old: OldSamples) -> Prediction:
    scores = _masked(inputs, old, inputs.target.logits(inputs.test))
    scores[old.mask, : inputs.old_classes] = inputs.target.previous_logits(old.previous).to(scores)
    return Prediction(scores, "fc")
