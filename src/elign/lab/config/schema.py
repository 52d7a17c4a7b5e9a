"""The settings of a run: their types, their checks, and what tells two runs apart.

Their defaults are in the YAML files beside this module: `config.yaml`, `choices.yaml`, `images.yaml` and `presets/`.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import Field, create_model, model_validator
from pydantic.fields import FieldInfo

from elign.aligners.energy import EnergyAligner
from elign.aligners.linear import Ridge
from elign.gates import ByEnergy
from elign.lab.config.composition import (
    ConfigError,
    ConfigTree,
    Count,
    Flag,
    NotNegative,
    NotNegativeWhole,
    Number,
    Positive,
    Section,
    Share,
    Text,
    Whole,
)
from elign.lab.models import BACKBONES
from elign.lab.registry import DATASETS, LEARNERS

Option = Flag | Whole | Number | Text


class LearnerConfig(Section):
    """How the model learns one task after the other."""

    name: Text
    head: Literal["cosine", "linear"]
    freeze_old: Flag
    """Whether the old classes' prototypes of a cosine head stay fixed."""
    imprint: Flag
    """Whether new classes start with the mean direction of their latents."""
    options: dict[str, Option]
    """The learner's own settings; on the command line they stand beside the others: learner.temperature=2."""


class SourceConfig(Section):
    """Which images are learned, and in which order their classes arrive, for every benchmark."""

    name: Text
    path: Text | None
    """The data set's own folder, for folders of pictures."""
    data_dir: Text | None
    """Where data sets are kept; None: the variable ELIGN_DATA, else the user's cache folder."""
    order: Annotated[int, Field(strict=True, ge=0, lt=2**32)] | None
    """Seed of the order of classes; None: the natural order."""
    limit: Count | None
    """How many training images of each class are used; None: all."""


class DataConfig(SourceConfig):
    """The images of a classifier."""

    image_size: Annotated[int, Field(strict=True, ge=8, lt=2**31)] | None
    """Side of the images; None: the usual one of the data set."""
    workers: NotNegativeWhole
    validation: Count | None = None
    """How many training images of each class replace the test images, to choose settings on; None: none."""

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if self.name == "folder" and self.path is None:
            raise ConfigError("data=folder needs data.path=FOLDER, where each class has a folder of images.")
        return self


class ProtocolConfig(Section):
    """How classes are split into tasks: by a protocol's name, or by sizes, which win over a name."""

    name: Text | None
    first: Count | None
    increment: Count | None

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, values: Any) -> Any:
        """Spell equal splits equally, so that two runs that differ in nothing else are the same run."""
        if not isinstance(values, Mapping):
            return values
        first, increment, name = (values.get(key) for key in ("first", "increment", "name"))
        if (first is None) != (increment is None):
            raise ConfigError("protocol.first and protocol.increment must be given together.")
        if first is None and name is None:
            raise ConfigError("A protocol needs a name, such as protocol=half-5, or protocol.first and .increment.")
        if first is not None:
            return {**values, "name": None}
        return {**values, "name": re.sub(r"\Ab50-", "half-", name)} if isinstance(name, str) else values


class ModelConfig(Section):
    """The backbone, by its name."""

    name: Text


class TrainConfig(Section):
    """How a task is trained: stochastic gradient descent, and the machine it runs on."""

    first_epochs: Count
    epochs: Count
    """Of each task after the first."""
    batch_size: Annotated[int, Field(strict=True, ge=2, lt=2**31)]
    learning_rate: Positive
    momentum: Annotated[float, Field(strict=True, ge=0, lt=1)]
    weight_decay: NotNegative
    schedule: Literal["steps", "one-cycle"]
    milestones: tuple[Number, ...]
    """For the schedule "steps": the parts of the epochs after which the learning rate is multiplied by `gamma`."""
    gamma: Share
    fast: Flag = False
    """Whether to train in bfloat16 with channels last, where the processor has the instructions for it."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"]
    devices: Count
    threads: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    """Threads of each process. Sums are split over them, so the number changes how they are rounded."""
    checkpoint_minutes: NotNegative
    eval_batch_size: Count

    @model_validator(mode="after")
    def _check_milestones(self) -> Self:
        if not all(one < other for one, other in itertools.pairwise((0.0, *self.milestones, 1.0))):
            raise ConfigError(
                "train.milestones must be rising parts of the epochs between 0 and 1, such as [0.5,0.75], "
                f"not {list(self.milestones)}."
            )
        return self


class MemoryConfig(Section):
    """How many images of old classes are kept, and which; with neither number, none are."""

    budget: Count | None
    per_class: Count | None
    selection: Literal["herding", "random"]

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.budget is not None and self.per_class is not None:
            raise ConfigError("memory.budget and memory.per_class cannot both be given.")
        return self


# The options of these classes are settings of the aligner, each declared once, by its class: (class, argument).
_OPTIONS: dict[str, tuple[type, str]] = {
    **{name: (EnergyAligner, name) for name in inspect.signature(EnergyAligner).parameters if name != "seed"},
    "ridge_penalty": (Ridge, "penalty"),
    "energy_quantile": (ByEnergy, "quantile"),
}
_STRICT = {int: Whole, float: Number, bool: Flag, Sequence[int]: tuple[Whole, ...]}
ALIGNER_DEFAULTS = {
    setting: inspect.signature(owner).parameters[argument].default
    for setting, (owner, argument) in _OPTIONS.items()
    if owner is not Ridge  # whose own default depends on the latents
}
_FIELDS: dict[str, Any] = {
    setting: (_STRICT.get(get_type_hints(owner.__init__)[argument], Number), FieldInfo())  # type: ignore[misc]
    for setting, (owner, argument) in _OPTIONS.items()
}
_AlignerOptions: Any = create_model("_AlignerOptions", __base__=Section, **_FIELDS)


class EnergyConfig(_AlignerOptions):  # type: ignore[misc]
    """How latents are aligned, for every benchmark. No training depends on it.

    Its settings are the options of `EnergyAligner` but for the seed, `ridge_penalty` and `energy_quantile`.
    """

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        for owner in (EnergyAligner, Ridge, ByEnergy):
            try:
                owner(**self.options_of(owner))
            except ValueError as error:
                raise ConfigError(f"aligner: {error}.") from None
        return self

    def options_of(self, owner: type) -> dict[str, Any]:
        """Return the arguments of `EnergyAligner` (but for its seed), `Ridge` or `ByEnergy`."""
        return {name: getattr(self, key) for key, (its, name) in _OPTIONS.items() if its is owner}


class AlignerConfig(EnergyConfig):
    """How the latents of a classifier are aligned."""

    space: Literal["latent", "logits"]
    """What is aligned: the latents, or the logits of the old classes."""
    passes: Count
    """How many augmented passes over the task's data the aligners learn from."""
    mixup: Positive | None
    """Both parameters of the Beta distribution that images are mixed by; None: they are not."""
    rivals: Flag = False
    """Whether to evaluate the field's other corrections, too."""


