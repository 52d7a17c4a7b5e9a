"""What is wrong with a setting of a run, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from elign.utils.errors import ElignError


class ConfigError(ElignError, ValueError):
    """A setting that does not exist, has a value it cannot take, or contradicts another one."""


def did_you_mean(text: str, candidates: Iterable[str]) -> str:
    """The nearest candidate as a question that follows a sentence, or nothing if none is near."""
    near = difflib.get_close_matches(text.strip().lower(), list(candidates), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def unknown_choice(group: str, value: str, choices: Collection[str]) -> ConfigError:
    """The error of a group that has no such choice."""
    return ConfigError(
        f"There is no {group} {value!r}.{did_you_mean(value, choices)} Choose from: {', '.join(sorted(choices))}."
    )
