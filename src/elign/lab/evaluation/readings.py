"""Every way to read a task's test rows, as scores for all classes. Labels are counted elsewhere (`scoring.py`).

Two functions, by what they may know: `label_free_readings` gets a `Material`, which holds no test label;
`oracle_readings` is handed in addition which test samples are old, and nothing else made from labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elign.classifiers.bias import best_offset, offset_scores
from elign.classifiers.nearest_mean import NearestMean
from elign.lab.evaluation.class_means import cosines
from elign.lab.evaluation.gating import dose_weights, gate_weights
from elign.lab.evaluation.material import Material

MOVED_ALWAYS = ("eli", "mean-shift", "ridge")
"""Aligners that are read with every sample aligned."""
MOVED_BY_ORACLE = (*MOVED_ALWAYS, "random-shift", "untrained")
"""Aligners that are read with the truly old samples aligned."""

Classifier = Callable[[Tensor, Tensor], Tensor]
"""Test rows and exemplar rows to scores (N, seen)."""


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to read the test rows.

    Args:
        name: The reading, as in `catalogue.READINGS`.
        classifier: `fc`, `nearest-mean`, `prototypes` or `blend`.
        label_free: False if it knows which test samples are old.
        scores: One score for each sample and class, (N, seen); the highest one is the prediction.
        weights: How far each sample was moved, 0 to 1, (N,); None if nothing was.
        gated: Did a label-free gate choose the weights?
    """

    name: str
    classifier: str
    label_free: bool
    scores: Tensor
    weights: Tensor | None = None
    gated: bool = False


def label_free_readings(material: Material, *, quantile: float) -> Iterator[Reading]:
    """All readings that one could use: nothing here was made from a test label."""
    everything, nothing = torch.ones(len(material.test)), torch.zeros(len(material.test))
    all_exemplars, old_exemplars = torch.ones(len(material.memory)), _old_exemplars(material)
    gates = gate_weights(
        material.test,
        space=material.space,
        aligner=material.aligners["eli"],
        new=material.new,
        old=material.old_exemplars,
        known=material.known,
        quantile=quantile,
    )
    for classifier, read in classifiers(material).items():

        def moved(aligner: str, weights: Tensor, exemplars: Tensor, read: Classifier = read) -> Tensor:
            return read(material.move_test(aligner, weights), material.move_memory(aligner, exemplars))

        yield Reading("base", classifier, True, read(material.test, material.memory), nothing)
        for aligner in MOVED_ALWAYS:
            yield Reading(f"{aligner}/all", classifier, True, moved(aligner, everything, all_exemplars), everything)
        for gate, weights in gates.items():
            yield Reading(f"eli/{gate}", classifier, True, moved("eli", weights, old_exemplars), weights, gated=True)
    if material.space.has_latents:
        doses = dose_weights(material)
        yield Reading("eli/dose", "fc", True, material.space.logits(material.move_test("eli", doses)), doses)
    if material.has_exemplars_of_both:
        logits = material.space.logits(material.memory)
        offset = best_offset(logits, material.memory_labels, old_classes=material.known)
        shifted = offset_scores(material.space.logits(material.test).double(), [offset], boundaries=[material.known])
        yield Reading("bias-offset", "fc", True, shifted)


def oracle_readings(material: Material, *, old: Tensor, previous_logits: Tensor) -> Iterator[Reading]:
    """Readings that know of each test sample whether it is old: the paper's protocol, its controls and bounds.

    Args:
        material: Of the task.
        old: Which test samples are of old classes, (N,) bool.
        previous_logits: The previous model's logits of these, (old samples, known).
    """
    for classifier, read in classifiers(material).items():
        base = read(material.test, material.memory)
        for aligner in MOVED_BY_ORACLE:
            rows = material.move_test(aligner, old)
            exemplars = material.move_memory(aligner, _old_exemplars(material))
            yield Reading(f"{aligner}/oracle", classifier, False, read(rows, exemplars), old.float())
        one_sided = _without(base, rows=old, classes=slice(material.known, None))
        yield Reading("oracle-mask", classifier, False, one_sided)
        two_sided = _without(one_sided, rows=~old, classes=slice(0, material.known))
        yield Reading("oracle-mask-both", classifier, False, two_sided)
        if classifier == "fc":
            scores = one_sided.clone()
            scores[old, : material.known] = previous_logits.to(scores)
            yield Reading("previous-model", classifier, False, scores)


def forward_readings(test: Tensor, prototypes: Mapping[str, Tensor]) -> Iterator[Reading]:
    """Highest cosine to class prototypes (seen, D) in the current space; label-free, and without exemplars or head."""
    for name, means in prototypes.items():
        yield Reading(f"forward/{name}", "prototypes", True, cosines(test, means))


def classifiers(material: Material) -> dict[str, Classifier]:
    """The model's own head and, where rows are latents and every class has an exemplar, the nearest mean."""
    found: dict[str, Classifier] = {"fc": lambda rows, exemplars: material.space.logits(rows)}
    if material.space.has_latents and material.has_all_exemplars:
        found["nearest-mean"] = lambda rows, exemplars: NearestMean().fit(z=exemplars, labels=material.memory_labels)(
            rows
        )
    return found


def _old_exemplars(material: Material) -> Tensor:
    """Weights that move the exemplars of old classes: where old samples go, their class's mean goes too."""
    return material.memory_labels < material.known


def _without(scores: Tensor, *, rows: Tensor, classes: slice) -> Tensor:
    """Scores in which some rows cannot be taken for some classes."""
    masked = scores.clone()
    block = masked[rows]
    block[:, classes] = -torch.inf
    masked[rows] = block
    return masked
