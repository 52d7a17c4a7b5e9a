"""`elign.Repair` as a user gets it, with statistics from birth, exemplars, or both; and the default of version 0.1.

That default is `blend`: the head and classifiers of aligned latents vote, and offsets correct the bias.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.classifiers.base import Aligned, HeadLogits, LatentClassifier
from elign.classifiers.gaussian import Gaussian
from elign.classifiers.nearest_mean import NearestMean
from elign.classifiers.voting import Voting
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import EvalInputs
from elign.lab.evaluation.methods.base import REPAIRS, Prediction, method
from elign.repair import Repair
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.extraction import read_logits
from elign.utils.tensors import fixed_generator

_PER_CLASS = 20  # samples of each old class to choose offsets on, where there are no exemplars


class Labelled(NamedTuple):
    """Latents `(N, D)` and their classes `(N,)`."""

    z: Tensor
    labels: Tensor


_TEXT = "head, and a discriminant after alignment (without exemplars: prototypes), with offsets"


@method("blend", group=REPAIRS, text=_TEXT, needs=("latents",), colour="accent", first_task=True)
def _vote(inputs: EvalInputs) -> Prediction:
    logits = inputs.target.logits(inputs.test)
    if not inputs.old_classes:  # the head alone
        return Prediction(logits, "blend")
    voting = fit_vote(inputs)
    return Prediction(voting(inputs.test, logits=logits), "blend", fitted=voting)


def fit_vote(inputs: EvalInputs) -> Voting:
    """Fit the vote of a task after the first.

    Without exemplars the head, prototypes moved forward, and prototypes that latents are moved back to vote; the
    offsets are chosen on data of the new classes and samples of the old ones.
    """
    head, boundaries = inputs.target.logits, inputs.task_boundaries
    if inputs.has("exemplars"):
        exemplars = Labelled(inputs.memory, inputs.memory_labels)
        return vote_with_exemplars(inputs.aligners["eli"], head, exemplars, task_boundaries=boundaries)
    ridge, prototypes = inputs.aligners["ridge"], inputs.previous_prototypes["ridge"]
    new = Labelled(inputs.new, inputs.new_labels)
    moved = inputs.forward["ridge"].align(prototypes, generator=fixed_generator(prototypes))
    back = Labelled(ridge.align(new.z, generator=fixed_generator(new.z)), new.labels)
    estimators = [
        HeadLogits(),
        _nearest(moved, new, inputs.classes),
        Aligned(ridge, _nearest(prototypes, back, inputs.classes)),
    ]
    made, classes = _samples(moved, new, seed=derive_seed(inputs.seed, "stand-ins"))
    chosen_on = Labelled(torch.cat([made, new.z]), torch.cat([classes, new.labels]))
    return _voting(estimators, chosen_on, head(chosen_on.z), boundaries)


def vote_with_exemplars(
    aligner: Aligner, head: Callable[[Tensor], Any], exemplars: Labelled, *, task_boundaries: int | Sequence[int]
) -> Voting:
    """Let the head and a discriminant of the aligned exemplars of all classes vote; offsets are chosen on them, too.

    `head` maps latents to what the current head returns; `aligner` goes from the current space to the previous one.
    """
    logits = read_logits(head, exemplars.z)
    moved = aligner.align(exemplars.z, generator=fixed_generator(exemplars.z))
    discriminant = Gaussian(shared=1.0, shrinkage=0.1, normalize=True)
    discriminant.fit(z=moved, labels=exemplars.labels, classes=logits.shape[1])
    return _voting([HeadLogits(), Aligned(aligner, discriminant)], exemplars, logits, task_boundaries)


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


_repair = partial(method, group=REPAIRS, colour="accent")
_BOTH = "elign.Repair with statistics from birth and, where there are any, exemplars"
_STATISTICS = "elign.Repair with statistics from birth; no old image is stored"


@_repair("repair", text=_BOTH, needs=("labelled-pairs", "statistics"))
def _with_both(inputs: EvalInputs) -> Prediction:
    if not inputs.has("old-exemplars"):
        return _with_statistics(inputs)
    return _repaired(inputs, inputs.statistics_of("repair"), _exemplars(inputs))


@_repair("repair/statistics", text=_STATISTICS, needs=("labelled-pairs", "statistics"))
def _with_statistics(inputs: EvalInputs) -> Prediction:
    statistics = inputs.statistics_of("repair/statistics")
    return inputs.once("repair/statistics", lambda: _repaired(inputs, statistics, None))


@_repair("repair/exemplars", text="elign.Repair with exemplars alone", needs=("labelled-pairs", "exemplars"))
def _with_exemplars(inputs: EvalInputs) -> Prediction:
    return _repaired(inputs, None, _exemplars(inputs))


def _exemplars(inputs: EvalInputs) -> Any:
    """Return latents and labels of the exemplars and, where they are stored, their latents under the previous model."""
    stored = (inputs.memory_previous,) if len(inputs.memory_previous) else ()
    return (inputs.memory, inputs.memory_labels, *stored)


def _repaired(inputs: EvalInputs, statistics: ClassStatistics | None, exemplars: Any) -> Prediction:
    head, logits = inputs.target.head, inputs.target.logits
    linear = head if isinstance(head, nn.Linear) and head.out_features == inputs.classes else None
    # With its defaults, so that a row shows what a user gets: the head stays where the estimate promises nothing.
    made = Repair(seed=derive_seed(inputs.seed, "repair"))
    with warnings.catch_warnings():
        # Meant for somebody who can still collect more data.
        warnings.simplefilter("ignore")
        made.fit_latents(
            inputs.new_previous,
            inputs.new,
            inputs.new_labels,
            head=logits,
            weights=linear,
            statistics=statistics,
            exemplars=exemplars,
            task_boundaries=inputs.task_boundaries,
        )
    scores = made(inputs.test, logits=logits(inputs.test))
    return Prediction(scores, statistics=None if statistics is None else made.statistics)
