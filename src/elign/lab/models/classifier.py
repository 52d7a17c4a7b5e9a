"""The classifier: a backbone and a head that grows with the classes."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.models.backbones import Backbone
from elign.utils.errors import LatentError, OptionError
from elign.utils.tensors import check_finite


class Classifier(nn.Module):
    """Images (N, C, H, W) to latents (N, D) to logits (N, classes), in the order of arrival of the classes."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def latents(self, images: Tensor) -> Tensor:
        """Return latents in float32, whatever precision the backbone works in."""
        z: Tensor = self.backbone(images)
        return z.float()

    def scores(self, latents: Tensor) -> Tensor:
        """Return logits of latents, in full precision also under autocast: half precision has too few digits."""
        with torch.autocast(latents.device.type, enabled=False):
            logits: Tensor = self.head(latents)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        return self.scores(self.latents(images))


def directions(vectors: Tensor) -> Tensor:
    """Return every row v as v / |v|; a row of zeros stays zero.

    Unlike with `F.normalize`, the gradient of a zero row has an ordinary size (not times 1e12), and the row does not
    become NaN in half precision.
    """
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norms > 0, norms, torch.ones_like(norms))


def _uniform(weight: Tensor) -> Tensor:
    """Fill `weight` (rows, dim) from U(-1/sqrt(dim), 1/sqrt(dim)), the range of `nn.Linear` and of LUCIR."""
    bound = 1 / math.sqrt(weight.shape[1])
    with torch.no_grad():
        return weight.uniform_(-bound, bound)


class LinearHead(nn.Linear):
    """Logits W z + b of latents of dimension `dim`, with rows for new classes added by `grow`.

    Example:
        >>> LinearHead(64, 5).grow(10).classes
        10
    """

    def __init__(self, dim: int, classes: int) -> None:
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
        """Return the weight vectors w_c of all classes, (classes, dim), in class order."""
        raise NotImplementedError

    def cosines(self, z: Tensor) -> Tensor:
        """Return cosines between latents and prototypes, (N, classes), without sigma; zero for a zero latent."""
        return F.linear(directions(z), directions(self.prototypes()))

    def forward(self, z: Tensor) -> Tensor:
        """Map latents (N, dim) to logits (N, classes)."""
        return self.sigma * self.cosines(z)


class CosineHead(_Cosine):
    """The cosine head of the first task; `sigma` starts at 1, there is no bias."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(_uniform(torch.empty(classes, dim)))

    def prototypes(self) -> Tensor:
        """Return the weight vectors w_c of all classes, (classes, dim), in class order."""
        return self.weight


class SplitCosineHead(_Cosine):
    """The cosine head after the first task: `old` and `new` prototypes apart, so that a learner can freeze the old.

    Nothing is frozen here; `head.old.requires_grad_(False)` does it.

    Example:
        >>> head = SplitCosineHead.after(CosineHead(64, 50), 10)
        >>> head.old.shape[0], head.new.shape[0], head.classes
        (50, 10, 60)
    """

    def __init__(self, dim: int, old_classes: int, new_classes: int) -> None:
        super().__init__(dim)
        self.old = nn.Parameter(_uniform(torch.empty(old_classes, dim)))
        self.new = nn.Parameter(_uniform(torch.empty(new_classes, dim)))

    @classmethod
    def after(cls, head: CosineHead | SplitCosineHead, new_classes: int) -> Self:
        """Make the head of the next task: copies of all prototypes of `head` become old, `new_classes` are drawn.

        It keeps sigma, device, number type and mode.
        """
        before = head.prototypes().detach()
        result = cls(head.dim, before.shape[0], new_classes).to(before)
        result.train(head.training)
        with torch.no_grad():
            result.old.copy_(before)
            result.sigma.copy_(head.sigma)
        return result

    def prototypes(self) -> Tensor:
        """Return the weight vectors w_c of all classes, (classes, dim): the old, then the new."""
        return torch.cat([self.old, self.new])


@torch.no_grad()
def imprint(head: SplitCosineHead, latents: Tensor, labels: Tensor) -> None:
    """Set `head.new` in place: w_c = normalise(mean_i z_i / |z_i|) * mean |w_old|, for every new class c.

    LUCIR does this before each task after the first, and the ELI paper's code base for iCaRL too.

    Args:
        head: The head of the task that begins.
        latents: (N, dim), of un-augmented training images of the new classes; those of old classes are passed over.
        labels: (N,) integers, positions among all classes of the head: the first new class has the number of old ones.

    Raises:
        LatentError: Something does not fit, or a new class has no image or no mean direction. The head is unchanged.
    """
    _check(head, latents, labels)
    latents = latents.to(head.new.device, torch.promote_types(latents.dtype, torch.float32))
    labels = labels.to(head.new.device)
    old = head.old.shape[0]
    wanted = range(old, old + head.new.shape[0])
    absent = sorted(set(wanted) - set(labels.tolist()))
    if absent:
        raise LatentError(f"no latents to imprint for class {absent}; every new class needs an image")
    means = torch.stack([directions(latents[labels == label]).mean(dim=0) for label in wanted])
    flat = [label for label, mean in zip(wanted, means, strict=True) if not mean.any()]
    if flat:
        raise LatentError(f"the latents of class {flat} have no mean direction (all zero, or they cancel out)")
    length = torch.linalg.vector_norm(head.old.to(means.dtype), dim=1).mean()
    head.new.copy_(directions(means) * length)


def _check(head: SplitCosineHead, latents: Tensor, labels: Tensor) -> None:
    if latents.ndim != 2 or latents.shape[1] != head.dim:
        raise LatentError(f"latents must be (N, {head.dim}), got {tuple(latents.shape)}")
    if labels.shape != latents.shape[:1]:
        raise LatentError(f"labels must be ({latents.shape[0]},), one for each latent, got {tuple(labels.shape)}")
    check_finite(latents, "latents")
    if labels.is_floating_point() or ((labels < 0) | (labels >= head.classes)).any():
        raise LatentError(f"labels must be whole numbers from 0 to {head.classes - 1}, positions among all classes")
