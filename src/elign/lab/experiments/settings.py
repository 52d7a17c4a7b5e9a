"""What the configurations of all kinds of runs have: where they go, what they are told apart by, and their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.config_files import compose_tree
from elign.lab.experiments.config_overrides import read_overrides
from elign.lab.experiments.config_tree import ConfigTree
from elign.lab.experiments.config_values import Checked, Range, build, later_settings
from elign.lab.experiments.run_sections import EnergyConfig

PLAIN = ("seed", "out", "start_from")
"""Settings that are in no group, for the tree of each kind."""
PATHS = ("out", "start_from", "data.path", "data.data_dir")

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


@dataclass(frozen=True)
class Settings(Checked):
    """What every run has, whatever its kind."""

    reading: ClassVar[tuple[str, ...]] = ("aligner.",)
    """How the keys begin that no trained model depends on."""
    beginning: ClassVar[tuple[str, ...]] = ("seed",)
    """What decides the first task beside data, model and training."""

    preset: str
    seed: Annotated[int, Range(at_least=0, below=2**63)]
    out: str | None
    """The folder of the run; None: the command chooses one."""
    start_from: str | None
    """A run whose model of the first task is taken over."""

    def training_digest(self) -> str:
        """A short hash of what decides the trained models: equal for two runs whose checkpoints are interchangeable."""
        return _digest({key: value for key, value in flatten(self).items() if not key.startswith(self.reading)})

    def digest(self) -> str:
        """A short hash of what decides the results: the trained models and how they are read."""
        return _digest(flatten(self))

    def first_task(self) -> dict[str, Any]:
        """What decides the model after the first task, by key; but for its classes and the way of training chosen."""
        later = ("train.epochs", "train.precision", "train.layout")
        return {
            key: value
            for key, value in flatten(self).items()
            if (key.partition(".")[0] in ("data", "train", "model") or key in self.beginning) and key not in later
        }


def describe(config: Checked) -> dict[str, Any]:
    """The configuration as plain values that JSON can hold; `from_dict` makes it again."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


_Config = TypeVar("_Config", bound=Settings)


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


def flatten(config: Checked, *, without: Sequence[str] = _CIRCUMSTANCES) -> dict[str, Any]:
    """Every setting by the key that the user types, but for those named in `without`.

    Settings that came later are left out where they say what was done before they came: a run keeps its digest.
    """
    flat: dict[str, Any] = {}
    plain = describe(config)
    plain["learner"] |= plain["learner"].pop("options")
    for key, value in plain.items():
        parts = {key: value}
        if isinstance(value, dict):
            unsaid = later_settings(type(getattr(config, key)))
            parts = {
                f"{key}.{name}": part for name, part in value.items() if name not in unsaid or part != unsaid[name]
            }
        flat |= {name: part for name, part in parts.items() if name not in without}
    return flat


def _digest(values: Mapping[str, Any]) -> str:
    """A short hash of settings."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
