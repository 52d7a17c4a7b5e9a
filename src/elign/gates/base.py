"""Gates: which latents are aligned, and how strongly, without labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.utils.errors import LatentError, OptionError
from elign.utils.fitted import FittedModule, register

Head = Callable[[Tensor], Any]
"""Latents to whatever the model's head returns."""


class Gate(FittedModule):
    """Base of all gates: `gate(z, head=..., aligner=...)` gives each row of z a weight from 0 (leave) to 1 (align).

    A gate may ask the head for its opinion of the unaligned latents, or the aligner for energies. A subclass gives
    `weights`, tensor operations only, so that it can be exported.

    Example:
        >>> import torch
        >>> from elign import Gate
        >>> class Long(Gate):                                       # a gate of your own
        ...     learns = False
        ...     def weights(self, z, head=None, aligner=None):
        ...         return z.norm(dim=-1) > 1
        >>> Long()(torch.tensor([[0.1, 0.2], [3.0, 4.0]]))
        tensor([False,  True])
    """

    needs_head: ClassVar[bool] = False
    """Whether the gate asks the head."""
    needs_energy: ClassVar[bool] = False
    """Whether the gate asks the aligner for energies."""

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Return weights of shape `z.shape[:-1]`: a bool mask, or floating point for a partial alignment."""
        self.require_fitted()
        name = type(self).__name__
        if self.needs_head and head is None:
            raise OptionError(f"{name} needs the head: attach it to a model, or call it with head=...")
        if self.needs_energy and aligner is None:
            raise OptionError(f"{name} needs the aligner: attach it together with one, or call it with aligner=...")
        if self.dim is not None and z.shape[-1:] != (self.dim,):
            raise LatentError(f"this {name} gate takes latents of dimension {self.dim}, got shape {tuple(z.shape)}")
        with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
            return self.weights(z.detach(), head, aligner)

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Do what `forward` does, without any check: tensor operations only."""
        raise NotImplementedError


@register
class Always(Gate):
    """Aligns every latent: for a model that now only sees old classes, or when drift is all that matters.

    Example:
        >>> import torch
        >>> from elign import Always
        >>> Always()(torch.randn(3, 8))
        tensor([True, True, True])
    """

    learns = False

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take all rows."""
        return torch.ones(z.shape[:-1], dtype=torch.bool, device=z.device)


@register
class ByMask(Gate):
    """Aligns the rows that the caller names, when the caller knows which samples are old.

    With a mask made from test labels this is the paper's protocol: an oracle, to be called so wherever it is shown.

    Args:
        mask: One entry per row of the next batch: bool, or weights. Set `gate.mask` for each batch.

    Example:
        >>> import torch
        >>> from elign import ByMask
        >>> ByMask(torch.tensor([True, False]))(torch.randn(2, 8))
        tensor([ True, False])
    """

    learns = False

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def config(self) -> dict[str, Any]:
        """Refuse: a mask belongs to one batch."""
        raise OptionError("a ByMask gate cannot be saved: its mask belongs to one batch")

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take the rows of the mask."""
        if self.mask.shape != z.shape[:-1]:
            raise LatentError(
                f"the mask of this ByMask gate has shape {tuple(self.mask.shape)}, but the batch has rows "
                f"{tuple(z.shape[:-1])}: set gate.mask for each batch"
            )
        return self.mask.to(z.device)
