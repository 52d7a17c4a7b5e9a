"""The model's own head, as one classifier among others."""

from __future__ import annotations

from torch import Tensor

from elign.classifiers.base import LatentClassifier
from elign.utils.errors import LatentError
from elign.utils.fitted import register


@register
class HeadLogits(LatentClassifier):
    """The head's own logits: an estimator of a `Voting`.

    Example:
        >>> import torch
        >>> from elign import HeadLogits
        >>> HeadLogits()(torch.zeros(1, 8), logits=torch.tensor([[2.0, 4.0]]))
        tensor([[2., 4.]])
    """

    learns = False
    needs_logits = True

    def scores(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the logits."""
        if logits is None:
            raise LatentError("HeadLogits needs the head's logits: pass logits=head(z)")
        return logits
