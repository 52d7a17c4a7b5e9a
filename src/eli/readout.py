"""Reading classes off latents in another way than the model's own head does: the base class, and class prototypes.

Imported by `attach.py`; like aligners and gates, readouts never see a label at test time.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from eli.aligner import Aligner
from eli.checks import check_finite, check_labels, check_rows
from eli.errors import LatentError, OptionError
from eli.langevin import compute_dtype
from eli.storage import Storable


class Readout(Storable):
    """Base of all readouts: `readout(z, logits=...)` gives a score for each row of z and each class; the highest wins.

    Example:
        >>> import torch
        >>> from eli import Readout
        >>> class HalfScores(Readout):                              # a readout of one's own
        ...     learns = False
        ...     def forward(self, z, *, logits=None):
        ...         return logits / 2
        >>> HalfScores()(torch.zeros(1, 8), logits=torch.tensor([[2.0, 4.0]]))
        tensor([[1., 2.]])
    """

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Scores of shape `(..., classes)` for latents `(..., D)`; `logits` are what the head says of them."""
        raise NotImplementedError


class Prototypes(Readout):
    """One mean latent of each class, from when the class was learned; the class with the nearest direction wins.

    A model that goes on learning leaves its prototypes behind. An aligner that was fitted *forward* on data of the new
    classes moves them after it, so that no old image and no gate is needed::

        prototypes = eli.Prototypes().add(latents, labels)                       # after the first task
        forward = eli.LocalShift().fit(before, after, loader, direction="forward")
        prototypes.move(forward).add(new_latents, new_labels)                     # after each later one
        eli.attach(model, "fc", prototypes)

    The score of class c is the cosine of the angle between a latent and its prototype.

    Attributes:
        means: (classes, D) where the prototypes are now.
        counts: (classes,) how many latents each was made from; 0 for a label that was never added.

    Example:
        >>> import torch
        >>> from eli import MeanShift, Prototypes
        >>> z, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> prototypes = Prototypes().add(z, labels)
        >>> prototypes.means.tolist(), prototypes.counts.tolist()
        ([[2.0, 0.0], [0.0, 1.0]], [2, 1])
        >>> drift = MeanShift().fit_latents(z, z + torch.tensor([0.0, 1.0]), direction="forward")
        >>> prototypes.move(drift).means.tolist()
        [[2.0, 1.0], [0.0, 2.0]]
        >>> prototypes(torch.tensor([[0.0, 5.0]])).argmax(dim=1)
        tensor([1])
    """

    how_to_fit = "add(...)"
    rows_of: ClassVar[str] = "means"
    means: Tensor
    counts: Tensor

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("means", torch.zeros(self.rows, dim))
        self.register_buffer("counts", torch.zeros(self.rows, dtype=torch.int64))

    def add(self, z: Tensor, labels: Tensor) -> Self:
        """Remember the means of new classes.

        Args:
            z: Latents `(N, D)` of the model as it is now.
            labels: Their classes `(N,)`: places among the head's outputs.

        Raises:
            LatentError: If latents and labels do not fit each other, or other latents that were added.
            OptionError: If a class was added before: its prototype would be of two models.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        if self.fitted and z.shape[1] != self.dim:
            raise LatentError(f"these prototypes have dimension {self.dim}, the latents {z.shape[1]}")
        z, labels = z.detach(), labels.to(z.device).long()
        counts = torch.bincount(labels, minlength=self.rows)
        before = self.counts.to(counts) if self.fitted else counts[:0]
        twice = torch.nonzero((counts[: len(before)] > 0) & (before > 0)).flatten().tolist()
        if twice:
            raise OptionError(f"class {twice[0]} has a prototype already; add each class once, when it is learned")
        # On the CPU, since not every accelerator has float64.
        sums = torch.zeros(len(counts), z.shape[1], dtype=torch.float64)
        sums.index_add_(0, labels.cpu(), z.cpu().double())
        means = (sums / counts.cpu().clamp(min=1).unsqueeze(1)).to(z.device, compute_dtype(z))
        if self.fitted:
            means[: self.rows] += self.means.to(means)
            counts[: self.rows] += before
        self.rows = len(counts)
        with torch.inference_mode(False):
            self._build(z.shape[1])
            self.means, self.counts = means.clone(), counts.clone()
        return self

    def move(self, aligner: Aligner) -> Self:
        """Move all prototypes into the space of the current model.

        Args:
            aligner: Fitted with `direction="forward"` on data of the new classes.

        Raises:
            OptionError: If the aligner was fitted backward.
        """
        self.require_fitted()
        if aligner.direction != "forward":
            raise OptionError('prototypes are moved by an aligner that was fitted with direction="forward"')
        generator = torch.Generator().manual_seed(0)
        there = self.counts > 0
        moved = self.means.clone()
        moved[there] = aligner.align(self.means[there], generator=generator)
        self.means = moved
        return self

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Cosines to all prototypes, `(..., classes)`; minus infinity for labels that have none."""
        dim = self.require_fitted()
        check_finite(z, "latents")
        if z.shape[-1:] != (dim,):
            raise LatentError(f"these prototypes take latents of dimension {dim}, got shape {tuple(z.shape)}")
        dtype = compute_dtype(z)
        with torch.autocast(z.device.type, enabled=False):
            means = F.normalize(self.means.to(z.device, dtype), dim=-1)
            scores = F.normalize(z.to(dtype), dim=-1) @ means.t()
            return scores.masked_fill(self.counts.to(z.device) == 0, -torch.inf).to(z.dtype)
