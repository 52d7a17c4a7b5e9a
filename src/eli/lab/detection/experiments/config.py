"""The configuration of `eli detect run`: what the user types, made into checked values.

Imported by the modules of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from eli.lab.detection.experiments.sections import (
    DataConfig,
    DetectorTrainConfig,
    EvaluationConfig,
    LearnerConfig,
    MemoryConfig,
    ModelConfig,
    RegionAlignerConfig,
)
from eli.lab.experiments.config_files import compose_tree
from eli.lab.experiments.config_overrides import read_overrides
from eli.lab.experiments.config_tree import ConfigTree
from eli.lab.experiments.config_values import Checked, Range, build
from eli.lab.experiments.run_config import digest_of, flatten, only_aligner
from eli.lab.experiments.run_sections import ProtocolConfig

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
    package="eli.lab.detection.config",
    sections={cls.key: cls for cls in _SECTIONS},
    plain=("seed", "out", "start_from"),
    paths=("out", "start_from", "data.path", "data.data_dir"),
    examples=("learner=iod", "train.epochs=3"),
)
"""The settings of detection runs."""


@dataclass(frozen=True)
class DetectionConfig(Checked):
    """Everything that decides a detection run."""

    learner: LearnerConfig
    data: DataConfig
    protocol: ProtocolConfig
    model: ModelConfig
    train: DetectorTrainConfig
    memory: MemoryConfig
    aligner: RegionAlignerConfig
    evaluation: EvaluationConfig
    preset: str
    seed: Annotated[int, Range(at_least=0, below=2**63)]
    out: str | None
    """The folder of the run; None: the command chooses one."""
    start_from: str | None
    """A run whose model of the first task is taken over."""

    def training_digest(self) -> str:
        """A short hash of what decides the trained detectors."""
        apart = ("aligner.", "evaluation.")
        return digest_of({key: value for key, value in flatten(self).items() if not key.startswith(apart)})

    def digest(self) -> str:
        """A short hash of what decides the results."""
        return digest_of(flatten(self))

    def first_task(self) -> dict[str, Any]:
        """What decides the detector after the first task, by key; but for its classes and the way of training."""
        apart = ("train.epochs", "train.precision", "train.layout")
        return {
            key: value
            for key, value in flatten(self).items()
            if (key.partition(".")[0] in ("data", "train", "model") or key == "seed") and key not in apart
        }


def compose(overrides: Sequence[str] = ()) -> DetectionConfig:
    """The configuration that the user asked for.

    Args:
        overrides: What was typed: `learner=ilod`, `data=voc`, `train.epochs=3`, ... It wins over the preset.

    Raises:
        ConfigError: A setting does not exist, cannot have its value, or contradicts another one.

    Example:
        >>> config = compose(["learner=ilod", "preset=smoke", "protocol=8+2"])
        >>> config.learner.name, config.model.name, config.data.scenes
        ('ilod', 'tiny-c4', (120, 40))
    """
    return build(DetectionConfig, compose_tree(TREE, read_overrides(TREE, overrides)))


def from_dict(values: Mapping[str, Any]) -> DetectionConfig:
    """The configuration that `describe` was given.

    Raises:
        ConfigError: A setting is missing, unknown, or has a value it cannot take.
    """
    evaluation = values.get("evaluation")
    if isinstance(evaluation, Mapping):
        # Runs that are older than this setting had no such numbers.
        values = {**values, "evaluation": {"coco": False, **evaluation}}
    return build(DetectionConfig, values)


def with_aligner(config: DetectionConfig, new: Sequence[str]) -> DetectionConfig:
    """The configuration of a run that was trained, with another aligner.

    Raises:
        ConfigError: As for `compose`, or something is typed that the trained detectors depend on.
    """
    return only_aligner(TREE, config, RegionAlignerConfig, new, group_sets="shared_backbone")
