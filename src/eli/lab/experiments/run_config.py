"""The configuration of `eli run`: what the user types, made into checked values. Commands and experiments import it.

The values come from the files of `eli.lab.config`, which hydra puts together; nothing else of hydra is used.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from eli.lab.experiments.config_errors import ConfigError, did_you_mean
from eli.lab.experiments.config_values import Checked, Range, build, hints
from eli.lab.experiments.run_overrides import CONFIG_PACKAGE, PATHS, PLAIN, choices, read_overrides, with_implied
from eli.lab.experiments.run_sections import (
    AlignerConfig,
    DataConfig,
    LearnerConfig,
    MemoryConfig,
    ModelConfig,
    ProtocolConfig,
    TrainConfig,
)

__all__ = [
    "AlignerConfig",
    "ConfigError",
    "DataConfig",
    "LearnerConfig",
    "MemoryConfig",
    "ModelConfig",
    "ProtocolConfig",
    "RunConfig",
    "TrainConfig",
    "choices",
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

_SECTIONS: dict[str, type[Checked]] = {
    cls.key: cls
    for cls in (LearnerConfig, DataConfig, ProtocolConfig, ModelConfig, TrainConfig, MemoryConfig, AlignerConfig)
}

# Hydra keeps what it is doing in a global, so only one thread at a time may ask it.
_HYDRA = threading.Lock()


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
        return _hash({key: value for key, value in flatten(self).items() if not key.startswith("aligner.")})

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
        return _hash(flatten(self))


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
    return _compose(read_overrides(overrides, _SECTIONS))


def with_aligner(config: RunConfig, new: Sequence[str]) -> RunConfig:
    """The configuration of a run that was trained, with another aligner.

    Args:
        config: Of the run.
        new: What is typed now.

    Raises:
        ConfigError: As for `compose`, or something is typed that the trained models depend on.
    """
    given = read_overrides(new, _SECTIONS)
    others = [key for key in given if key.partition(".")[0] != "aligner"]
    if others:
        raise ConfigError(
            f"{', '.join(others)} cannot change once the run is trained; only the settings of the aligner can."
        )
    read = _compose(given).aligner
    # A choice of the group says what is aligned; every other setting stands for itself.
    names = ["space" if key == "aligner" else key.partition(".")[2] for key in given]
    return replace(config, aligner=replace(config.aligner, **{name: getattr(read, name) for name in names}))


def describe(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain values that JSON can hold; `from_dict` makes it again."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `describe` was given.

    Raises:
        ConfigError: A setting is missing, unknown, or has a value it cannot take.
    """
    return build(RunConfig, values)


def _compose(given: Mapping[str, str]) -> RunConfig:
    # A path can be any text, so these go round hydra's grammar.
    paths = {key: _path(key, value) for key, value in given.items() if key in PATHS}
    tree = _ask_hydra({key: value for key, value in with_implied(given).items() if key not in paths})
    for key, path in paths.items():
        group, _, name = key.rpartition(".")
        (tree[group] if group else tree)[name] = path
    own = hints(LearnerConfig).keys()
    learner = tree["learner"]
    options = {name: value for name, value in learner.items() if name not in own}
    tree["learner"] = {name: value for name, value in learner.items() if name in own} | {"options": options}
    return build(RunConfig, tree)


def _path(key: str, text: str) -> str | None:
    if text == "null":
        return None
    # A run may go on from another folder than it began in; where it is itself is known by then.
    return text if key == "out" else str(Path(text).expanduser().resolve())


def _ask_hydra(given: Mapping[str, str]) -> dict[str, Any]:
    # Imported here: it takes most of a second, and `eli --help` need not wait for it.
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    chosen = tuple(sorted(f"{key}={value}" for key, value in given.items() if "." not in key and key not in PLAIN))
    settings = {key: value for key, value in given.items() if "." in key or key in PLAIN}
    try:
        with _HYDRA:
            tree = deepcopy(_compose_files(chosen))
        _check_options(settings, tree["learner"])
        for key, text in settings.items():
            OmegaConf.update(tree, key, _read_value(key, text))
        plain = OmegaConf.to_container(tree, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"These settings cannot be read: {str(error).strip().partition(chr(10))[0]}") from None
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


@cache
def _compose_files(chosen: tuple[str, ...]) -> Any:
    """What the files say for these choices: always the same, so it is worked out once."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    # A program of hydra's own may be running us: its state is put back.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(CONFIG_PACKAGE, job_name="eli", version_base="1.3"):
            return hydra_compose("config", list(chosen))
    finally:
        GlobalHydra.instance().hydra = outer


def _read_value(key: str, text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    typed = f"{key}={text}"
    try:
        override = OverridesParser.create().parse_override(typed)
    except HydraException:
        raise ConfigError(f"The value of {typed!r} cannot be read; a text may need quotes: key='...'.") from None
    if override.is_sweep_override():
        raise ConfigError(f"{typed!r} gives several values; a run has one. A list is written in brackets: [1,2].")
    return override.value()


def _check_options(given: Mapping[str, str], learner: Mapping[str, Any]) -> None:
    has = [str(name) for name in learner if name != "name"]
    for key in given:
        group, _, name = key.partition(".")
        if group == "learner" and name and name not in has:
            meant = did_you_mean(name, has)
            raise ConfigError(
                f"The learner {learner['name']!r} has no setting {key!r}.{meant} It has: {', '.join(has)}."
            )


def flatten(config: RunConfig, *, without: Sequence[str] = _CIRCUMSTANCES) -> dict[str, Any]:
    """Every setting by the key that the user types, but for those named in `without`."""
    flat: dict[str, Any] = {}
    plain = describe(config)
    plain["learner"] |= plain["learner"].pop("options")
    for key, value in plain.items():
        parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        flat |= {name: part for name, part in parts.items() if name not in without}
    return flat


def _hash(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
