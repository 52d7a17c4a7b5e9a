"""The label-free default of version 0.1: several classifiers that vote, chosen on training data.

It sees a `Material`, which holds no test label, prototypes of the task before and a map from there; its choice is made
before it is shown a test row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.classifiers.base import Aligned, LatentClassifier
from elign.classifiers.gaussian import Gaussian
from elign.classifiers.head import HeadLogits
from elign.classifiers.nearest_mean import NearestMean
from elign.classifiers.voting import Voting
from elign.lab.evaluation.material import Material
from elign.lab.evaluation.readings import Reading
from elign.lab.seeds import derive_seed
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.extraction import read_logits
from elign.utils.tensors import fixed_generator

_PER_CLASS = 20  # samples of each old class to choose offsets on, where there are no exemplars


class Labelled(NamedTuple):
    """Latents `(N, D)` and their classes `(N,)`."""

    z: Tensor
    labels: Tensor


def blend_of(material: Material, before: Tensor, forward: Aligner, ends: Sequence[int]) -> Voting:
    """Fit the vote of a task.

    Args:
        material: Of the task; its rows are latents.
        before: Prototypes (known, D) in the space of the task before.
        forward: The ridge map from there to the current space.
        ends: How many classes there were after each task before.
    """
    head = material.space.logits
    if material.has_all_exemplars:
        exemplars = Labelled(material.memory, material.memory_labels)
        return blend_exemplars(material.aligners["eli"], head, exemplars, task_boundaries=ends)
    return blend_prototypes(
        material.aligners["ridge"],
        forward,
        head,
        before,
        Labelled(material.new, material.new_labels),
        task_boundaries=ends,
        seed=derive_seed(material.seed, "stand-ins"),
    )


def blend_readings(material: Material, blend: Voting | None) -> Iterator[Reading]:
    """Yield the vote's scores of the test rows."""
    if blend is not None:
        yield Reading("blend", "blend", True, blend(material.test, logits=material.space.logits(material.test)))


def blend_exemplars(
    aligner: Aligner, head: Callable[[Tensor], Any], exemplars: Labelled, *, task_boundaries: int | Sequence[int]
) -> Voting:
    """Let the head and a discriminant of the aligned exemplars vote, chosen on the exemplars.

    Args:
        aligner: From the current space to the previous one, fitted.
        head: Latents to what the current head returns.
        exemplars: Of all classes.
        task_boundaries: As in `Voting`.
    """
    logits = read_logits(head, exemplars.z)
    moved = aligner.align(exemplars.z, generator=fixed_generator(exemplars.z))
    discriminant = Gaussian(shared=1.0, shrinkage=0.1, normalize=True)
    discriminant.fit(z=moved, labels=exemplars.labels, classes=logits.shape[1])
    return _voting([HeadLogits(), Aligned(aligner, discriminant)], exemplars, logits, task_boundaries)


def blend_prototypes(
    aligner: Aligner,
    forward: Aligner,
    head: Callable[[Tensor], Any],
    prototypes: Tensor,
    new: Labelled,
    *,
    task_boundaries: int | Sequence[int],
    seed: int = 0,
) -> Voting:
    """Let the head, prototypes moved forward and prototypes that latents are moved back to vote; without exemplars.

    Chosen on data of the new classes and samples of the old ones.

    Args:
        aligner: From the current space to the previous one, fitted.
        forward: From the previous space to the current one, fitted.
        head: Latents to what the current head returns.
        prototypes: Means (old classes, D) in the previous space.
        new: Of the new classes.
        task_boundaries: As in `Voting`.
        seed: Of the samples.
    """
    outputs = read_logits(head, new.z[:1]).shape[1]
    moved = forward.align(prototypes, generator=fixed_generator(prototypes))
    back = Labelled(aligner.align(new.z, generator=fixed_generator(new.z)), new.labels)
    ahead, behind = (_nearest(means, data, outputs) for means, data in ((moved, new), (prototypes, back)))
    made, classes = _samples(moved, new, seed=seed)
    chosen_on = Labelled(torch.cat([made, new.z]), torch.cat([classes, new.labels]))
    estimators = [HeadLogits(), ahead, Aligned(aligner, behind)]
    return _voting(estimators, chosen_on, read_logits(head, chosen_on.z), task_boundaries)


def _nearest(means: Tensor, new: Labelled, outputs: int) -> NearestMean:
    """Make a nearest-mean classifier of given means of old classes and of latents of new ones."""
    z, labels = torch.cat([means, new.z]), torch.cat([torch.arange(len(means)), new.labels])
    # Statistics, not latents: the vote is chosen on scores of the same latents, none of them left out.
    means_only = ClassStatistics(covariance="none").update(z, labels)
    return NearestMean(normalize=False).fit(statistics=means_only, classes=outputs)


def _samples(means: Tensor, new: Labelled, *, seed: int) -> Labelled:
    """Draw samples of old classes: a mean plus how far some latent of a new class is from its own mean."""
    first = len(means)
    born = NearestMean(normalize=False).fit(z=new.z, labels=new.labels - first).means
    residuals = new.z - born[new.labels - first]
    classes = torch.arange(first).repeat_interleave(_PER_CLASS)
    drawn = torch.randint(len(new.z), (len(classes),), generator=torch.Generator().manual_seed(seed))
    return Labelled(means[classes] + residuals[drawn], classes)


def _voting(
    estimators: Sequence[LatentClassifier], chosen_on: Labelled, logits: Tensor, boundaries: int | Sequence[int]
) -> Voting:
    # Equal weights: the model was trained on what they would be chosen on, and its head would get them all.
    voting = Voting(estimators, task_boundaries=boundaries, standard_errors=math.inf)
    return voting.fit(z=chosen_on.z, labels=chosen_on.labels, logits=logits)
