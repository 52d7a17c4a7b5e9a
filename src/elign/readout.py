"""Reading classes off latents in another way than the model's own head does: the base class and two small ones.

Like aligners and gates, a readout sees no label at test time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from elign.aligner import Aligner
from elign.checks import check_finite, check_labels, check_rows
from elign.errors import LatentError, OptionError
from elign.storage import Storable, described, remade


def same_noise(z: Tensor) -> torch.Generator:
    """For aligners that use noise: the same for the same rows, so that what is chosen on them can be chosen again."""
    return torch.Generator(z.device).manual_seed(0)


class Readout(Storable):
    """Base of all readouts: `readout(z, logits=...)` gives a score for each row of z and each class; the highest wins.

    Example:
        >>> import torch
        >>> from elign import Readout
        >>> class HalfScores(Readout):                              # a readout of one's own
        ...     learns = False
        ...     def forward(self, z, *, logits=None):
        ...         return logits / 2
        >>> HalfScores()(torch.zeros(1, 8), logits=torch.tensor([[2.0, 4.0]]))
        tensor([[1., 2.]])
    """

    @property
    def takes(self) -> int | None:
        """Dimension of the latents that it reads; None if it does not matter."""
        return self.dim

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Scores of shape `(..., classes)` for latents `(..., D)`; `logits` are what the head says of them."""
        raise NotImplementedError

    def _check(self, z: Tensor) -> None:
        """Raise if these are no latents that it reads."""
        self.require_fitted()
        check_finite(z, "latents")
        if self.takes is not None and z.shape[-1:] != (self.takes,):
            name = type(self).__name__
            raise LatentError(f"this {name} takes latents of dimension {self.takes}, got shape {tuple(z.shape)}")

    def _check_labelled(self, z: Tensor, labels: Tensor) -> None:
        """Raise if these are no labelled latents of the classes that it has rows for."""
        check_rows(z, "latents")
        self._check(z)
        check_labels(labels, len(z))
        if int(labels.max()) >= self.rows:
            raise LatentError(f"there is a label {int(labels.max())}, but means of {self.rows} classes only")

    def left_out(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Scores of labelled training latents, as if this readout had been made without the one that is scored.

        What is chosen on training data must not be chosen on data that made the scores. A readout that was not made
        from these latents scores them as any others.

        Args:
            z: Latents `(N, D)`.
            labels: Their classes `(N,)`.
            logits: What the head says of them.
        """
        return self.forward(z, logits=logits)


class HeadScores(Readout):
    """The head's own logits: a part of a `Blend`.

    Example:
        >>> import torch
        >>> from elign import HeadScores
        >>> HeadScores()(torch.zeros(1, 8), logits=torch.tensor([[2.0, 4.0]]))
        tensor([[2., 4.]])
    """

    learns = False

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """The logits."""
        if logits is None:
            raise LatentError("HeadScores needs the head's logits: pass logits=head(z)")
        return logits


class Aligned(Readout):
    """Reads aligned latents with another readout: a part of a `Blend`.

    Args:
        aligner: A fitted aligner.
        readout: What reads the latents when they are aligned; made from aligned latents, if it is made from any.

    Example:
        >>> import torch
        >>> from elign import Aligned, MeanShift, Prototypes
        >>> z, labels = torch.eye(2).repeat(5, 1), torch.arange(2).repeat(5)
        >>> aligner = MeanShift().fit_latents(z, z + 3)
        >>> Aligned(aligner, Prototypes().add(z, labels))(z[:2] + 3).argmax(dim=1)
        tensor([0, 1])
    """

    learns = False
    how_to_fit = "fit(...) of its aligner, and what makes its readout,"

    def __init__(self, aligner: Aligner | Mapping[str, Any], readout: Readout | Mapping[str, Any]) -> None:
        super().__init__()
        self.aligner = remade(aligner, Aligner)
        self.readout = remade(readout, Readout)

    def config(self) -> dict[str, Any]:
        """Both parts, described."""
        return {"aligner": described(self.aligner), "readout": described(self.readout)}

    @property
    def fitted(self) -> bool:
        """Are both parts?"""
        return self.aligner.fitted and self.readout.fitted

    @property
    def takes(self) -> int | None:
        """What the aligner takes."""
        return self.aligner.dim

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Scores of the aligned latents."""
        return self.readout.forward(self._aligned(z), logits=logits)

    def left_out(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """The readout's own, of the aligned latents."""
        return self.readout.left_out(self._aligned(z), labels, logits=logits)

    def _aligned(self, z: Tensor) -> Tensor:
        if self.aligner.direction == "forward":
            raise OptionError('Aligned needs an aligner that was fitted with direction="backward"')
        # The same batch gets the same noise, where an aligner uses any; a row in another place gets another.
        return self.aligner.align(z, generator=same_noise(z))
