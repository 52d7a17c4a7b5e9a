"""Where alignment takes place: on latents, or on the logits of the old classes. The readings do not know which.

A *row* is what a classifier reads, and its *values* are the part of it that an aligner sees and moves.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.settings import SpaceName
from elign.utils.extraction import evaluating, logits_of


class Space(Protocol):
    """The few things that differ between latents and logits."""

    has_latents: bool
    """Are rows latents, so that class means and prototypes can be made of them?"""

    def rows(self, latents: Tensor) -> Tensor:
        """Rows of the current model, from its latents."""

    def previous(self, latents: Tensor) -> Tensor:
        """The values that rows should have had, from the previous model's latents."""

    def values(self, rows: Tensor) -> Tensor:
        """What an aligner sees of rows."""

    def replaced(self, rows: Tensor, values: Tensor) -> Tensor:
        """Rows with other values."""

    def logits(self, rows: Tensor) -> Tensor:
        """One logit for each class seen so far."""


class LatentSpace:
    """Rows and values are latents; the current head reads them.

    Args:
        head: The current model's head.
        seen: Number of classes seen so far.
    """

    has_latents = True

    def __init__(self, head: nn.Module, *, seen: int) -> None:
        self._head, self._seen = head, seen

    def rows(self, latents: Tensor) -> Tensor:
        """Latents as they are."""
        return latents

    def previous(self, latents: Tensor) -> Tensor:
        """Latents as they are."""
        return latents

    def values(self, rows: Tensor) -> Tensor:
        """All of each row."""
        return rows

    def replaced(self, rows: Tensor, values: Tensor) -> Tensor:
        """The values alone."""
        return values

    def logits(self, rows: Tensor) -> Tensor:
        """What the head says."""
        return read_head(self._head, rows, classes=self._seen)


class LogitSpace:
    """Rows are logits of all classes, values those of the old ones: the paper's "logit aligner".

    No code of it was released. The definition used here: dimension = known classes, previous values = the previous
    head's logits, current values = the current head's first `known` logits; the new classes' logits stay as they are.

    Args:
        head: The current model's head.
        previous_head: The previous model's head.
        known: Number of classes before the task.
        seen: Number of classes after it.
    """

    has_latents = False

    def __init__(self, head: nn.Module, previous_head: nn.Module, *, known: int, seen: int) -> None:
        self._head, self._previous_head, self._known, self._seen = head, previous_head, known, seen

    def rows(self, latents: Tensor) -> Tensor:
        """The current head's logits."""
        return read_head(self._head, latents, classes=self._seen)

    def previous(self, latents: Tensor) -> Tensor:
        """The previous head's logits."""
        return read_head(self._previous_head, latents, classes=self._known)

    def values(self, rows: Tensor) -> Tensor:
        """Logits of the old classes."""
        return rows[:, : self._known]

    def replaced(self, rows: Tensor, values: Tensor) -> Tensor:
        """Other logits for the old classes."""
        return torch.cat([values, rows[:, self._known :]], dim=1)

    def logits(self, rows: Tensor) -> Tensor:
        """Rows as they are."""
        return rows


def make_space(name: SpaceName, head: nn.Module, previous_head: nn.Module, *, known: int, seen: int) -> Space:
    """The space of a task after the first, by its name in the settings."""
    if name == "logits":
        return LogitSpace(head, previous_head, known=known, seen=seen)
    return LatentSpace(head, seen=seen)


def read_head(head: nn.Module, latents: Tensor, *, classes: int) -> Tensor:
    """Logits (N, classes) of latents (N, D): in evaluation mode, without gradients, on the latents' device.

    A head may have outputs for classes that come later; they are left out.

    Raises:
        EvaluationError: The head has fewer outputs than there are classes.
    """
    weight = next(head.parameters(), None)
    there = latents if weight is None else latents.to(weight.device, weight.dtype)
    with evaluating(head), torch.no_grad():
        logits = logits_of(head(there)).to(latents.device)
    if logits.shape[1] < classes:
        raise EvaluationError(
            f"the head has {logits.shape[1]} outputs, but {classes} classes were seen: another task's?"
        )
    return logits[:, :classes]
