"""The configuration of `elign run`: what the user types, made into checked values. Commands and experiments import it.

The values come from the files of `elign.lab.config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.config_files import compose_tree
from elign.lab.experiments.config_overrides import read_overrides
from elign.lab.experiments.config_tree import ConfigTree
from elign.lab.experiments.config_values import build
from elign.lab.experiments.run_sections import (
    AlignerConfig,
    DataConfig,
    LearnerConfig,
    MemoryConfig,
    ModelConfig,
    ProtocolConfig,
    TrainConfig,
)
from elign.lab.experiments.settings import PATHS, PLAIN, Settings, describe, flatten, only_aligner

__all__ = [
    "TREE",
    "AlignerConfig",
    "ConfigError",
    "DataConfig",
    "LearnerConfig",
    "MemoryConfig",
    "ModelConfig",
    "ProtocolConfig",
    "RunConfig",
    "TrainConfig",
    "compose",
    "describe",
    "flatten",
    "from_dict",
    "with_aligner",
]

_SECTIONS = (LearnerConfig, DataConfig, ProtocolConfig, ModelConfig, TrainConfig, MemoryConfig, AlignerConfig)

TREE = ConfigTree(
    package="elign.lab.config",
    sections={cls.key: cls for cls in _SECTIONS},
    plain=PLAIN,
    paths=PATHS,
    implied={"memory.budget": ("memory", "budget"), "memory.per_class": ("memory", "per-class")},
    examples=("learner=lucir", "train.epochs=3"),
    open_groups=("learner",),
)
"""The settings of class-incremental runs."""


@dataclass(frozen=True)
class RunConfig(Settings):
    """Everything that decides a run."""

    beginning: ClassVar[tuple[str, ...]] = ("learner.head", "seed")

    learner: LearnerConfig
    data: DataConfig
    protocol: ProtocolConfig
    model: ModelConfig
    train: TrainConfig
    memory: MemoryConfig
    aligner: AlignerConfig


def compose(overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration that the user asked for.

    Args:
        overrides: What was typed: `learner=lucir`, `preset=paper`, `train.epochs=3`, ... It wins over the preset.

    Raises:
        ConfigError: A setting does not exist, cannot have its value, or contradicts another one.

    Example:
        >>> config = compose(["learner=lucir", "data=cifar100", "train.epochs=3"])
        >>> config.learner.name, config.model.name, config.train.epochs, config.preset
        ('lucir', 'resnet20', 3, 'small')
    """
    return build(RunConfig, compose_tree(TREE, read_overrides(TREE, overrides)))


def with_aligner(config: RunConfig, new: Sequence[str]) -> RunConfig:
    """The configuration of a run that was trained, with another aligner.

    Args:
        config: Of the run.
        new: What is typed now.

    Raises:
        ConfigError: As for `compose`, or something is typed that the trained models depend on.
    """
    return only_aligner(TREE, config, AlignerConfig, new, group_sets="space")


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `describe` was given.

    Raises:
        ConfigError: A setting is missing, unknown, or has a value it cannot take.
    """
    return build(RunConfig, values)
