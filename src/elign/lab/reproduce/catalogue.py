"""All experiments of the paper by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from elign.lab.reproduce.ablations import ablation
from elign.lab.reproduce.compute import compute
from elign.lab.reproduce.detection_plan import table2
from elign.lab.reproduce.jobs import Experiment
from elign.lab.reproduce.label_free import label_free
from elign.lab.reproduce.request import Request
from elign.lab.reproduce.tables import imagenet1k, implicit, logits, table1
from elign.lab.reproduce.toys import dimensions, toy
from elign.lab.reproduce.vocabulary import OF_DETECTION

EXPERIMENTS: Mapping[str, Callable[[Request], Experiment]] = {
    "toy": toy,
    "table1": table1,
    "imagenet1k": imagenet1k,
    "table2": table2,
    "langevin": partial(ablation, "langevin"),
    "iterations": partial(ablation, "iterations"),
    "architecture": partial(ablation, "architecture"),
    "logits": logits,
    "mixup": partial(ablation, "mixup"),
    "implicit": implicit,
    "compute": compute,
    "dimensions": dimensions,
    "label-free": label_free,
}
"""What makes the plan of each experiment, in the order of the paper; the last one is ours."""


def planned(names: Sequence[str], request: Request) -> list[Experiment]:
    """The plans of some experiments; `all` stands for those of classification, which share their settings.

    Raises:
        ConfigError: A setting does not fit an experiment.
    """
    if "all" in names:
        names = [name for name in EXPERIMENTS if name not in OF_DETECTION]
    return [EXPERIMENTS[name](request) for name in names]
