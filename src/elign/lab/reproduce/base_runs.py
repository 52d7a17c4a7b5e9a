"""Base runs and evaluations of them, as they are planned: settings, names, and what two runs have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from elign.lab.experiments.kinds import CLASSIFICATION, kind_named
from elign.lab.experiments.published import published_settings
from elign.lab.experiments.run_sections import EnergyConfig
from elign.lab.experiments.speed import Speed


@dataclass(frozen=True)
class BaseRun:
    """A run to be trained once, with the aligner of its preset.

    Args:
        overrides: What `elign run` would be given, or `elign detect run`, but for its folder.
        config: What that means; of its kind.
        learner: As typed; `aanet-implicit` is a setting of `aanet`.
        protocol: As typed.
        kind: The kind of run.
    """

    overrides: tuple[str, ...]
    config: Any = field(compare=False)  # follows from the overrides
    learner: str
    protocol: str
    kind: str = CLASSIFICATION

    @cached_property
    def digest(self) -> str:
        """A short hash of what decides its results."""
        return str(self.config.digest())

    @property
    def name(self) -> str:
        """Of its folder: what is most telling, and a digest that tells it from all others."""
        config = self.config
        return f"{self.learner}-{config.data.name}-{self.protocol}-seed{config.seed}-{self.digest[:8]}"

    @property
    def title(self) -> str:
        """In words, without the seed."""
        return f"{self.learner} on {self.config.data.name}, {self.protocol}"

    @cached_property
    def first_task(self) -> str:
        """Equal for runs with the same first task."""
        return first_task_key(self.config, self.kind)


@dataclass(frozen=True)
class Evaluation:
    """A base run read with some aligner.

    Args:
        run: The run.
        overrides: What is different from the run's own aligner, as typed; empty if nothing is.
        aligner: The aligner's settings.
    """

    run: BaseRun
    overrides: tuple[str, ...]
    aligner: EnergyConfig = field(compare=False)

    @property
    def name(self) -> str:
        """Of its folder below the run's; as `elign evaluate` would name it."""
        return "_".join(self.overrides).replace("/", "-")


def base_run(
    learner: str,
    data: str,
    protocol: str,
    *,
    preset: str,
    seed: int,
    settings: Sequence[str] = (),
    kind: str = CLASSIFICATION,
) -> BaseRun:
    """Plan a run.

    Args:
        learner: Its learner.
        data: Its data set.
        protocol: How classes come in tasks.
        preset: Its scale.
        seed: Its seed.
        settings: Whatever else the user wants.
        kind: The kind of run; what is published for one of classification is added to it.

    Raises:
        ConfigError: A setting is wrong.
    """
    if kind == CLASSIFICATION:
        settings = (*settings, *published_settings(data, protocol, preset, settings))
    overrides = (f"learner={learner}", f"data={data}", f"protocol={protocol}", f"preset={preset}", f"seed={seed}")
    config = kind_named(kind).compose([*overrides, *settings])
    return BaseRun((*overrides, *settings), config, learner, protocol, kind)


def evaluation(run: BaseRun, overrides: Sequence[str] = ()) -> Evaluation:
    """Plan to read a run with another aligner; with the same settings it is the run's own reading.

    Raises:
        ConfigError: A setting is wrong, or not of the aligner.
    """
    own = run.config.aligner
    aligner = kind_named(run.kind).with_aligner(run.config, overrides).aligner if overrides else own
    return Evaluation(run, () if aligner == own else tuple(overrides), aligner)


def first_task_key(config: Any, kind: str) -> str:
    """A text that is equal for two configurations of a kind whose models after the first task are equal.

    The number of classes is not known here, so protocols are compared by what they do with the first task; nor is the
    way of training that will be chosen, which is a question of its own for whoever takes a model over.
    """
    decisive = kind_named(kind).first_task(config, 0, Speed())
    return json.dumps(decisive | {"protocol": _first_part(config), "first": config.protocol.first}, sort_keys=True)


def _first_part(config: Any) -> str:
    name = config.protocol.name or ""
    if name.startswith("half-"):
        return "half"
    first, plus, _ = name.partition("+")
    return f"{first}{plus}"


def digests(stored: Any) -> frozenset[str]:
    """Digests of all configurations that a run on disk is a run of.

    They are its own, and those with `auto` for how it is trained: what that means is settled when a run begins.
    """
    some_way, some_layout = (replace(stored.train, precision="auto"), replace(stored.train, layout="auto"))
    ways = (stored.train, some_way, some_layout, replace(some_way, layout="auto"))
    return frozenset(replace(stored, train=way).digest() for way in ways)
