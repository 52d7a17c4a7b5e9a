"""Exemplar memory: which training images of old classes are kept, as rows of the training set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.lab.environment import derive_seed

Selection = Literal["herding", "random"]

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
        selection: Selection = "herding",
        seed: int = 0,
    ) -> None:
        if budget is not None and per_class is not None:
            raise ValueError("budget and per_class cannot both be given")
        if any(number is not None and number < 1 for number in (budget, per_class)):
            raise ValueError("budget and per_class must be at least 1; give neither for no exemplars")
        if selection not in get_args(Selection):
            raise ValueError(f"selection must be one of {', '.join(get_args(Selection))}, not {selection!r}")
        self.budget, self.per_class, self.seed = budget, per_class, seed
        self.selection: Selection = selection
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
        if seen < 1:
            raise ValueError(f"seen must be at least 1, not {seen}")
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
