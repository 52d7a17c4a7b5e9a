"""The groups of settings that a detection run has of its own.

Which values they have by default is said in the files of `elign.lab.detection.config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.config_values import Checked, Count, Range
from elign.lab.experiments.run_sections import EnergyConfig, Option, SourceConfig, TrainConfig


@dataclass(frozen=True)
class LearnerConfig(Checked):
    """How the detector learns one task after the other."""

    key: ClassVar[str] = "learner"

    name: str
    options: dict[str, Option]
    """The learner's own numbers, which it checks itself; they are typed as learner.temperature=2."""


@dataclass(frozen=True)
class DataConfig(SourceConfig):
    """The images of a detector; each class draws `limit` training images of those that show it."""

    image_size: Annotated[int | None, Range(at_least=32)]
    """The most that the longer side of a picture may have; for scenes their side. None: as they are."""
    scenes: Annotated[tuple[int, int] | None, Range(at_least=1)]
    """How many training and test scenes are made; None for data that are not made."""
    flips: bool
    """Whether mirrored pictures may be learned from."""
    difficult: bool
    """Whether objects that are marked as difficult are learned from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name in ("voc", "coco") and self.path is None:
            raise ConfigError(f"data={self.name} needs data.path=FOLDER, in the format of {self.name.upper()}.")


@dataclass(frozen=True)
class ModelConfig(Checked):
    """The detector, by its name; where a number is None, it has the one of the detector."""

    key: ClassVar[str] = "model"

    name: str
    weights: str | None
    """Of the backbone: a file, or "torchvision" for a download. None: drawn at random."""
    min_size: Annotated[int | None, Range(at_least=16)]
    max_size: Annotated[int | None, Range(at_least=16)]
    anchors: Annotated[tuple[int, ...] | None, Range(at_least=1)]
    rois: Annotated[int | None, Range(at_least=1)]
    proposals: Annotated[int | None, Range(at_least=1)]
    """Regions of an image that are read, after non-maximum suppression."""
    pool: Annotated[int | None, Range(at_least=1)]
    nms: Annotated[float | None, Range(above=0, at_most=1)]
    class_agnostic_boxes: bool


@dataclass(frozen=True)
class DetectorTrainConfig(TrainConfig):
    """How a task is trained."""

    optimizer: Literal["sgd", "adamw"]
    """SGD as published, or AdamW, with which small detectors learn faster from scratch; it has no use for momentum."""
    warm_up: Annotated[int, Range(at_least=0)]
    """Steps in which the learning rate rises to what the schedule says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices != 1:
            raise ConfigError("Detectors are trained on one device: leave train.devices out.")


@dataclass(frozen=True)
class MemoryConfig(Checked):
    """How many images of each class are kept, with all their boxes, for learners that fine-tune on a balanced set."""

    key: ClassVar[str] = "memory"

    per_class: Annotated[int | None, Range(at_least=1)]


@dataclass(frozen=True)
class RegionAlignerConfig(EnergyConfig):
    """How the latents of regions are aligned."""

    shared_backbone: bool
    """Whether both heads read the current backbone's features, as in the authors' code."""
    per_image: Count
    """Most regions of an image that the aligners learn from."""
    regions: Literal["objects", "others", "all"] = "objects"
    """Which regions these are: on objects of the new classes as published, all proposals but those, or both."""


@dataclass(frozen=True)
class EvaluationConfig(Checked):
    """How detections are counted."""

    key: ClassVar[str] = "evaluation"

    method: Literal["area", "11-point"]
    overlap: Annotated[float, Range(above=0, at_most=1)]
    coco: bool
    """Whether COCO's average precision is computed, too; it has a rule and overlaps of its own."""
