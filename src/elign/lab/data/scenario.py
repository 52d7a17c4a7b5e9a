"""The order in which classes arrive, how they split into tasks, and the exemplars that are kept of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elign.lab.environment import derive_seed
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
    if first is not None and increment is not None:
        return _sized(classes, first, increment)
    if name is not None:
        return _named(name, classes)
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


_TRIES = 1000


def herding_order(features: Tensor, *, tries: int = _TRIES) -> Tensor:
    """Rank the samples of one class, given features (N, D), by herding; return their rows, best first (N,).

    M. Welling, 2009; S.-A. Rebuffi et al., "iCaRL", CVPR 2017. With d_j the features scaled to length 1, mu their mean
    and w = mu at the start, each try finds the sample with the largest <w, d_j> and then adds mu - d_j to w, so that
    the mean of the samples found stays near mu. A sample has the rank of the first try that found it. As in the
    published code, a try may find a ranked sample again: its rank stays, but it moves w. That code stops after 1000
    tries, with some samples perhaps never found; here the tries after `tries` skip ranked samples, so that every sample
    has a rank and the ranks of the published code are unchanged.

    Raises:
        ValueError: `features` is not a filled, finite matrix.
    """
    if features.ndim != 2 or features.numel() == 0:
        raise ValueError(f"features must be a filled (N, D), not {tuple(features.shape)}")
    # In double precision and on the CPU: near-ties are frequent, and the choice must not depend on the device.
    units = F.normalize(features.detach().to("cpu", torch.float64), dim=1)
    if not units.isfinite().all():
        raise ValueError("features must be finite")
    mean = units.mean(dim=0)
    w = mean.clone()
    order: dict[int, None] = {}
    ranked = torch.zeros(len(units), dtype=torch.bool)
    tried = 0
    while len(order) < len(units):
        scores = units @ w
        if tried >= tries:
            scores[ranked] = -torch.inf
        pick = int(scores.argmax())
        tried += 1
        order.setdefault(pick)
        ranked[pick] = True
        w += mean - units[pick]
    return torch.tensor([*order])


def random_order(n: int, seed: int) -> Tensor:
    """Return the numbers 0..n-1 in a random order that the seed decides: `int64`, (n,)."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


class Memory:
    """The exemplars of the classes seen so far.

    Each class is ranked once, when it is introduced; later on, only how many of the first ranks count changes.

    Args:
        budget: How many exemplars all classes share: each has ceil(budget / seen), so the sum may be a little more.
        per_class: Instead of a budget: how many each class has. With neither, nothing is kept.
        selection: How the samples of a class are ranked.
        seed: Decides the random ranks; each class has its own stream.

    Example:
        >>> memory = Memory(budget=2000)
        >>> [memory.per_class_count(seen) for seen in (50, 60, 70, 80, 90, 100)]
        [40, 34, 29, 25, 23, 20]
    """

    def __init__(
        self,
        *,
        budget: int | None = None,
        per_class: int | None = None,
        selection: Literal["herding", "random"] = "herding",
        seed: int = 0,
    ) -> None:
        if budget is not None and per_class is not None:
            raise ValueError("budget and per_class cannot both be given")
        if any(number is not None and number < 1 for number in (budget, per_class)):
            raise ValueError("budget and per_class must be at least 1; give neither for no exemplars")
        if selection not in ("herding", "random"):
            raise ValueError(f"selection must be herding or random, not {selection!r}")
        self.budget, self.per_class, self.selection, self.seed = budget, per_class, selection, seed
        self.ranked: dict[int, Tensor] = {}
        """The samples of each class in the order of introduction, best first: the whole state, for a checkpoint."""

    def add(self, class_label: int, indices: Tensor, features: Tensor | None = None) -> None:
        """Introduce a class: rank its samples, rows of the training set (N,), by their features (N, D) for herding.

        Raises:
            ValueError: The class was added before, or the arguments do not fit each other.
        """
        if class_label in self.ranked:
            raise ValueError(f"class {class_label} was added before; a class is ranked once")
        if indices.dtype != torch.int64 or indices.ndim != 1 or len(indices) == 0:
            raise ValueError(f"indices must be a filled int64 (N,), not {indices.dtype} {tuple(indices.shape)}")
        if self.selection == "random":
            order = random_order(len(indices), derive_seed(self.seed, f"exemplars of class {class_label}"))
        elif features is None or len(features) != len(indices):
            raise ValueError(f"herding needs the features of all {len(indices)} samples of class {class_label}")
        else:
            order = herding_order(features)
        self.ranked[class_label] = indices.cpu()[order]

    def per_class_count(self, seen: int) -> int:
        """Return how many exemplars a class has after `seen` classes; a class with fewer samples keeps them all."""
        return (self.per_class or 0) if self.budget is None else -(-self.budget // seen)

    def indices(self, seen: int) -> Tensor:
        """Return the exemplars after `seen` classes: rows of the training set (M,), class after class, best first."""
        if seen < len(self.ranked):
            raise ValueError(f"seen is {seen}, but {len(self.ranked)} classes were added")
        count = self.per_class_count(seen)
        kept = [ranked[:count] for ranked in self.ranked.values()]
        return torch.cat(kept) if kept else torch.empty(0, dtype=torch.int64)

    def restore(self, ranked: Mapping[int, Tensor]) -> None:
        """Replace the state by what `ranked` was."""
        self.ranked = {label: ranks.clone() for label, ranks in ranked.items()}