# Where and how a run happens, as opposed to what comes of it.
_CIRCUMSTANCES = (
    "preset",  # its values count, not its name
    "out",
    "start_from",  # allowed only where the model taken over is the one that would be trained
    "data.data_dir",
    "data.workers",
    "train.accelerator",
    "train.checkpoint_minutes",
    "train.eval_batch_size",
)


class Settings(Section):
    """The settings that every benchmark has."""

    benchmark: ClassVar[str]
    evaluation_keys: ClassVar[tuple[str, ...]] = ("aligner.",)
    """How the keys start that no trained model depends on."""
    first_task_keys: ClassVar[tuple[str, ...]] = ("seed",)
    """What decides the first task beside data, model and training."""

    preset: Text
    seed: NotNegativeWhole
    out: Text | None
    """The folder of the run; None: the command chooses one."""
    start_from: Text | None
    """A run whose model of the first task is taken over."""

    def training_digest(self) -> str:
        """Hash what decides the trained models: equal for two runs whose checkpoints are interchangeable."""
        flat = flatten(self)
        return _digest({key: value for key, value in flat.items() if not key.startswith(self.evaluation_keys)})

    def digest(self) -> str:
        """Hash what decides the results: the trained models and how they are evaluated."""
        return _digest(flatten(self))

    def first_task(self) -> dict[str, Any]:
        """Return what decides the model after the first task, by key, but for the number of its classes."""
        keys = self.first_task_keys
        return {
            key: value
            for key, value in flatten(self, whole=True).items()
            if (key.partition(".")[0] in ("data", "train", "model") or key in keys) and key != "train.epochs"
        }


def describe(config: Section) -> dict[str, Any]:
    """Return the configuration as plain values that JSON can hold; `TREE.from_dict` makes it again."""
    return config.model_dump(mode="json")


def flatten(config: Settings, *, whole: bool = False) -> dict[str, Any]:
    """Return every setting that decides results, by the key that the user types.

    Settings with a default in the schema came later than the first runs. They are left out where they have it, so that
    those runs keep their digests; `whole` keeps them.
    """
    flat: dict[str, Any] = {}
    plain = describe(config)
    plain["learner"] |= plain["learner"].pop("options")
    for key, value in plain.items():
        if isinstance(value, dict):
            later = {} if whole else type(getattr(config, key)).model_fields
            flat |= {
                f"{key}.{name}": part
                for name, part in value.items()
                if name not in later or later[name].is_required() or part != later[name].default
            }
        else:
            flat[key] = value
    return {key: value for key, value in flat.items() if key not in _CIRCUMSTANCES}


def _digest(flat: Mapping[str, Any]) -> str:
    """Hash settings; with the names that `train.fast` had in earlier versions, so that their runs are recognised."""
    values = dict(flat)
    fast = values.pop("train.fast", False)
    values["train.precision"] = "bf16" if fast else "32"
    values["train.layout"] = "channels-last" if fast else "plain"
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RunConfig(Settings):
    """Everything that decides a class-incremental run."""

    benchmark: ClassVar[str] = "classification"
    first_task_keys: ClassVar[tuple[str, ...]] = ("learner.head", "seed")

    learner: LearnerConfig
    data: DataConfig
    protocol: ProtocolConfig
    model: ModelConfig
    train: TrainConfig
    memory: MemoryConfig
    aligner: AlignerConfig


TREE = ConfigTree(
    model=RunConfig,
    package="elign.lab.config",
    registries={"learner": LEARNERS, "data": DATASETS, "model": dict.fromkeys(BACKBONES)},
    defaults={"aligner": ALIGNER_DEFAULTS},
    implied={"memory.budget": ("memory", "budget"), "memory.per_class": ("memory", "per-class")},
    aligner_choice="space",
    examples=("learner=lucir", "train.epochs=3"),
)
"""The settings of class-incremental runs."""


def compose(words: Sequence[str] = ()) -> RunConfig:
    """Make the configuration that a user asks for.

    Args:
        words: What was typed: `learner=lucir`, `preset=paper`, `train.epochs=3`, ... It wins over the preset.

    Raises:
        ConfigError: A setting does not exist, cannot have its value, or contradicts another one.

    Example:
        >>> config = compose(["learner=lucir", "data=cifar100", "train.epochs=3"])
        >>> config.learner.name, config.model.name, config.train.epochs, config.preset
        ('lucir', 'resnet20', 3, 'small')
    """
    return TREE.compose(words)
