"""The model as it is, and label-free baselines: simple aligners for every sample, a bias offset, a retrained head."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from elign.classifiers.bias import best_offset, offset_scores
from elign.classifiers.linear_head import LinearHead
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import EvalInputs
from elign.lab.evaluation.methods.base import BASE, BASELINES, Prediction, aligned, method, predictions

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
