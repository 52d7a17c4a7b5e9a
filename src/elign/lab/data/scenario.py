"""The order in which classes arrive, and how they split into tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from elign.lab.registry import did_you_mean
from elign.utils.errors import OptionError

ORDER_SEED = 1993
"""Of the class order, as in the paper and most of the field."""
_USUAL = ("half-5", "half-10", "half-25", "equal-5", "equal-10", "equal-20")


def class_order(classes: int, *, seed: int | None = ORDER_SEED) -> tuple[int, ...]:
    """Return the labels in the order in which they are learned; without a seed, the natural one.

    Example:
        >>> class_order(100)[:10]
        (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    """
    order = np.arange(classes)
    if seed is not None:
        np.random.RandomState(seed).shuffle(order)
    return tuple(order.tolist())


class ProtocolError(OptionError):
    """Classes cannot be split into tasks as asked."""


@dataclass(frozen=True)
class Protocol:
    """A split of classes into tasks, with how many classes each task brings."""

    name: str
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ProtocolError(f"Every task of {self.name!r} must bring a class; the sizes are {self.sizes}.")

    @property
    def tasks(self) -> tuple[range, ...]:
        """The labels that each task brings, once the classes are numbered in the order of arrival."""
        return tuple(range(end - size, end) for size, end in zip(self.sizes, accumulate(self.sizes), strict=True))


def make_protocol(
    name: str | None = None, classes: int = 0, *, first: int | None = None, increment: int | None = None
) -> Protocol:
    """Split classes into tasks: by the name of a protocol, or by the sizes of the `first` and each further task.

    Names are "half-N" (or "b50-N") or "equal-N", with any N that divides the classes evenly, or all sizes, "10+5+5".

    Raises:
        ProtocolError: There is no such protocol, or the classes do not divide evenly; it says what would.

    Example:
        >>> make_protocol("half-5", 100).sizes
        (50, 10, 10, 10, 10, 10)
    """
    if classes < 1:
        raise ProtocolError(f"There must be at least one class to split, not {classes}.")
    if name is not None and first is None and increment is None:
        return _named(name, classes)
    if name is None and first is not None and increment is not None:
        return _sized(classes, first, increment)
    raise TypeError("make_protocol takes either a name or both first and increment")


def _named(name: str, classes: int) -> Protocol:
    if re.fullmatch(r"[0-9]{1,9}(\+[0-9]{1,9})+", name):
        sizes = tuple(int(size) for size in name.split("+"))
        if sum(sizes) != classes:
            raise ProtocolError(f"{name!r} is a split of {sum(sizes)} classes, but there are {classes}.")
        return Protocol("+".join(map(str, sizes)), sizes)
    match = re.fullmatch(r"(half|equal|b50)-([0-9]{1,9})", name)
    if match is None:
        raise ProtocolError(
            f"There is no protocol {name!r}.{_suggestion(name)} Usual ones are: {', '.join(_USUAL)}; "
            "N can be another number of tasks. Sizes are written with a plus: 15+5."
        )
    count = int(match[2])
    if match[1] == "equal":
        return Protocol(f"equal-{count}", (_share(classes, count, f"{classes} classes", name),) * count)
    if classes % 2:
        raise ProtocolError(f"{name!r} puts half of the classes first, but {classes} is an odd number of classes.")
    half = classes // 2
    later = _share(half, count, f"the {half} classes after the first task", name)
    return Protocol(f"half-{count}", (half,) + (later,) * count)


def _share(classes: int, count: int, what: str, name: str) -> int:
    if count < 1 or classes % count:
        raise ProtocolError(
            f"{name!r} does not fit: {what} cannot be split into {count} equal tasks. "
            f"Numbers of tasks that fit: {_divisors(classes)}."
        )
    return classes // count


def _sized(classes: int, first: int, increment: int) -> Protocol:
    if not 0 < first < classes:
        raise ProtocolError(f"The first task must bring 1 to {classes - 1} of the {classes} classes, not {first}.")
    rest = classes - first
    if increment < 1 or rest % increment:
        raise ProtocolError(
            f"The {rest} classes after the first task cannot be split into tasks of {increment}. "
            f"Increments that fit: {_divisors(rest)}."
        )
    return Protocol(f"first-{first}-then-{increment}", (first,) + (increment,) * (rest // increment))


def _divisors(number: int) -> str:
    return ", ".join(str(candidate) for candidate in range(1, number + 1) if number % candidate == 0)


def _suggestion(name: str) -> str:
    digits = re.search(r"[0-9]+$", name.strip())
    candidates = [f"{kind}-{digits[0]}" for kind in ("half", "equal", "b50")] if digits else list(_USUAL)
    return did_you_mean(name, candidates)
