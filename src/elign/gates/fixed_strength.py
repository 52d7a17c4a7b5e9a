"""A gate that moves all latents by the same share of the way, and chooses that share on training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.gates.base import Gate, Head
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import read_logits
from elign.utils.fitted import Ranges, register
from elign.utils.tensors import balanced_accuracy, check_labels, check_rows, check_whole

_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@register
class FixedStrength(Gate):
    """Aligns every latent, but only as far as serves all classes: no sample is told from another.

    `fit` looks at training data only. With latents of old classes among them (exemplars), the strength is the one with
    the highest balanced accuracy. Without, it is the largest one that leaves the accuracy on the new classes nearly as
    it was: what alignment costs the new classes can be seen, what it does to old ones cannot.

    Args:
        shares: The strengths to choose from: 0 aligns nothing, 1 all the way.
        tolerance: How much of the new classes' accuracy may be lost if there are no exemplars.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from elign import FixedStrength, MeanShift
        >>> z, labels = torch.eye(4).repeat(10, 1), torch.arange(4).repeat(10)
        >>> head = nn.Identity()                                     # a latent is its own logits
        >>> drifted = z + 2.2 * torch.tensor([0.0, 0.0, 1.0, 1.0])     # everything looks like the new classes 2 and 3
        >>> aligner = MeanShift().fit_latents(z, drifted)
        >>> FixedStrength().fit(aligner, head, drifted, labels, old_classes=2).strength
        tensor(0.6000)
    """

    ranges: ClassVar[Ranges] = {"strength": (0.0, 1.0)}
    strength: Tensor

    def __init__(self, *, shares: Sequence[float] = _SHARES, tolerance: float = 0.02) -> None:
        super().__init__()
        try:
            given = [] if isinstance(shares, str) else [float(share) for share in shares]
        except (TypeError, ValueError, OverflowError):
            given = []
        if not given or not all(0 <= share <= 1 for share in given):
            raise OptionError(f"shares must be numbers in [0, 1], got {shares!r}")
        if not 0 <= tolerance <= 1:
            raise OptionError(f"tolerance must be in [0, 1], got {tolerance!r}")
        self.shares = tuple(sorted(given))
        self.tolerance = tolerance

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("strength", torch.zeros(()))

    def fit(self, aligner: Aligner, head: Head, z: Tensor, labels: Tensor, *, old_classes: int) -> Self:
        """Choose the strength with latents `z` `(N, D)` of training data under the current model, and their classes.

        They are of new classes and, if any, of exemplars of old ones; the first `old_classes` outputs are the old ones.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        old = check_whole(old_classes, "old_classes", least=0)
        # In a small type, a comparison with `old` would be one of that type.
        labels = labels.long().to(z.device)
        if not (labels >= old).any():
            raise LatentError(f"there is no latent of a new class: no label from {old} on")
        if aligner.direction == "forward":
            raise OptionError('FixedStrength needs an aligner that was fitted with direction="backward"')
        outputs = read_logits(head, z).shape[-1]
        if int(labels.max()) >= outputs:
            raise LatentError(f"there is a label {int(labels.max())}, but the head has {outputs} outputs")
        moved = aligner.align(z, generator=torch.Generator().manual_seed(0))
        found = [_accuracy(head, torch.lerp(z, moved, share), labels) for share in self.shares]
        if (labels < old).any():
            best = found.index(max(found))
        else:
            least = (1 - self.tolerance) * _accuracy(head, z, labels)
            best = max((number for number, value in enumerate(found) if value >= least), default=0)
        self._set(z.shape[1], strength=torch.tensor(self.shares[best], device=z.device))
        return self

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Return the strength for every row."""
        return self.strength.to(z.device).expand(z.shape[:-1])


def _accuracy(head: Head, z: Tensor, labels: Tensor) -> float:
    return balanced_accuracy(read_logits(head, z).argmax(dim=-1) == labels, labels)
