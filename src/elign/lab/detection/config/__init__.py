"""The settings of `elign detect run`: their types and checks; the YAML files beside this module have their values."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from elign.lab.config.composition import ConfigError, ConfigTree, Count, Flag, NotNegativeWhole, Section, Share, Text
from elign.lab.config.schema import ALIGNER_DEFAULTS, EnergyConfig, Option, ProtocolConfig, Settings, TrainConfig
from elign.lab.detection.c4_networks import DETECTORS
from elign.lab.detection.data import DETECTION_DATASETS, DataConfig
from elign.lab.detection.learners import DETECTION_LEARNERS

_Side = Annotated[int, Field(strict=True, ge=16, lt=2**31)]


class LearnerConfig(Section):
    """How the detector learns one task after the other."""

    name: Text
    options: dict[str, Option]
    """The learner's own settings, which it checks itself; they are typed as learner.temperature=2."""


class ModelConfig(Section):
    """The detector, by its name; a setting that is None has the value of that detector."""

    name: Text
    weights: Text | None
    """Of the backbone: a file, or "torchvision" for a download. None: drawn at random."""
    min_size: _Side | None
    max_size: _Side | None
    anchors: tuple[Count, ...] | None
    rois: Count | None
    proposals: Count | None
    """Regions of an image that are classified, after non-maximum suppression."""
    pool: Count | None
    nms: Share | None
    class_agnostic_boxes: Flag


class DetectorTrainConfig(TrainConfig):
    """How a task is trained."""

    optimizer: Literal["sgd", "adamw"]
    """SGD as published, or AdamW, with which small detectors learn faster from scratch; it ignores the momentum."""
    warm_up: NotNegativeWhole
    """Steps in which the learning rate rises to what the schedule says."""

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        if self.devices != 1:
            raise ConfigError("Detectors are trained on one device: leave train.devices out.")
        return self


class MemoryConfig(Section):
    """How many images of each class are kept, with all their boxes, for learners that fine-tune on a balanced set."""

    per_class: Count | None


class RegionAlignerConfig(EnergyConfig):
    """How the latents of regions are aligned."""

    shared_backbone: Flag
    """Whether both heads read the current backbone's features, as in the authors' code."""
    per_image: Count
    """Most regions of an image that the aligners learn from."""
    regions: Literal["objects", "others", "all"] = "objects"
    """Which regions these are: on objects of the new classes as published, all proposals but those, or both."""


class EvaluationConfig(Section):
    """How detections are counted."""

    method: Literal["area", "11-point"]
    overlap: Share
    coco: Flag
    """Whether COCO's average precision is computed, too; it has a rule and overlaps of its own."""


class DetectionConfig(Settings):
    """Everything that decides a detection run."""

    benchmark: ClassVar[str] = "detection"
    evaluation_keys: ClassVar[tuple[str, ...]] = ("aligner.", "evaluation.")

    learner: LearnerConfig
    data: DataConfig
    protocol: ProtocolConfig
    model: ModelConfig
    train: DetectorTrainConfig
    memory: MemoryConfig
    aligner: RegionAlignerConfig
    evaluation: EvaluationConfig


TREE = ConfigTree(
    model=DetectionConfig,
    package="elign.lab.detection.config",
    registries={"learner": DETECTION_LEARNERS, "data": DETECTION_DATASETS, "model": dict.fromkeys(DETECTORS)},
    defaults={"aligner": ALIGNER_DEFAULTS},
    aligner_choice="shared_backbone",
    examples=("learner=iod", "train.epochs=3"),
)
"""The settings of detection runs."""
