"""A gate that moves all latents by the same share of the way, and chooses that share on training data.

Same contract as the other gates (`gates.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from elign.accuracy import balanced_accuracy
from elign.aligner import Aligner
from elign.checks import check_labels, check_rows, check_whole
from elign.errors import LatentError, OptionError
from elign.gates import Gate, Head
from elign.head_outputs import read_logits

_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Dose(Gate):
    """Aligns every latent, but only as far as serves all classes: no sample is told from another.

    `choose` looks at training data only. Where there are latents of old classes among them (exemplars), the dose is the
    one with the highest accuracy, every class weighing the same. Where there are none, it is the largest one that
    leaves the accuracy on the new classes nearly as it was: what alignment does to old classes cannot be seen then,
    what it costs the new ones can.

    Args:
        shares: The doses to choose from: 0 aligns nothing, 1 all the way.
        tolerance: How much of the new classes' accuracy may be lost where there are no exemplars.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from elign import Dose, MeanShift
        >>> z, labels = torch.eye(4).repeat(10, 1), torch.arange(4).repeat(10)
        >>> head = nn.Identity()                                     # a latent is its own logits
        >>> drifted = z + 2.2 * torch.tensor([0.0, 0.0, 1.0, 1.0])     # everything looks like the new classes 2 and 3
        >>> aligner = MeanShift().fit_latents(z, drifted)
        >>> Dose().choose(aligner, head, drifted, labels, known=2).strength
        tensor(0.6000)
    """

    how_to_fit = "choose(...)"
    strength: Tensor

    def __init__(self, *, shares: Sequence[float] = _SHARES, tolerance: float = 0.02) -> None:
        super().__init__()
        try:
            given = [float(share) for share in shares]
        except (TypeError, ValueError):
            given = []
        if not given or not all(0 <= share <= 1 for share in given):
            raise OptionError(f"shares must be numbers in [0, 1], got {shares!r}")
        if not 0 <= tolerance <= 1:
            raise OptionError(f"tolerance must be in [0, 1], got {tolerance!r}")
        self.shares = tuple(sorted(given))
        self.tolerance = tolerance

    def config(self) -> dict[str, Any]:
        """The options this gate was made with."""
        return {"shares": list(self.shares), "tolerance": self.tolerance}

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("strength", torch.zeros(()))

    def choose(self, aligner: Aligner, head: Head, z: Tensor, labels: Tensor, *, known: int) -> Self:
        """Choose the dose.

        Args:
            aligner: A fitted aligner.
            head: Latents to logits.
            z: Latents `(N, D)` of training data under the current model: of new classes and, where there are any, of
                exemplars of old ones.
            labels: Their classes `(N,)`.
            known: Number of old classes, which are the first ones.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        known = check_whole(known, "known", least=0)
        # Numbers of a small type would be compared with `known` as if it were one of these.
        labels = labels.long()
        if not (labels >= known).any():
            raise LatentError(f"there is no latent of a new class: no label from {known} on")
        if aligner.direction == "forward":
            raise OptionError('a dose needs an aligner that was fitted with direction="backward"')
        outputs = read_logits(head, z).shape[-1]
        if int(labels.max()) >= outputs:
            raise LatentError(f"there is a label {int(labels.max())}, but the head has {outputs} outputs")
        moved = aligner.align(z, generator=torch.Generator().manual_seed(0))
        found = [_accuracy(head, torch.lerp(z, moved, share), labels.to(z.device)) for share in self.shares]
        if (labels < known).any():
            best = found.index(max(found))
        else:
            undosed = _accuracy(head, z, labels.to(z.device))
            kept = [number for number, value in enumerate(found) if value >= (1 - self.tolerance) * undosed]
            best = kept[-1] if kept else 0
        with torch.inference_mode(False):
            self._build(z.shape[1])
            self.strength = torch.tensor(self.shares[best], device=z.device)
        return self

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """The dose, for every row."""
        self.require_fitted()
        return self.strength.to(z.device).expand(z.shape[:-1])


def _accuracy(head: Head, z: Tensor, labels: Tensor) -> float:
    return balanced_accuracy(read_logits(head, z).argmax(dim=-1) == labels, labels)
