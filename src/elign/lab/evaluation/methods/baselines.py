"""The unchanged model, and baselines: simple aligners, a bias offset, a retrained head; then oracles and bounds.

Oracles know which test samples are old: they are baselines of the paper's protocol, and bounds.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from elign.classifiers.bias import best_offset, offset_scores
from elign.classifiers.linear_head import LinearHead
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import EvalInputs
from elign.lab.evaluation.methods.base import (
    BASE,
    BASELINES,
    BOUNDS,
    ORACLES,
    OldSamples,
    Prediction,
    aligned,
    method,
    predictions,
)

_baseline = partial(method, group=BASELINES)


@method("base", group=BASE, text="nothing is aligned", colour="reference", first_task=True)
def _base(inputs: EvalInputs) -> list[Prediction]:
    return predictions(inputs, inputs.test, inputs.memory)


def _everywhere(inputs: EvalInputs, aligner: str) -> list[Prediction]:
    return aligned(inputs, aligner, torch.ones(len(inputs.test)), exemplars=torch.ones(len(inputs.memory)))


_baseline("mean-shift/all", text="one constant shift of every sample")(partial(_everywhere, aligner="mean-shift"))
_baseline("ridge/all", text="a linear map of every sample")(partial(_everywhere, aligner="ridge"))
_DETECTORS = "of detectors: scores of old classes after a linear map, all others as they are"
_baseline("ridge/old-classes", text=_DETECTORS)(None)  # elign.lab.detection computes it
_OFFSET = "one number off the new classes' logits, chosen on exemplars"
_RETRAINED = "a linear head, trained on exemplars of old classes and data of new ones, balanced"


@_baseline("bias-offset", text=_OFFSET, needs=("exemplars-of-both",))
def _bias_offset(inputs: EvalInputs) -> Prediction:
    logits, old_classes = inputs.target.logits, inputs.old_classes
    offset = best_offset(logits(inputs.memory), inputs.memory_labels, old_classes=old_classes)
    return Prediction(offset_scores(logits(inputs.test).double(), [offset], boundaries=[old_classes]), "fc")


@_baseline("retrained-head", text=_RETRAINED, needs=("latents", "exemplars"))
def _retrained_head(inputs: EvalInputs) -> Tensor:
    old = inputs.old_memory
    z, labels = torch.cat([inputs.memory[old], inputs.new]), torch.cat([inputs.memory_labels[old], inputs.new_labels])
    head = LinearHead(seed=derive_seed(inputs.seed, "retrained head"))
    scores: Tensor = head.fit(z=z, labels=labels, classes=inputs.classes)(inputs.test)
    return scores


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
