"""A whole model with what is attached to it, as plain tensor operations: readouts, and all hooks exchanged.

As `export_tracing.py` for aligners and gates.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from elign.attachments import Attachment, OutputsAttachment, ReadoutAttachment
from elign.blend import Blend, blended
from elign.discriminant import Discriminant
from elign.export_tracing import TracedAligner, TracedGate, deterministic
from elign.head_outputs import logits_of
from elign.hooks import HeadHook
from elign.prototypes import NearestMean, Prototypes
from elign.readout import Aligned, Readout

# What gives their scores without the checks of `forward`, which no graph can hold.
_UNCHECKED = {Prototypes: "cosines", NearestMean: "cosines", Discriminant: "scores"}


class TracedReadout(nn.Module):
    """A readout that can be recorded; called as readouts are.

    Args:
        readout: From `ready_readout`.
    """

    def __init__(self, readout: Readout) -> None:
        super().__init__()
        self.aligner: TracedAligner | None = None
        self.readout: Readout | None = None
        # Numbers, not tensors: a graph holds what was chosen, and nothing of it is chosen again.
        self.weights: list[float] = []
        self.offsets: list[float] = []
        self.ends: list[int] = []
        inner: list[Readout] = []
        if type(readout) is Aligned:
            self.aligner, inner = TracedAligner(readout.aligner), [readout.readout]
        elif type(readout) is Blend:
            self.weights, inner = readout.voters()
            self.offsets, self.ends = readout.offsets.tolist(), readout.ends
        else:
            self.readout = readout
        # A subclass with a rule of its own must not be taken for one that is known here. Asked now, since torch shows
        # its recorder a module that stands in two places as one of another class.
        self.rule = _UNCHECKED.get(type(readout))
        self.inner = nn.ModuleList(TracedReadout(part) for part in inner)

    def forward(self, z: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """A score for each row and class."""
        scores: Tensor
        if self.aligner is not None:
            scores = self.inner[0](self.aligner.align(z), logits=logits)
        elif self.readout is None:
            given = [part(z, logits=logits) for part in self.inner]
            scores = blended(self.weights, given, offsets=self.offsets, ends=self.ends)
        elif self.rule is not None:
            scores = getattr(self.readout, self.rule)(z)
        else:
            scores = self.readout(z, logits=logits)
        return scores


class AlignedModel(nn.Module):
    """Inputs to logits: a model whose attached aligners, gates and readouts are exchanged for their traced forms.

    Args:
        model: A copy: its attachments are changed.
        found: The attachments in it.
    """

    def __init__(self, model: nn.Module, found: Sequence[HeadHook]) -> None:
        super().__init__()
        self.model = model
        # Attachments are hooks, not parts of the model: as parts of this module, their tensors get names in the graph.
        self.aligners, self.gates, self.readouts = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for hook in found:
            # They are called as the ones before were, which is all that an attachment asks of them.
            if isinstance(hook, Attachment):
                aligner, gate = TracedAligner(hook.aligner), TracedGate(hook.gate)
                self.aligners.append(aligner)
                self.gates.append(gate)
                hook.aligner, hook.gate = aligner, gate  # type: ignore[assignment]
            elif isinstance(hook, OutputsAttachment):
                aligner = TracedAligner(hook.aligner)
                self.aligners.append(aligner)
                hook.aligner = aligner  # type: ignore[assignment]
            elif isinstance(hook, ReadoutAttachment):
                readout = TracedReadout(hook.readout)
                self.readouts.append(readout)
                hook.readout = readout  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """A batch of inputs to logits."""
        return logits_of(self.model(x))


def ready_readout(readout: Readout, *, drop_noise: bool) -> Readout:
    """A copy in float32 on the CPU of a readout whose aligners give the same latents every time.

    Raises:
        NotFittedError: It has learned nothing yet.
        ExportError: An aligner in it moves latents with noise, and `drop_noise` does not say to leave that out.
    """
    readout.require_fitted()
    made = copy.deepcopy(readout).cpu().float().eval()
    _prepare(made, drop_noise=drop_noise)
    return made


def _prepare(readout: Readout, *, drop_noise: bool) -> None:
    """Exchange the aligners that a graph will hold, and drop what it has no use for; parts without a vote stay out."""
    if isinstance(readout, Aligned):
        readout.aligner = deterministic(readout.aligner, drop_noise=drop_noise)
        _prepare(readout.readout, drop_noise=drop_noise)
    elif isinstance(readout, Blend):
        for part in readout.voters()[1]:
            _prepare(part, drop_noise=drop_noise)
    elif type(readout) is Discriminant:
        # Nine tenths of its numbers, which `left_out` alone has a use for. It may stand in two parts, and be met twice.
        for name in ("precision", "means"):
            readout._buffers.pop(name, None)
