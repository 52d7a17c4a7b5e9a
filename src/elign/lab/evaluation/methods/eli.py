"""ELI: the paper's aligner with its oracle, with every sample aligned, and with label-free gates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from elign.gates import ByEnergy, ByPrediction, ByProbe, FixedStrength
from elign.lab.evaluation.inputs import EvalInputs
from elign.lab.evaluation.methods.base import ELI, GATES, OldSamples, Prediction, aligned, method

_eli, _gate = partial(method, group=ELI), partial(method, group=GATES, colour="accent")


@_eli("eli/oracle", text="truly old samples are aligned, as in the paper", uses_labels=True, colour="oracle")
def _oracle(inputs: EvalInputs, old: OldSamples) -> list[Prediction]:
    return aligned(inputs, "eli", old.mask)


@_eli("eli/all", text="every sample is aligned", colour="accent")
def _all(inputs: EvalInputs) -> list[Prediction]:
    return aligned(inputs, "eli", torch.ones(len(inputs.test)), exemplars=torch.ones(len(inputs.memory)))


_SHARE = "every sample is aligned by the same share, chosen on training data"


@_eli("eli/dose", text=_SHARE, needs=("latents",), colour="accent")
def _dose(inputs: EvalInputs) -> Prediction:
    latents, labels = inputs.new, inputs.new_labels
    if inputs.has("exemplars-of-both"):
        latents, labels = inputs.memory, inputs.memory_labels
    eli, logits = inputs.aligners["eli"], inputs.target.logits
    strength = FixedStrength().fit(eli, logits, latents, labels, old_classes=inputs.old_classes)
    weights = strength(inputs.test)
    return Prediction(logits(inputs.move_test("eli", weights)), "fc", weights)


def _gated(inputs: EvalInputs, weights: Tensor) -> list[Prediction]:
    return aligned(inputs, "eli", weights.float(), gated=True)


@_gate("eli/by-prediction", text="what the head takes for an old class is aligned")
def _by_prediction(inputs: EvalInputs) -> list[Prediction]:
    gate = ByPrediction(old_classes=inputs.old_classes)
    return _gated(inputs, gate(inputs.test, head=inputs.target.logits))


@_gate("eli/by-prediction-soft", text="each sample as far as the head gives probability to old classes")
def _by_prediction_soft(inputs: EvalInputs) -> list[Prediction]:
    gate = ByPrediction(old_classes=inputs.old_classes, soft=True)
    return _gated(inputs, gate(inputs.test, head=inputs.target.logits))


@_gate("eli/by-energy", text="samples of low energy are aligned")
def _by_energy(inputs: EvalInputs) -> list[Prediction]:
    values: Callable[[Tensor], Tensor] = inputs.target.values
    old, eli = inputs.old_exemplars, inputs.aligners["eli"]
    gate = ByEnergy(**inputs.settings.options_of(ByEnergy))
    gate.fit(eli, values(inputs.new), None if old is None else values(old))
    return _gated(inputs, gate(values(inputs.test), aligner=eli))


_PROBE = "what a probe on exemplars and new data takes for old is aligned"


@_gate("eli/by-probe", text=_PROBE, needs=("old-exemplars",))
def _by_probe(inputs: EvalInputs) -> list[Prediction]:
    # On whole rows: where rows are logits, those of the new classes tell old from new as well.
    gate = ByProbe().fit(inputs.memory[inputs.old_memory], inputs.new)
    return _gated(inputs, gate(inputs.test))


_DETECTORS = "of detectors: scores of old classes after alignment, all others as they are"
_gate("eli/old-classes", text=_DETECTORS)(None)  # elign.lab.detection computes it
