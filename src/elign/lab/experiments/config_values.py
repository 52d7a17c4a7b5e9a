"""Dataclasses that check their values by their type hints.

A hint says what a value must be; `Range` beside it says between which bounds. Values are also brought to their type
(`5` becomes `5.0` where a float is due), so that the same setting, written differently, is the same configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from elign.lab.experiments.config_errors import ConfigError, did_you_mean

_SHOWN = 300


@dataclass(frozen=True)
class Range:
    """The bounds of a number."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        signs = ((">=", self.at_least), (">", self.above), ("<=", self.at_most), ("<", self.below))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)


Count = Annotated[int, Range(at_least=1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(at_least=0)]


@dataclass(frozen=True)
class Checked:
    """A dataclass whose values are checked when it is made, however that is done."""

    key: ClassVar[str] = ""
    """Where its settings are: "train" for those that the user calls train.epochs and so on."""

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            value = convert(getattr(self, name), hint, f"{self.key}.{name}" if self.key else name)
            object.__setattr__(self, name, value)


_Section = TypeVar("_Section", bound=Checked)


def hints(cls: type) -> dict[str, Any]:
    """The names of a dataclass's fields, with their type hints."""
    known = get_type_hints(cls, include_extras=True)
    return {field.name: known[field.name] for field in fields(cls)}


def later_settings(cls: type) -> dict[str, Any]:
    """Settings that were added when runs existed already, with the value that means what those runs did.

    They are the fields that have a default. Runs from before do not name them, and are the same runs still.
    """
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}


def build(cls: type[_Section], values: Mapping[str, Any]) -> _Section:
    """Make a checked dataclass from a mapping that has exactly its fields; those that came later may be missing."""
    prefix = f"{cls.key}." if cls.key else ""
    for name in values.keys() - hints(cls).keys():
        raise ConfigError(f"There is no setting {f'{prefix}{name}'!r}.{did_you_mean(str(name), hints(cls))}")
    for name in hints(cls).keys() - values.keys() - later_settings(cls).keys():
        raise ConfigError(f"The setting '{prefix}{name}' is missing.")
    return cls(**values)


def convert(value: Any, hint: Any, key: str) -> Any:
    """The value as its hint wants it.

    Args:
        value: The value, as read from a file or a command line.
        hint: The type hint.
        key: The setting's name, for the error.

    Raises:
        ConfigError: The value is of another type or out of bounds.
    """
    bounds = None
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in options:
        if value is None:
            return None
        options = tuple(option for option in options if option is not NoneType)
    if isinstance(options[0], type) and is_dataclass(options[0]):
        return _section(value, options[0], key)
    for option in options:
        found, result = _as(value, option, bounds)
        if found:
            return result
    wanted = " or ".join(_wanted(option, bounds) for option in options)
    # A learner's options have names that come from a file, of whatever letters.
    raise ConfigError(f"{key if key.isprintable() else repr(key)} must be {wanted}, not {_short(value)}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _section(value: Any, cls: Any, key: str) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a group of settings, not {_short(value)}.")
    return build(cls, value)


def _as(value: Any, kind: Any, bounds: Range | None) -> tuple[bool, Any]:
    if get_origin(kind) is Literal:
        # The command line reads train.precision=32 as a number.
        return str(value) in get_args(kind) and not isinstance(value, bool), str(value)
    if get_origin(kind) is tuple:
        return _as_tuple(value, get_args(kind), bounds)
    if get_origin(kind) is dict:
        return isinstance(value, Mapping), dict(value) if isinstance(value, Mapping) else value
    if kind in (int, float):
        return _as_number(value, kind, bounds)
    if kind is str:
        return isinstance(value, str) and value.strip() != "", value
    return isinstance(value, kind), value


def _as_number(value: Any, kind: type, bounds: Range | None) -> tuple[bool, Any]:
    allowed = int if kind is int else (int, float)
    # An int may be too large for a float, and then math cannot tell that it is finite.
    if isinstance(value, bool) or not isinstance(value, allowed) or not abs(value) <= sys.float_info.max:
        return False, value
    return bounds is None or value in bounds, kind(value)


def _as_tuple(value: Any, kinds: tuple[Any, ...], bounds: Range | None) -> tuple[bool, Any]:
    if not isinstance(value, list | tuple) or (_fixed(kinds) and len(value) != len(kinds)):
        return False, value
    parts = [_as(part, kinds[0], bounds) for part in value]
    return all(found for found, _ in parts), tuple(part for _, part in parts)


def _fixed(kinds: tuple[Any, ...]) -> bool:
    """Whether a tuple has as many entries as its hint, `tuple[int, int]`; one of any length ends with dots."""
    return kinds[-1] is not Ellipsis


def _wanted(kind: Any, bounds: Range | None) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    limits = f" {bounds}" if bounds is not None else ""
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        each = "whole numbers" if kinds[0] is int else "numbers"
        if _fixed(kinds):
            return f"a list of {len(kinds)} {each}{limits}"
        return f"a list of {each}{limits}, such as [64,64] or []" if each == "whole numbers" else f"a list of {each}"
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        dict: "a group of settings",
    }
    return names.get(get_origin(kind) or kind, str(kind)) + limits
