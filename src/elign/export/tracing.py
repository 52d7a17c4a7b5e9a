"""What an exported graph computes: a model with its attachments as plain tensor operations, without branches on data.

Each aligner, gate and classifier gives its own form for a graph (`traceable`, `weights`, `scores`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TypeVar

from torch import Tensor, nn

from elign.aligners.base import Aligner, TracedAligner
from elign.attachments.attachment import Attachment
from elign.classifiers.base import LatentClassifier
from elign.classifiers.voting import Voting
from elign.gates.base import Always, ByMask, Gate, Head
from elign.utils.errors import ElignError, OptionError
from elign.utils.extraction import logits_of
from elign.utils.fitted import FittedModule

_Fitted = TypeVar("_Fitted", bound=FittedModule)


class ExportError(ElignError, RuntimeError):
    """Something that cannot be exported, a package that exporting needs, or a graph that came out wrong."""


class TracedGate(nn.Module):
    """A gate that can be recorded; called as gates are."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: nn.Module | None = None) -> Tensor | None:
        """Return a weight per row, or None for all rows."""
        # torch shows its recorder a module that stands in two places as one of another class.
        if isinstance(self.gate, Always):
            return None
        return self.gate.weights(z, head, aligner)  # type: ignore[arg-type]


class TracedClassifier(nn.Module):
    """A classifier that can be recorded; called as classifiers are."""

    def __init__(self, classifier: LatentClassifier) -> None:
        super().__init__()
        self.classifier = _traceable(classifier)

    def forward(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return a score for each row and class."""
        found: Tensor = self.classifier.scores(z, logits)  # type: ignore[operator]
        return found


class AlignedLatents(nn.Module):
    """Latents to aligned latents: a gate and an aligner, with a head that only the gate asks."""

    def __init__(self, aligner: Aligner, gate: Gate, head: nn.Module | None) -> None:
        super().__init__()
        self.aligner: TracedAligner = _traceable(aligner)  # type: ignore[assignment]
        self.gate, self.head = TracedGate(gate), head

    def forward(self, z: Tensor) -> Tensor:
        """Map latents (N, D) to latents (N, D)."""
        # `forward`, not a call: an aligner that is attached to this head must not run for the gate's question.
        opinion = None if self.head is None else self.head.forward
        return self.aligner.align(z, where=self.gate(z, head=opinion, aligner=self.aligner))


class AttachedModel(nn.Module):
    """Inputs to logits: a model, here a copy, whose attachments are exchanged for their traceable forms."""

    def __init__(self, model: nn.Module, found: Sequence[Attachment]) -> None:
        super().__init__()
        self.model = model
        # Attachments are hooks, not parts of the model: as parts of this module, their tensors get names in the graph.
        self.parts = nn.ModuleList()
        for attachment in found:
            what = attachment.what
            traced = TracedClassifier(what) if isinstance(what, LatentClassifier) else _traceable(what)
            attachment.what = traced  # type: ignore[assignment]
            self.parts.append(traced)
            if attachment.gate is not None:
                attachment.gate = TracedGate(attachment.gate)  # type: ignore[assignment]
                self.parts.append(attachment.gate)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of inputs to logits."""
        return logits_of(self.model(x))


def deterministic(what: _Fitted, *, drop_noise: bool) -> _Fitted:
    """Return a copy in float32 on the CPU, without noise; raise if there is some and `drop_noise` is not set."""
    what.require_fitted()
    made = copy.deepcopy(what).cpu().float().eval()
    for part in _noisy(made):
        if not drop_noise:
            raise ExportError(
                f"this aligner adds noise (noise={part.noise}), and an exported graph gives the same latents every "
                "time: say drop_noise=True (--drop-noise) to export it without noise"
            )
        part.noise = 0.0  # type: ignore[assignment]
    return made


def _noisy(part: nn.Module) -> Iterator[Aligner]:
    """Yield all aligners with noise that a graph will hold: estimators without a vote stay out of it."""
    if isinstance(part, Aligner) and getattr(part, "noise", False):
        yield part
    for inner in part.voters()[1] if isinstance(part, Voting) else part.children():
        yield from _noisy(inner)


def _traceable(what: FittedModule) -> nn.Module:
    try:
        return what.traceable()
    except OptionError as error:
        raise ExportError(str(error)) from error


def ready_gate(gate: Gate | None, aligner: Aligner) -> Gate:
    """Return a copy in float32 on the CPU of a gate; raise if it makes no sense in a graph with this aligner."""
    if gate is None:
        return Always()
    if isinstance(gate, ByMask):
        raise ExportError(
            "a ByMask gate cannot be exported: its mask belongs to one batch. Export without a gate and choose rows "
            "outside of the graph, or use a gate that decides by itself"
        )
    gate.require_fitted()
    if gate.needs_energy and getattr(aligner, "energy", None) is None:
        name = type(gate).__name__
        raise ExportError(f"{name} needs an aligner with an energy, and a {type(aligner).__name__} has none")
    return copy.deepcopy(gate).cpu().float().eval()
