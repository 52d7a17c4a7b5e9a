"""Nearest means of exemplars, as Avalanche's `ICaRL` has them, beside aligned latents.

iCaRL computes the means of all classes with the current model. A latent that was moved to where the previous model had
it must be compared with means of old classes that were moved in the same way; a gate must not be asked about those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from elign.aligner import Aligner
from elign.attachments import Attachment
from elign.gates import Gate, Head


class UnmovedOpinion(Gate):
    """Asks a gate, but lets it ask a head of its own.

    Args:
        gate: The gate.
        head: What the gate is handed as the head.
    """

    learns = False

    def __init__(self, gate: Gate, head: Head) -> None:
        super().__init__()
        self.gate = gate
        self.head = head

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """What the gate says."""
        weights: Tensor = self.gate(z, head=self.head, aligner=aligner)
        return weights


def move_means(strategy: Any, attachment: Attachment, known: Any) -> dict[int, Tensor] | None:
    """Move the means of old classes with the aligner of an attachment; the means as they were.

    Returns:
        What to give to the head's `replace_class_means_dict` afterwards; None if the head has no means, or if nobody
        keeps exemplars that new means could be computed from.
    """
    head: Any = attachment.head
    before = getattr(head, "class_means_dict", None)
    with torch.no_grad():
        moved = {label: _mean(strategy, attachment, x) for label, x in _exemplars(strategy) if label in known}
    if not before or not moved:
        return None
    unmoved = type(head)(normalize=head.normalize)
    unmoved.replace_class_means_dict(before)
    attachment.gate = UnmovedOpinion(attachment.gate, unmoved)
    head.replace_class_means_dict({**before, **moved})
    return dict(before)


def _exemplars(strategy: Any) -> Iterator[tuple[int, Tensor]]:
    """Each class with its exemplars, wherever iCaRL's own plugin keeps some."""
    for plugin in strategy.plugins:
        for labels, x in zip(getattr(plugin, "y_memory", ()), getattr(plugin, "x_memory", ()), strict=True):
            if len(labels):
                yield int(labels[0]), x.to(strategy.device)


def _mean(strategy: Any, attachment: Attachment, x: Tensor) -> Tensor:
    """As Avalanche does it: the mean of normalised latents of images and of their mirror images, normalised."""
    views = [x, x.flip(3)] if x.ndim == 4 else [x]
    latents = [attachment.aligner.align(strategy.model.feature_extractor(view)) for view in views]
    return normalize(normalize(torch.cat(latents)).mean(dim=0), dim=0)
