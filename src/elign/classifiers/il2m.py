"""Bias correction by what the model said of each class when it was learned: IL2M."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from elign.classifiers.base import LatentClassifier
from elign.classifiers.bias import new_outputs
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import read_logits
from elign.utils.fitted import Shapes, register
from elign.utils.tensors import check_labels, check_rows, compute_dtype, rounded

_SMALLEST = 1e-300  # a probability; the logarithm of 0 is infinite


@register
class IL2M(LatentClassifier):
    """Scales probabilities of old classes up to their level at birth (IL2M, E. Belouadah, A. Popescu, ICCV 2019).

    If the head's first choice is a new class, each old class o gets
    `p_o <- p_o * (birth_o / now_o) * (confidence now / confidence at birth of o)`. Here birth_o is the mean probability
    that the model gave to o on images of o when it learned o, now_o the same of the current model on exemplars, and the
    confidence is the mean highest probability on images of the classes that were new. Otherwise nothing changes.

    The released code applies this to logits; here it is on probabilities, as in the paper. Scores are the logarithms of
    the results, brought to the sum 1.

    Example:
        >>> import torch
        >>> from elign import IL2M
        >>> head = torch.nn.Linear(2, 2, bias=False)
        >>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> z, labels = torch.tensor([[1.0, 0.6], [1.0, 0.8], [0.2, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1, 1])
        >>> head(z).argmax(dim=1)
        tensor([1, 1, 1, 1])
        >>> birth = {0: (0.95, 0.95)}                      # kept from IL2M.at_birth(...) when class 0 was learned
        >>> IL2M().fit(z, labels, head=head, old_classes=1, birth=birth)(z, logits=head(z)).argmax(dim=1)
        tensor([0, 0, 1, 1])
    """

    needs_logits = True
    rows_of: ClassVar[str] = "log_factors"
    shapes: ClassVar[Shapes] = {"log_factors": "R"}
    log_factors: Tensor
    is_new: Tensor

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("is_new", torch.zeros(self.rows, dtype=torch.bool))

    @staticmethod
    def at_birth(z: Tensor, labels: Tensor, *, head: nn.Module) -> dict[int, tuple[float, float]]:
        """Return what `fit` will need of classes that were just learned: mean probability and confidence of each.

        Keep it (it is plain numbers) and join tasks with `|`.

        Args:
            z: Latents `(N, D)` of the new classes' images, under the model that learned them.
            labels: Their classes `(N,)`.
            head: That model's head.
        """
        p, labels = _probabilities(z, labels, head)
        confidence = float(p.amax(dim=1).mean())
        return {label: (_mean_of(p, labels, label), confidence) for label in torch.unique(labels).tolist()}

    def fit(  # type: ignore[override]
        self,
        z: Tensor,
        labels: Tensor,
        *,
        head: nn.Module,
        old_classes: int | Sequence[int],
        birth: Mapping[int, tuple[float, float]],
    ) -> Self:
        """Compare each old class's probability with that at birth.

        Args:
            z: Latents `(N, D)` of the current model, of exemplars of each old class and of images of new classes.
            labels: Their classes `(N,)`.
            head: The current model's head.
            old_classes: Number of old classes, if they are the first ones, or their indices.
            birth: For each old class the mean probability and the confidence at birth; see `at_birth`.

        Raises:
            LatentError: If there are no latents of an old class, or none of new classes.
            OptionError: If numbers of an old class are missing or are no probabilities.
        """
        p, labels = _probabilities(z, labels, head)
        new = new_outputs(old_classes, p.shape[1])
        if not bool(new[labels].any()):
            raise LatentError("IL2M needs latents of new classes, too")
        confidence = float(p[new[labels]].amax(dim=1).mean())
        factors = torch.zeros(p.shape[1], dtype=torch.float64, device="cpu")
        for label in (~new).nonzero().flatten().tolist():
            if not bool((labels == label).any()):
                raise LatentError(f"IL2M needs latents of each old class, and there is none of class {label}")
            then, confidence_then = _birth_of(birth, label)
            now = max(_mean_of(p, labels, label), _SMALLEST)
            factors[label] = math.log(then) - math.log(now) + math.log(confidence) - math.log(confidence_then)
        self.rows = len(new)
        self._set(z.shape[1], log_factors=factors.to(compute_dtype(z)), is_new=new)
        return self.to(z.device)

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the logarithms of the corrected probabilities."""
        assert logits is not None  # noqa: S101  (`forward` sees to it)
        p = logits.to(compute_dtype(logits)).log_softmax(dim=-1)
        is_new = self.is_new.to(p.device)
        first = p.argmax(dim=-1, keepdim=True)
        chose_new = is_new.expand(p.shape).gather(-1, first)
        corrected = torch.where(chose_new, p + self.log_factors.to(p), p).log_softmax(dim=-1)
        return rounded(corrected, logits.dtype)


def _probabilities(z: Tensor, labels: Tensor, head: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the head's probabilities for latents, and their classes, in float64 on the CPU."""
    check_rows(z, "latents")
    check_labels(labels, len(z))
    logits = read_logits(head, z.detach()).detach().cpu().double()
    if int(labels.max()) >= logits.shape[-1]:
        raise OptionError(f"the head has {logits.shape[-1]} outputs: too few for these classes")
    p = logits.softmax(dim=1)
    if not bool(p.isfinite().all()):
        raise LatentError("the head gives no probabilities for these latents: its logits are not finite")
    return p, labels.cpu().long()


def _mean_of(p: Tensor, labels: Tensor, label: int) -> float:
    return float(p[labels == label, label].mean())


def _birth_of(birth: Mapping[int, tuple[float, float]], label: int) -> tuple[float, float]:
    try:
        probability, confidence = (float(number) for number in birth[label])
        fits = 0 <= probability <= 1 and 0 < confidence <= 1
    except (KeyError, IndexError, TypeError, ValueError):
        fits = False
    if not fits:
        raise OptionError(
            "birth must give a mean probability and a confidence, at most 1, of each old class, and class "
            f"{label} has none: keep what IL2M.at_birth gives when classes are learned"
        )
    return max(probability, _SMALLEST), confidence
