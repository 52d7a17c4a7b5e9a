"""Classes read off latents by the nearest class mean: means from birth that move forward, or those of exemplars.

Contract: `readout.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.aligner import Aligner
from elign.checks import check_labels, check_rows, check_seed, check_whole
from elign.errors import LatentError, OptionError
from elign.extraction import extract_labelled
from elign.langevin import compute_dtype
from elign.readout import Readout, same_noise


class Prototypes(Readout):
    """One mean latent of each class, from when the class was learned; the class with the nearest direction wins.

    A model that goes on learning leaves its prototypes behind. An aligner that was fitted *forward* on data of the new
    classes moves them after it, so that no old image and no gate is needed::

        before, after = elign.Latents(old_model, "fc"), elign.Latents(model, "fc")
        prototypes = elign.Prototypes().add_data(before, loader)                    # after the first task
        forward = elign.LocalShift().fit(before, after, new_loader, direction="forward")
        prototypes.move(forward).add_data(after, new_loader)                      # after each later one
        elign.attach(model, "fc", prototypes)

    The score of class c is the cosine of the angle between a latent and its prototype.

    Attributes:
        means: (classes, D) where the prototypes are now.
        counts: (classes,) how many latents each was made from; 0 for a label that was never added.

    Example:
        >>> import torch
        >>> from elign import MeanShift, Prototypes
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

    def add(self, z: Tensor, labels: Tensor, *, classes: int = 0) -> Self:
        """Remember the means of new classes.

        Args:
            z: Latents `(N, D)` of the model as it is now.
            labels: Their classes `(N,)`: places among the head's outputs.
            classes: How many outputs the head has, if these are more than the classes so far.

        Raises:
            LatentError: If latents and labels do not fit each other, or other latents that were added.
            OptionError: If a class was added before: its prototype would be of two models.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        classes = check_whole(classes, "classes", least=0)
        if self.fitted and z.shape[1] != self.dim:
            raise LatentError(f"these prototypes have dimension {self.dim}, the latents {z.shape[1]}")
        z, labels = self._seen(z.detach()), labels.to(z.device).long()
        counts = torch.bincount(labels, minlength=max(self.rows, classes))
        before = self.counts.to(counts) if self.fitted else counts[:0]
        twice = torch.nonzero((counts[: len(before)] > 0) & (before > 0)).flatten().tolist()
        if twice:
            raise OptionError(f"class {twice[0]} has a prototype already; add each class once, when it is learned")
        # On the CPU, since not every accelerator has float64.
        sums = torch.zeros(len(counts), z.shape[1], dtype=torch.float64, device="cpu")
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

    def add_data(
        self,
        model: Callable[[Any], Tensor],
        data: Iterable[Any],
        *,
        inputs: Callable[[Any], Any] | None = None,
        labels: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """`add` of the latents of labelled data, which are read off a model in evaluation mode.

        Args:
            model: Inputs to latents: `elign.Latents(model, "fc")`, say.
            data: Batches of training data of the classes that were learned: inputs first, classes second.
            inputs: Takes the model's input out of a batch, when it is not simply the first entry.
            labels: Takes the classes out of a batch, when they are not simply the second entry.
            device: Where to run the inputs; by default where the model's parameters are.
        """
        (z,), classes = extract_labelled([model], data, inputs=inputs, labels=labels, device=device)
        return self.add(z, classes)

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
        there = self.counts > 0
        moved = self.means.clone()
        moved[there] = aligner.align(self.means[there], generator=same_noise(self.means))
        with torch.inference_mode(False):
            self.means = moved.clone()
        return self

    def stand_ins(self, z: Tensor, labels: Tensor, *, per_class: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Latents as those of the other classes might be, where no exemplar of them was kept.

        Each is the prototype of its class plus what some given latent has more than the mean of its own class: classes
        are taken to spread as the given ones do.

        Args:
            z: Latents `(N, D)` of training data of the new classes under the current model.
            labels: Their classes `(N,)`.
            per_class: How many to make of each class that has a prototype and is not among `labels`.
            seed: Of the draw.

        Returns:
            Latents and their classes; none where there is no other class.
        """
        check_rows(z, "latents")
        self._check(z)
        check_labels(labels, len(z))
        per_class, seed = check_whole(per_class, "per_class", least=1), check_seed(seed)
        here = Prototypes().add(z, labels)
        residuals = z.detach() - here.means.to(z)[labels.to(z.device).long()]
        others = self.counts.clone()
        given = torch.unique(labels).long().to(others.device)
        others[given[given < len(others)]] = 0
        classes = torch.nonzero(others).flatten().to(z.device).repeat_interleave(per_class)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(len(z), (len(classes),), generator=generator, device="cpu").to(z.device)
        return self.means.to(z)[classes] + residuals[drawn], classes

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Cosines to all prototypes, `(..., classes)`; minus infinity for labels that have none."""
        self._check(z)
        return self.cosines(z)

    def cosines(self, z: Tensor) -> Tensor:
        """What `forward` gives, without any check: tensor operations only."""
        dtype = compute_dtype(z)
        with torch.autocast(z.device.type, enabled=False):
            means = F.normalize(self.means.to(z.device, dtype), dim=-1)
            scores = F.normalize(z.to(dtype), dim=-1) @ means.t()
            return scores.masked_fill(self.counts.to(z.device) == 0, -torch.inf).to(z.dtype)

    def _seen(self, z: Tensor) -> Tensor:
        """Latents as they are averaged."""
        return z


class NearestMean(Prototypes):
    """iCaRL's classifier: means of exemplars under the current model, each scaled to length 1 before it is averaged.

    Made anew from the exemplars after each task; nothing is moved.

    Example:
        >>> import torch
        >>> from elign import NearestMean
        >>> z, labels = torch.tensor([[9.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> NearestMean().add(z, labels).means
        tensor([[0.8000, 0.4000],
                [0.0000, 1.0000]])
    """

    def move(self, aligner: Aligner) -> Self:
        """Refused: means of scaled latents are in no space that an aligner was fitted in."""
        raise OptionError("a NearestMean cannot be moved: make it anew from exemplars, or use Prototypes")

    def left_out(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Cosines of latents that were added, each to the prototype of its own class as it would be without it.

        Minus infinity for the only latent of its class.
        """
        self._check_labelled(z, labels)
        labels = labels.to(z.device).long()
        scores = self.forward(z).to(compute_dtype(z))
        means, counts = self.means.to(scores)[labels], self.counts.to(z.device)[labels].unsqueeze(1)
        # The direction is all that counts, so the sum will do for the mean.
        rest = counts * means - self._seen(z).to(scores)
        own = F.cosine_similarity(z.to(scores), rest, dim=1, eps=1e-12).masked_fill(counts.squeeze(1) < 2, -torch.inf)
        return scores.scatter(1, labels.unsqueeze(1), own.unsqueeze(1)).to(z.dtype)

    def _seen(self, z: Tensor) -> Tensor:
        return F.normalize(z.to(compute_dtype(z)), dim=1)
