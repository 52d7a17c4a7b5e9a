"""`elign.Repair` as a user gets it: with statistics from birth, with exemplars, and with both."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from torch import nn

from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import EvalInputs
from elign.lab.evaluation.methods.base import REPAIRS, Prediction, method
from elign.repair import Repair
from elign.statistics.class_statistics import ClassStatistics

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
