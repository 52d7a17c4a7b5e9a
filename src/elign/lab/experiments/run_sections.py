"""The groups of settings that a run is made of.

What each may hold is said here; which values it has by default is said in the files of `elign.lab.config`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from elign.lab.data.memory import Selection
from elign.lab.data.protocol import Protocol, make_protocol
from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.config_values import Checked, Count, NotNegative, Positive, Range, convert

Option = bool | int | float | str
Branch = Literal["free", "scaled", "fixed"]

_OPTIONS: dict[str, Any] = {
    "temperature": Positive,
    "distillation": NotNegative,
    "less_forget": NotNegative,
    "margin": NotNegative,
    "top_k": Count,
    "ranking": NotNegative,
    "branch_one": Branch,
    "branch_two": Branch,
    "fusion_rate": NotNegative,
    "fusion_batches": Count,
}


@dataclass(frozen=True)
class LearnerConfig(Checked):
    """How the model learns one task after the other."""

    key: ClassVar[str] = "learner"

    name: str
    head: Literal["cosine", "linear"]
    freeze_old: bool
    """The old classes' prototypes of a cosine head do not train."""
    imprint: bool
    """New classes start with the mean direction of their latents."""
    options: dict[str, Option]
    """The learner's own numbers; on the command line they stand beside the others: learner.temperature=2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checked = {
            name: convert(value, _OPTIONS.get(name, Option), f"learner.{name}") for name, value in self.options.items()
        }
        object.__setattr__(self, "options", checked)


@dataclass(frozen=True)
class SourceConfig(Checked):
    """Which images are learned, and in which order their classes arrive, for every kind of run."""

    key: ClassVar[str] = "data"

    name: str
    path: str | None
    """The data set's own folder, for those that are folders of pictures."""
    data_dir: str | None
    """Where data sets are kept; None: the variable ELIGN_DATA, else the user's cache folder."""
    order: Annotated[int | None, Range(at_least=0, below=2**32)]
    """Seed of the order of classes; None: the natural order."""
    limit: Annotated[int | None, Range(at_least=1)]
    """How many training images of each class are used; None: all."""


@dataclass(frozen=True)
class DataConfig(SourceConfig):
    """The images of a classifier."""

    image_size: Annotated[int | None, Range(at_least=8)]
    """Side of the images; None: the usual one of the data set."""
    workers: Annotated[int, Range(at_least=0)]
    validation: Annotated[int | None, Range(at_least=1)] = None
    """How many training images of each class stand in for the test images, to choose settings on; None: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "folder" and self.path is None:
            raise ConfigError("data=folder needs data.path=FOLDER, where each class has a folder of images.")


@dataclass(frozen=True)
class ProtocolConfig(Checked):
    """How classes are split into tasks: by a protocol's name, or by sizes, which win over a name."""

    key: ClassVar[str] = "protocol"

    name: str | None
    first: Annotated[int | None, Range(at_least=1)]
    increment: Annotated[int | None, Range(at_least=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.first is None) != (self.increment is None):
            raise ConfigError("protocol.first and protocol.increment must be given together.")
        if self.first is None and self.name is None:
            raise ConfigError("A protocol needs a name, such as protocol=half-5, or protocol.first and .increment.")
        # One spelling for one split: two runs that differ in nothing else are then the same run.
        name = None if self.first is not None else re.sub(r"\Ab50-", "half-", self.name or "")
        object.__setattr__(self, "name", name)

    def protocol(self, classes: int) -> Protocol:
        """The tasks that so many classes are split into.

        Raises:
            ProtocolError: There is no such protocol, or the classes do not divide evenly.
        """
        if self.first is not None and self.increment is not None:
            return make_protocol(classes=classes, first=self.first, increment=self.increment)
        return make_protocol(self.name or "", classes)


@dataclass(frozen=True)
class ModelConfig(Checked):
    """The backbone, by its name."""

    key: ClassVar[str] = "model"

    name: str


@dataclass(frozen=True)
class TrainConfig(Checked):
    """How a task is trained: stochastic gradient descent, and the machine it runs on."""

    key: ClassVar[str] = "train"

    first_epochs: Count
    epochs: Count
    """Of each task after the first."""
    batch_size: Annotated[int, Range(at_least=2)]
    learning_rate: Positive
    momentum: Annotated[float, Range(at_least=0, below=1)]
    weight_decay: NotNegative
    schedule: Literal["steps", "one-cycle"]
    milestones: tuple[float, ...]
    """For the schedule "steps": the parts of the epochs after which the learning rate is multiplied by `gamma`."""
    gamma: Annotated[float, Range(above=0, at_most=1)]
    precision: Literal["auto", "32", "bf16"]
    layout: Literal["auto", "plain", "channels-last"]
    accelerator: Literal["auto", "cpu", "cuda", "mps"]
    devices: Count
    threads: Annotated[int | None, Range(at_least=1)]
    checkpoint_minutes: NotNegative
    eval_batch_size: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = all(one < other for one, other in itertools.pairwise((0.0, *self.milestones, 1.0)))
        if not rising:
            raise ConfigError(
                "train.milestones must be rising parts of the epochs between 0 and 1, such as [0.5,0.75], "
                f"not {list(self.milestones)}."
            )


@dataclass(frozen=True)
class MemoryConfig(Checked):
    """How many images of old classes are kept, and which; with neither number, none are."""

    key: ClassVar[str] = "memory"

    budget: Annotated[int | None, Range(at_least=1)]
    per_class: Annotated[int | None, Range(at_least=1)]
    selection: Selection

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None and self.per_class is not None:
            raise ConfigError("memory.budget and memory.per_class cannot both be given.")


@dataclass(frozen=True)
class EnergyConfig(Checked):
    """How latents are aligned, for every kind of run. No training of the run depends on it."""

    key: ClassVar[str] = "aligner"

    iterations: Count
    hidden: Annotated[tuple[int, ...], Range(at_least=1)]
    learning_rate: Positive
    batch_size: Count
    steps: Annotated[int, Range(at_least=0)]
    step_size: Positive
    noise: NotNegative
    half_step: bool
    ema_decay: Annotated[float, Range(at_least=0, below=1)]
    ridge_penalty: Positive
    energy_quantile: Annotated[float, Range(at_least=0, at_most=1)]


@dataclass(frozen=True)
class AlignerConfig(EnergyConfig):
    """How the latents of a classifier are aligned."""

    space: Literal["latent", "logits"]
    """What is aligned: the latents, or the logits of the old classes."""
    passes: Count
    """How many augmented passes over the task's data the aligners learn from."""
    mixup: Annotated[float | None, Range(above=0)]
    """Both parameters of the Beta distribution that images are mixed by; None: they are not."""
