"""Compose settings from YAML files and `key=value` texts, check them, and name what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from yaml import YAMLError

from elign.lab.registry import did_you_mean
from elign.utils.errors import ElignError, OptionError

_SHOWN = 300

# Strict: 1 is not true, "3" is not 3. Bounded, since Python's whole numbers have no end.
Whole = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
NotNegativeWhole = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]

PATHS = ("out", "start_from", "data.path", "data.data_dir")
"""Settings that are paths, hence any text at all."""


class ConfigError(ElignError, ValueError):
    """A setting that does not exist, has a value it cannot take, or contradicts another one."""


def unknown_choice(group: str, value: str, choices: Collection[str]) -> ConfigError:
    """Make the error of a group that does not have this choice."""
    return ConfigError(
        f"There is no {group} {value!r}.{did_you_mean(value, choices)} Choose from: {', '.join(sorted(choices))}."
    )


class Section(BaseModel):
    """A group of settings that cannot change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def replace(self, **changes: Any) -> Self:
        """Return a checked copy with other values."""
        return validate(type(self), {**dict(self), **changes})


_Config = TypeVar("_Config", bound=Section)


def validate(model: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Make a section of values; raise `ConfigError`, which names the first setting that is wrong."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_explain(model, error.errors(include_url=False)[0])) from None
    except (RecursionError, OverflowError) as error:
        raise ConfigError(f"These settings cannot be read: {error}.") from None


def _explain(model: type[Section], fault: Any) -> str:
    """Say in one line what pydantic found."""
    where = [str(part) for part in fault["loc"]]
    key = ".".join(where)
    key = key if key.isprintable() else repr(key)
    if fault["type"] == "value_error":
        said = str(fault["ctx"]["error"])
        return said if isinstance(fault["ctx"]["error"], ConfigError) else f"{key}: {said}"
    if fault["type"] == "missing":
        return f"The setting {key!r} is missing."
    if fault["type"] == "extra_forbidden":
        owner: Any = model
        for part in where[:-1]:
            owner = owner.model_fields[part].annotation
        return f"There is no setting {key!r}.{did_you_mean(where[-1], owner.model_fields)}"
    shown = repr(fault["input"])
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    if where[:2] == ["learner", "options"] and len(where) > 2:
        return f"learner.{where[2]} must be true, false, a number or a text, not {shown}.".replace("\n", " ")
    if fault["type"] == "model_type":
        return f"{key} must be a group of settings, not {shown}."
    wanted = _WANTED.get(fault["type"]) or re.sub(r"\A(Input|Value|String|Tuple) should ", "", fault["msg"])
    return f"{key} must {wanted}, not {shown}."


_WANTED = {
    "bool_type": "be true or false",
    "int_type": "be a whole number",
    "float_type": "be a number",
    "string_type": "be a text",
    "tuple_type": "be a list, such as [64,64] or []",
}


def upgrade(values: Mapping[str, Any], *, threads: int | None = None, precision: str | None = None) -> dict[str, Any]:
    """Rename the settings of version 0.1: `train.precision`, `train.layout` and `train.threads=null`.

    `threads` and `precision` are what such a run found out by itself, where its settings say null or "auto".
    """
    train = values.get("train")
    if not isinstance(train, Mapping) or "precision" not in train:
        return dict(values)
    kept = {key: value for key, value in train.items() if key not in ("precision", "layout")}
    kept["threads"] = threads or 1 if train.get("threads") is None else train["threads"]
    kept["fast"] = (precision if train["precision"] == "auto" else train["precision"]) == "bf16"
    return {**values, "train": kept}


@dataclass(frozen=True)
class ConfigTree(Generic[_Config]):
    """All settings of one benchmark: their schema, their files and their choices.

    Args:
        model: The schema.
        package: Where the YAML files are.
        registries: Objects by name, for each group that has some. A learner's `settings` are the defaults of its group,
            and its `check_options` checks them; a data set's `images` is the kind of its images.
        defaults: Values below those of `config.yaml`, by group.
        implied: The choice that a setting implies where the user made none: `{"memory.budget": ("memory", "budget")}`.
        aligner_choice: The setting that a choice of the group `aligner` is about.
        examples: Two settings, for messages.
    """

    model: type[_Config]
    package: str
    examples: tuple[str, str]
    aligner_choice: str
    registries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    implied: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def sections(self) -> dict[str, type[Section]]:
        """The groups that have settings of their own, by name."""
        return {
            name: info.annotation
            for name, info in self.model.model_fields.items()
            if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
        }

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups whose choices have names."""
        return (*self.sections, "preset")

    def choices(self, group: str) -> tuple[str, ...]:
        """Return the names of a group's choices."""
        if group == "preset":
            files = resources.files(self.package).joinpath("presets").iterdir()
            return tuple(sorted(file.name.removesuffix(".yaml") for file in files))
        own = _read(self.package, "choices.yaml").get(group, {})
        return tuple(sorted({*own, *self.registries.get(group, ())}))

    def compose(self, words: Sequence[str]) -> _Config:
        """Make the configuration that these `key=value` texts ask for."""
        return validate(self.model, self._values(self._read_words(words)))

    def from_dict(self, values: Mapping[str, Any]) -> _Config:
        """Make the configuration that `describe` was given, by this or an earlier version."""
        return validate(self.model, upgrade(values))

    def with_aligner(self, config: _Config, words: Sequence[str]) -> _Config:
        """Change settings of the aligner, and no others, in a configuration."""
        given = self._read_words(words)
        others = [key for key in given if key.partition(".")[0] != "aligner"]
        if others:
            raise ConfigError(
                f"{', '.join(others)} cannot change once the run is trained; only the settings of the aligner can."
            )
        found = self._values(given)["aligner"]
        names = [self.aligner_choice if key == "aligner" else key.partition(".")[2] for key in given]
        aligner: Section = getattr(config, "aligner")  # noqa: B009
        return config.replace(aligner={**aligner.model_dump(), **{name: found[name] for name in names}})

    def _read_words(self, words: Sequence[str]) -> dict[str, str]:
        """Return the texts of the values by their keys; a protocol's name is a setting, since any may be given."""
        given: dict[str, str] = {}
        for word in words:
            key, sign, value = (part.strip() for part in word.partition("="))
            if not sign or not key:
                raise ConfigError(f"{word!r} is no setting. Write key=value, such as {' or '.join(self.examples)}.")
            key = "protocol.name" if key == "protocol" else key
            if key in given:
                raise ConfigError(f"{key} is given twice: {given[key]!r} and {value!r}.")
            self._check_key(key)
            if key in self.groups and value not in self.choices(key):
                raise unknown_choice(key, value, self.choices(key))
            given[key] = value
        return given

    def _check_key(self, key: str) -> None:
        group, dot, name = key.partition(".")
        section = self.sections.get(group)
        if not dot and key in (*self.model.model_fields, "preset"):
            return
        if dot and section:
            if name == "name" and group != "protocol":
                names = ", ".join(self.choices(group))
                raise ConfigError(f"{key} cannot be set alone. Write {group}=NAME, one of: {names}.")
            # Which options a learner has is known only after it is chosen.
            if group == "learner" and name.isidentifier() and name != "options":
                return
            if group != "learner" and name in section.model_fields:
                return
        if key in _GONE:
            raise ConfigError(f"There is no setting {key!r} any more: {_GONE[key]}.")
        known = [
            f"{section}.{field}"
            for section, model in self.sections.items()
            for field in model.model_fields
            if field not in ("name", "options") or section == "protocol"
        ]
        bare = key.lstrip("-+~").lower().replace("-", "_")
        elsewhere = [repr(one) for one in known if one.endswith(f".{bare.rpartition('.')[2]}")]
        meant = f" Did you mean {' or '.join(elsewhere)}?" if elsewhere else ""
        meant = meant or did_you_mean(bare, (*self.groups, *self.model.model_fields, *known))
        raise ConfigError(f"There is no setting {key!r}.{meant}")

    def _values(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Merge the files that fit, then set what is given."""
        base = _read(self.package, "config.yaml")
        chosen = dict(base.pop("choices"))
        implied = [choice for key, choice in self.implied.items() if key in given]
        # A preset may choose otherwise, and what the user says must win over it.
        if len(implied) == 1:
            chosen |= dict(implied)
        chosen |= {key: value for key, value in given.items() if key in self.groups}
        data = self._choice("data", chosen["data"])
        images = data["data"].pop("images", None) or self.registries["data"][chosen["data"]].images
        of_images = _read(self.package, "images.yaml").get(images, {})
        chosen["preset"] = given.get("preset", of_images.pop("preset", chosen["preset"]))
        preset = _read(self.package, f"presets/{chosen['preset']}.yaml")
        learner = chosen["learner"]
        layers = [
            self.defaults,
            base,
            preset["settings"],
            of_images,
            data,
            preset.get("images", {}).get(images, {}),
            self._choice("learner", learner),
            preset.get("learners", {}).get(learner, {}).get(images, {}),
        ]
        layers += [self._choice(group, chosen[group]) for group in chosen if group not in _ORDERED]
        values: dict[str, Any] = OmegaConf.to_container(OmegaConf.merge(*map(OmegaConf.create, layers)))  # type: ignore[assignment]
        values["preset"] = chosen["preset"]
        self._check_options(given, values["learner"])
        for key, text in given.items():
            if key not in self.groups:
                group, _, name = key.rpartition(".")
                (values[group] if group else values)[name] = _value(key, text)
        return values | {"learner": self._with_options(values["learner"])}

    def _check_options(self, given: Mapping[str, str], learner: Mapping[str, Any]) -> None:
        has = [name for name in learner if name != "name"]
        for key in given:
            group, _, name = key.partition(".")
            if group == "learner" and name and name not in has:
                raise ConfigError(
                    f"The learner {learner['name']!r} has no setting {key!r}.{did_you_mean(name, has)} "
                    f"It has: {', '.join(has)}."
                )

    def _with_options(self, learner: dict[str, Any]) -> dict[str, Any]:
        """Put the learner's own settings apart, checked by the learner where it is registered."""
        own = self.sections["learner"].model_fields
        options = {name: learner.pop(name) for name in [*learner] if name not in own}
        registry = self.registries.get("learner", {})
        if learner["name"] in registry:
            try:
                options = registry[learner["name"]].check_options(options).model_dump()
            except OptionError as error:
                raise ConfigError(f"{error}.") from None
        return learner | {"options": options}

    def _choice(self, group: str, choice: str) -> dict[str, Any]:
        """Return the settings of a choice: those of the registered object, then those of the file.

        In the file, `also` holds settings of other groups.
        """
        own = _read(self.package, "choices.yaml").get(group, {}).get(choice, {})
        also = own.pop("also", {})
        name = own.get("name", choice)
        registry = self.registries.get(group, {})
        if name in registry:
            entry = registry[name]
            own = {"name": name, **(entry.settings() if hasattr(entry, "settings") else {}), **own}
        return {group: own, **also}


_ORDERED = ("preset", "data", "learner")
_GONE = dict.fromkeys(
    ("train.precision", "train.layout"),
    "train.fast=true trains in bfloat16 with channels last, train.fast=false does not",
)


@cache
def _parsed(package: str, file: str) -> DictConfig | ListConfig:
    return OmegaConf.create(resources.files(package).joinpath(file).read_text(encoding="utf-8"))


def _read(package: str, file: str) -> dict[str, Any]:
    """Return a new copy of the content of a YAML file."""
    return OmegaConf.to_container(_parsed(package, file))  # type: ignore[return-value]


def _value(key: str, text: str) -> Any:
    """Read a value as YAML does; it cannot refer to other settings."""
    if key in PATHS:
        return _path(key, text)
    try:
        if "${" in text:
            raise ValueError("it refers to something else")
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index, call-overload]
    # What is nested too deeply or is a number of thousands of digits fails outside of YAML.
    except (YAMLError, OmegaConfBaseException, ValueError, TypeError, RecursionError):
        typed = f"{key}={text}"[:_SHOWN]
        raise ConfigError(f"The value of {typed!r} cannot be read; a text may need quotes: key='...'.") from None


def _path(key: str, text: str) -> str | None:
    # A run may go on from another folder than it began in; where it is itself is known by then.
    if text == "null" or key == "out":
        return None if text == "null" else text
    try:
        return str(Path(text).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:  # an unknown user after "~", links in a circle, a zero byte
        raise ConfigError(f"{key}={text!r} cannot be used as a path: {error}.") from None
