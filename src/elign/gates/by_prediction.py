"""A gate that asks the model's own head which latents look old."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.gates.base import Gate, Head
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import logits_of
from elign.utils.fitted import register
from elign.utils.tensors import check_old_classes


@register
class ByPrediction(Gate):
    """Aligns what the current head itself takes for an old class, before alignment.

    Args:
        old_classes: Number of old classes, if they are the head's first outputs; or their indices.
        soft: Weight each row by the probability (softmax) of the old classes instead of asking for the top one.
        logits: Takes the logits out of what the head returns. By default: a tensor itself, the entry "logits" of a
            mapping (or its only entry), the first entry of a tuple or list.

    Example:
        >>> import torch
        >>> from elign import ByPrediction
        >>> gate = ByPrediction(old_classes=2)
        >>> logits = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0]])       # of two rows, 2 old classes and 1 new
        >>> gate(torch.randn(2, 8), head=lambda z: logits)
        tensor([ True, False])
    """

    learns = False
    needs_head = True
    _old: Tensor

    def __init__(
        self, old_classes: int | Sequence[int], *, soft: bool = False, logits: Callable[[Any], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.old_classes, old = check_old_classes(old_classes)
        if logits is not None and not callable(logits):
            raise OptionError(f"logits must be a function of the head's output, got {type(logits).__name__}")
        self.soft, self.logits = soft, logits
        self._most = max(old)
        # Not in files: it follows from the options. A buffer, so that an exported graph holds it once.
        with torch.inference_mode(False):
            self.register_buffer("_old", torch.tensor(list(dict.fromkeys(old)), device="cpu"), persistent=False)

    def config(self) -> dict[str, Any]:
        """Return the options; refuse if a function for logits, which no file can hold, is one of them."""
        if self.logits is not None:
            raise OptionError("a ByPrediction gate with logits=... cannot be saved: make it where it is used")
        return super().config()

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take rows whose top class is an old one, or the probability of all old classes."""
        assert head is not None  # noqa: S101  (`forward` and exports see to it)
        logits = (self.logits or logits_of)(head(z))
        if logits.shape[:-1] != z.shape[:-1]:
            raise LatentError(
                f"the head's logits {tuple(logits.shape)} do not have one row per latent {tuple(z.shape)}: attach to "
                "the layer that reads one latent for each row of logits"
            )
        if self._most >= logits.shape[-1]:
            raise OptionError(f"old_classes={self.old_classes!r} does not fit a head with {logits.shape[-1]} outputs")
        old = self._old.to(logits.device)
        if self.soft:
            # A head in half precision may give infinity, of which a softmax is NaN.
            logits = logits.float().clamp(max=torch.finfo(torch.float32).max)
            return logits.softmax(dim=-1).index_select(-1, old).sum(dim=-1).clamp(0, 1)
        return (logits.argmax(dim=-1, keepdim=True) == old).any(dim=-1)
