"""The configuration of `eli run`: what the user types, made into checked values. Commands and experiments import it.

The values come from the files of `eli.lab.config`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, TypeVar

from eli.lab.experiments.config_errors import ConfigError
from eli.lab.experiments.config_files import compose_tree
from eli.lab.experiments.config_overrides import read_overrides
from eli.lab.experiments.config_tree import ConfigTree
from eli.lab.experiments.config_values import Checked, Range, build
from eli.lab.experiments.run_sections import (
    AlignerConfig,
    DataConfig,
    EnergyConfig,
    LearnerConfig,
    MemoryConfig,
    ModelConfig,
    ProtocolConfig,
    TrainConfig,
)

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

# Where and how fast a run happens, as opposed to what comes of it. Precision and layout are not among them: they change
# how sums are rounded, and the models with them.
_CIRCUMSTANCES = (
    "preset",  # its values count, not its name
    "out",
    "start_from",  # allowed only where the model taken over is the one that would be trained
    "data.data_dir",
    "data.workers",
    "train.accelerator",
    "train.threads",
    "train.checkpoint_minutes",
    "train.eval_batch_size",
)

_SECTIONS = (LearnerConfig, DataConfig, ProtocolConfig, ModelConfig, TrainConfig, MemoryConfig, AlignerConfig)

TREE = ConfigTree(
    package="eli.lab.config",
    sections={cls.key: cls for cls in _SECTIONS},
    plain=("seed", "out", "start_from"),
    paths=("out", "start_from", "data.path", "data.data_dir"),
    implied={"memory.budget": ("memory", "budget"), "memory.per_class": ("memory", "per-class")},
    examples=("learner=lucir", "train.epochs=3"),
)
"""The settings of class-incremental runs."""


@dataclass(frozen=True)
class RunConfig(Checked):
    """Everything that decides a run."""

    learner: LearnerConfig
    data: DataConfig
    protocol: ProtocolConfig
    model: ModelConfig
    train: TrainConfig
    memory: MemoryConfig
    aligner: AlignerConfig
    preset: str
    seed: Annotated[int, Range(at_least=0, below=2**63)]
    out: str | None
    """The folder of the run; None: the command chooses one."""
    start_from: str | None
    """A run whose model of the first task is taken over."""

    def training_digest(self) -> str:
        """A short hash of what decides the trained models: equal for two runs whose checkpoints are interchangeable."""
        return digest_of({key: value for key, value in flatten(self).items() if not key.startswith("aligner.")})

    def first_task(self) -> dict[str, Any]:
        """What decides the model after the first task, by key; but for its classes and the way of training chosen."""
        later = ("train.epochs", "train.precision", "train.layout")
        return {
            key: value
            for key, value in flatten(self).items()
            if (key.partition(".")[0] in ("data", "train", "model") or key in ("learner.head", "seed"))
            and key not in later
        }

    def digest(self) -> str:
        """A short hash of what decides the results: the trained models and the aligner."""
        return digest_of(flatten(self))


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


_Config = TypeVar("_Config", bound=Checked)


def only_aligner(
    tree: ConfigTree, config: _Config, aligner: type[EnergyConfig], new: Sequence[str], *, group_sets: str
) -> _Config:
    """The configuration of any kind of run, with another aligner.

    Args:
        tree: Its settings.
        config: Of the run.
        aligner: What the settings of its aligner are.
        new: What is typed now.
        group_sets: The setting that a choice of the group `aligner` is about.
    """
    given = read_overrides(tree, new)
    others = [key for key in given if key.partition(".")[0] != "aligner"]
    if others:
        raise ConfigError(
            f"{', '.join(others)} cannot change once the run is trained; only the settings of the aligner can."
        )
    read = build(aligner, compose_tree(tree, given)["aligner"])
    # Every other setting than the choice of the group stands for itself.
    names = [group_sets if key == "aligner" else key.partition(".")[2] for key in given]
    changed = replace(getattr(config, "aligner"), **{name: getattr(read, name) for name in names})  # noqa: B009
    return replace(config, aligner=changed)  # type: ignore[call-arg]


def describe(config: Checked) -> dict[str, Any]:
    """The configuration as plain values that JSON can hold; `from_dict` makes it again."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `describe` was given.

    Raises:
        ConfigError: A setting is missing, unknown, or has a value it cannot take.
    """
    return build(RunConfig, values)


def flatten(config: Checked, *, without: Sequence[str] = _CIRCUMSTANCES) -> dict[str, Any]:
    """Every setting by the key that the user types, but for those named in `without`."""
    flat: dict[str, Any] = {}
    plain = describe(config)
    plain["learner"] |= plain["learner"].pop("options")
    for key, value in plain.items():
        parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        flat |= {name: part for name, part in parts.items() if name not in without}
    return flat


def digest_of(values: Mapping[str, Any]) -> str:
    """A short hash of settings."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
