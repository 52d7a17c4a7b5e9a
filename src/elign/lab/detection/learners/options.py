"""Options of detection learners: the published values, those that the user sets, and what they may be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from elign.utils.errors import OptionError


def checked_options(
    learner: str,
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    ranges: Mapping[str, tuple[float, float]],
    words: Mapping[str, tuple[str, ...]],
) -> dict[str, Any]:
    """The options of a learner, each of the kind that its published value is.

    Args:
        learner: Its name, for messages.
        defaults: Each option and its published value: a flag, a word, a whole number or a number.
        given: What the user sets.
        ranges: The least and the greatest value of numbers; otherwise whole numbers start at 1, others at 0.
        words: The values of options that are words.

    Raises:
        OptionError: There is no such option, or it cannot have this value.
    """
    for name, value in given.items():
        if name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(defaults) or 'none'}"
            raise OptionError(f"learner {learner} has no option {name}; {hint}")
        if name in words:
            fault = None if value in words[name] else f"one of {', '.join(words[name])}"
        else:
            fault = _fault(value, defaults[name], ranges.get(name))
        if fault:
            raise OptionError(f"option {name} of learner {learner} must be {fault}, not {value!r}")
    return {**defaults, **given}


def _fault(value: Any, default: Any, limits: tuple[float, float] | None) -> str | None:
    """What the value would have to be, where it is not."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    whole = isinstance(default, int)
    low, high = limits or (1 if whole else 0, math.inf)
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if fits and math.isfinite(value) and low <= value <= high:
        return None
    kind = "a whole number" if whole else "a number"
    return f"{kind} of at least {low:g}" if high == math.inf else f"{kind} from {low:g} to {high:g}"
