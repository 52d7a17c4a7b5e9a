"""The configuration of `elign detect run`: what the user types, made into checked values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from elign.lab.detection.experiments.sections import (
    DataConfig,
    DetectorTrainConfig,
    EvaluationConfig,
    LearnerConfig,
    MemoryConfig,
    ModelConfig,
    RegionAlignerConfig,
)
from elign.lab.experiments.config_files import compose_tree
from elign.lab.experiments.config_overrides import read_overrides
from elign.lab.experiments.config_tree import ConfigTree
from elign.lab.experiments.config_values import build
from elign.lab.experiments.run_sections import ProtocolConfig
from elign.lab.experiments.settings import PATHS, PLAIN, Settings, only_aligner

_SECTIONS = (
    LearnerConfig,
    DataConfig,
    ProtocolConfig,
    ModelConfig,
    DetectorTrainConfig,
    MemoryConfig,
    RegionAlignerConfig,
    EvaluationConfig,
)

TREE = ConfigTree(
    package="elign.lab.detection.config",
    sections={cls.key: cls for cls in _SECTIONS},
    plain=PLAIN,
    paths=PATHS,
    examples=("learner=iod", "train.epochs=3"),
)
"""The settings of detection runs."""


@dataclass(frozen=True)
class DetectionConfig(Settings):
    """Everything that decides a detection run."""

    reading: ClassVar[tuple[str, ...]] = ("aligner.", "evaluation.")

    learner: LearnerConfig
    data: DataConfig
    protocol: ProtocolConfig
    model: ModelConfig
    train: DetectorTrainConfig
    memory: MemoryConfig
    aligner: RegionAlignerConfig
    evaluation: EvaluationConfig


def compose(overrides: Sequence[str] = ()) -> DetectionConfig:
    """The configuration that the user asked for.

    Args:
        overrides: What was typed: `learner=ilod`, `data=voc`, `train.epochs=3`, ... It wins over the preset.

    Raises:
        ConfigError: A setting does not exist, cannot have its value, or contradicts another one.

    Example:
        >>> config = compose(["learner=ilod", "preset=smoke", "protocol=8+2"])
        >>> config.learner.name, config.model.name, config.data.scenes
        ('ilod', 'tiny-c4', (160, 40))
    """
    return build(DetectionConfig, compose_tree(TREE, read_overrides(TREE, overrides)))


def from_dict(values: Mapping[str, Any]) -> DetectionConfig:
    """The configuration that `describe` was given.

    Raises:
        ConfigError: A setting is missing, unknown, or has a value it cannot take.
    """
    return build(DetectionConfig, values)


def with_aligner(config: DetectionConfig, new: Sequence[str]) -> DetectionConfig:
    """The configuration of a run that was trained, with another aligner.

    Raises:
        ConfigError: As for `compose`, or something is typed that the trained detectors depend on.
    """
    return only_aligner(TREE, config, RegionAlignerConfig, new, group_sets="shared_backbone")
