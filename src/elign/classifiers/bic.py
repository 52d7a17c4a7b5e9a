"""Bias correction by a scale and an offset of the new classes' logits: BiC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from elign.classifiers.bias import WeightAligned, new_outputs
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import read_logits
from elign.utils.fitted import register
from elign.utils.tensors import check_labels, check_rows

_STEPS, _HALVINGS, _LARGEST_SCALE = 50, 30, 1e4


@register
class BiC(WeightAligned):
    """Scales and shifts the logits of new classes, `alpha l + beta` (Y. Wu et al., CVPR 2019).

    Both minimise the cross entropy of labelled latents, every class with the same weight; the problem is convex, and
    Newton's method solves it. The paper holds a tenth of the exemplars out of the training for this. A model that is
    corrected after training has seen its exemplars: give latents of other images if you can. On exemplars that the
    model knows by heart, the correction is too weak.

    Example:
        >>> import torch
        >>> from elign import BiC
        >>> head = torch.nn.Linear(2, 2, bias=False)
        >>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
        >>> z, labels = torch.tensor([[1.0, 0.4], [1.0, 0.6], [0.4, 1.0], [0.6, 1.0]]), torch.tensor([0, 0, 1, 1])
        >>> BiC().fit(z, labels, head=head, old_classes=1)(z, logits=head(z)).argmax(dim=1)
        tensor([0, 0, 1, 1])
    """

    def fit(  # type: ignore[override]
        self, z: Tensor, labels: Tensor, *, head: nn.Module, old_classes: int | Sequence[int]
    ) -> Self:
        """Find the scale and the offset.

        Args:
            z: Latents `(N, D)` of the current model, of old and of new classes.
            labels: Their classes `(N,)`.
            head: The current model's head.
            old_classes: Number of old classes, if they are the first ones, or their indices.

        Raises:
            LatentError: If there are no latents of old, or of new classes.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        # A head may have outputs of minus infinity, for classes to come.
        logits = read_logits(head, z.detach()).detach().cpu().double().clamp(min=-1e30)
        labels = labels.cpu().long()
        new = new_outputs(old_classes, logits.shape[1])
        if int(labels.max()) >= len(new):
            raise OptionError(f"the head has {len(new)} outputs: too few for these classes")
        if not bool(new[labels].any()) or bool(new[labels].all()):
            raise LatentError("BiC needs latents of old and of new classes")
        scale, offset = _solved(logits, labels, new)
        if not bool(torch.isfinite(scale) & torch.isfinite(offset)):
            raise LatentError("these logits are too large to find a scale for them")
        return self._corrected(z, torch.where(new, scale, 1.0), torch.where(new, offset, 0.0))


def _solved(logits: Tensor, labels: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the offset with the smallest balanced cross entropy, by Newton's method."""
    weight = 1 / torch.bincount(labels)[labels].double()
    weight /= weight.sum()
    target = torch.nn.functional.one_hot(labels, len(new)).double()
    # What the two numbers multiply, (N, classes) each; old classes have neither.
    slopes = torch.stack([logits * new, new.expand_as(logits).double()])
    fixed = logits * ~new

    def scores(at: Tensor) -> Tensor:
        return fixed + (at[:, None, None] * slopes).sum(dim=0)

    def loss(at: Tensor) -> Tensor:
        return -(weight * (scores(at).log_softmax(dim=1) * target).sum(dim=1)).sum()

    at = torch.tensor([1.0, 0.0], dtype=torch.float64, device="cpu")
    for _ in range(_STEPS):
        p = scores(at).softmax(dim=1)
        mean = (p * slopes).sum(dim=2)
        gradient = ((p - target) * slopes).sum(dim=2) @ weight
        curvature = torch.einsum("n,nc,anc,bnc->ab", weight, p, slopes, slopes) - (mean * weight) @ mean.t()
        # Where classes are separable the loss has no minimum: a small ridge and a bound keep the numbers finite.
        step = torch.linalg.solve(curvature + 1e-9 * torch.eye(2, dtype=torch.float64, device="cpu"), gradient)
        size, before = 1.0, loss(at)
        for _ in range(_HALVINGS):
            if loss(at - size * step) <= before:
                break
            size /= 2
        at = (at - size * step).clamp(min=-_LARGEST_SCALE, max=_LARGEST_SCALE)
        if float((size * step).abs().max()) < 1e-10:
            break
    return at[0], at[1]
