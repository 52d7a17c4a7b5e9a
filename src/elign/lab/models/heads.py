"""Heads: latents to one logit for every class seen so far, in class order.

A head that is handed to the next task has new parameters, so build the optimiser after `LinearHead.grow` or
`SplitCosineHead.after`, never before.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.utils.errors import OptionError


def directions(vectors: Tensor) -> Tensor:
    """Every row v as v / |v|; a row of zeros stays zero.

    Unlike `F.normalize`, a zero row has a gradient of ordinary size (not times 1e12) and is no NaN in half precision.
    """
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norms > 0, norms, torch.ones_like(norms))


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise OptionError(f"{name} must be at least 1, got {count}")


def _uniform(weight: Tensor) -> Tensor:
    """Fill `weight` (rows, dim) from U(-1/sqrt(dim), 1/sqrt(dim)), the range of `nn.Linear` and of LUCIR."""
    bound = 1 / math.sqrt(weight.shape[1])
    with torch.no_grad():
        return weight.uniform_(-bound, bound)


class LinearHead(nn.Linear):
    """Logits W z + b, with rows for new classes added by `grow`.

    Args:
        dim: Dimension of the latents.
        classes: Number of classes.

    Example:
        >>> head = LinearHead(64, 5)
        >>> head.grow(10).classes
        10
    """

    def __init__(self, dim: int, classes: int) -> None:
        _at_least_one(dim=dim, classes=classes)
        super().__init__(dim, classes)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.out_features

    def grow(self, classes: int) -> Self:
        """Add freshly drawn rows until there are `classes` in total; the rows that exist stay bit for bit."""
        added = classes - self.classes
        if added < 0:
            raise OptionError(f"a head of {self.classes} classes cannot shrink to {classes}")
        weight = _uniform(self.weight.new_empty(added, self.in_features))
        bound = 1 / math.sqrt(self.in_features)
        bias = self.bias.detach().new_empty(added).uniform_(-bound, bound)
        for name, rows in (("weight", weight), ("bias", bias)):
            before: Tensor = getattr(self, name)
            joined = torch.cat([before.detach(), rows])
            setattr(self, name, nn.Parameter(joined, requires_grad=before.requires_grad))
        self.out_features = classes
        return self


class _Cosine(nn.Module):
    """What the cosine heads share: sigma * <z / |z|, w_c / |w_c|>, with one learned sigma (LUCIR, CVPR 2019)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.sigma = nn.Parameter(torch.ones(()))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.prototypes().shape[0])

    def prototypes(self) -> Tensor:
        """The weight vectors w_c of all classes, (classes, dim), in class order."""
        raise NotImplementedError

    def cosines(self, z: Tensor) -> Tensor:
        """Cosines between latents and prototypes, (N, classes), without sigma; zero for a zero latent."""
        return F.linear(directions(z), directions(self.prototypes()))

    def forward(self, z: Tensor) -> Tensor:
        """Latents (N, dim) to logits (N, classes)."""
        return self.sigma * self.cosines(z)


class CosineHead(_Cosine):
    """The cosine head of the base phase; `sigma` starts at 1, there is no bias.

    Args:
        dim: Dimension of the latents.
        classes: Number of classes.
    """

    def __init__(self, dim: int, classes: int) -> None:
        _at_least_one(dim=dim, classes=classes)
        super().__init__(dim)
        self.weight = nn.Parameter(_uniform(torch.empty(classes, dim)))

    def prototypes(self) -> Tensor:
        """The weight vectors w_c of all classes, (classes, dim), in class order."""
        return self.weight


class SplitCosineHead(_Cosine):
    """The cosine head after the base phase: `old` and `new` prototypes apart, so that a learner can freeze the old.

    Nothing is frozen here; `head.old.requires_grad_(False)` does it.

    Args:
        dim: Dimension of the latents.
        old_classes: Number of classes of the tasks before.
        new_classes: Number of classes of the current task.

    Example:
        >>> head = SplitCosineHead.after(CosineHead(64, 50), 10)
        >>> head.old.shape[0], head.new.shape[0], head.classes
        (50, 10, 60)
    """

    def __init__(self, dim: int, old_classes: int, new_classes: int) -> None:
        _at_least_one(dim=dim, old_classes=old_classes, new_classes=new_classes)
        super().__init__(dim)
        self.old = nn.Parameter(_uniform(torch.empty(old_classes, dim)))
        self.new = nn.Parameter(_uniform(torch.empty(new_classes, dim)))

    @classmethod
    def after(cls, head: CosineHead | SplitCosineHead, new_classes: int) -> Self:
        """The head of the next task: all prototypes of `head` become old, `new_classes` fresh ones are drawn.

        Copies, so that `head` can go on as the previous model's; keeps sigma, device, number type and mode.
        """
        before = head.prototypes().detach()
        result = cls(head.dim, before.shape[0], new_classes).to(before)
        result.train(head.training)
        with torch.no_grad():
            result.old.copy_(before)
            result.sigma.copy_(head.sigma)
        return result

    def prototypes(self) -> Tensor:
        """The weight vectors w_c of all classes, (classes, dim), in class order: the old, then the new."""
        return torch.cat([self.old, self.new])
