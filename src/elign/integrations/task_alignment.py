"""What all adapters share: the aligner and the gate of the latest task, and the model from before it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn

from elign.aligner import Aligner
from elign.attach import attach
from elign.attachments import Attachment
from elign.energy_aligner import EnergyAligner
from elign.extraction import Latents, extract_pairs
from elign.gates import ByEnergy, ByPrediction, Gate
from elign.hooks import hooks_of

Known = int | list[int]
"""Old classes: how many of the head's first outputs, or which of them. 0 or an empty list: there are none yet."""


class TaskAlignment:
    """ELI for a model that learns task after task: `begin` before a task, `end` after it, `attached` to evaluate.

    Only the data that `end` is given enters, and no label. Between `begin` and `end` nothing is aligned: the aligner of
    the task before does not fit weights that are being changed. Plain tensors and values in `state_dict`; picklable if
    the gate is.

    Args:
        head: The part of the model that reads latents: a name as in `model.named_modules()`.
        aligner: Learns anew at the end of each task; `EnergyAligner()` when not given.
        gate: Which latents are aligned: something that makes a gate from the old classes, such as `ByPrediction` (the
            default); or a gate, used for all tasks. A `ByEnergy` is calibrated on the latents of each task.
        passes: How often to go through a task's data; more than one makes sense when it is augmented at random.

    Attributes:
        enabled: Set it to False to evaluate the model as it is.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from elign import MeanShift
        >>> from elign.integrations import TaskAlignment
        >>> _ = torch.manual_seed(0)
        >>> model, x = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval(), torch.randn(50, 20)
        >>> alignment = TaskAlignment("1", aligner=MeanShift())
        >>> alignment.begin(model, known=2)
        >>> _ = model[0].bias.data.add_(1)                          # stands for the training of a task
        >>> alignment.end(model, [x])
        >>> with alignment.attached(model):
        ...     aligned = model(x)
        >>> bool((aligned != model(x)).any())
        True
    """

    def __init__(
        self,
        head: str,
        *,
        aligner: Aligner | None = None,
        gate: Gate | Callable[[Any], Gate] = ByPrediction,
        passes: int = 1,
    ) -> None:
        self.head = head
        self.aligner = aligner if aligner is not None else EnergyAligner()
        self.gate = gate
        self.passes = passes
        self.known: Known = 0
        self.enabled = True
        self.previous: nn.Module | None = None
        self._stored: Mapping[str, Any] | None = None
        self._chosen: Gate | None = None
        self._attachment: Attachment | None = None

    @property
    def ready(self) -> bool:
        """Is there an aligner for the model as it is now?"""
        return self._chosen is not None

    def begin(self, model: nn.Module, known: Known, *, resumed: bool = False) -> None:
        """A task is about to change the model: keep a copy of it, if it knows any classes yet.

        Args:
            model: The model before the task.
            known: The classes of earlier tasks.
            resumed: The task goes on after an interruption, and `model` has learned a part of it: the copy is then the
                one in the state that was loaded.
        """
        self.detach()
        stored, self._stored, self._chosen = self._stored, None, None
        self.known = known
        self.previous = copy.deepcopy(model) if known else None
        if self.previous is not None and resumed and stored is not None:
            self.previous.load_state_dict(stored)

    def end(
        self,
        model: nn.Module,
        data: Iterable[Any],
        *,
        inputs: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """The task is learned: fit the aligner on its data. After the first task there is nothing to do.

        Args:
            model: The model after the task.
            data: Batches of this task's inputs, and of no others; see `Aligner.fit`.
            inputs: Takes the model's input out of a batch, when it is not simply the first entry.
            device: Where the model is; by default where its parameters are.
        """
        if self.previous is None:
            return
        # A framework may have moved one of the two, to write a file for instance.
        previous = self.previous if device is None else self.previous.to(device)
        sides = Latents(previous, self.head), Latents(model, self.head)
        z_prev, z_cur = extract_pairs(*sides, data, passes=self.passes, inputs=inputs, device=device)
        self.aligner.fit_latents(z_prev, z_cur)
        gate = self._make_gate()
        if isinstance(gate, ByEnergy):
            gate.calibrate(self.aligner, z_cur)
        self._chosen, self.previous = gate, None

    def attach(self, model: nn.Module) -> Attachment | None:
        """Let the model align its latents, if there is an aligner for it; see `elign.attach`. One model at a time."""
        self.detach()
        if self._chosen is not None and self.enabled:
            self._attachment = attach(model, self.head, self.aligner, gate=self._chosen, replace=True)
        return self._attachment

    def detach(self) -> None:
        """Take the aligner off again; the model is as it was."""
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """`attach`, and `detach` at the end of the `with` block; an outer block of the same model goes on."""
        there = self._attachment
        # Somebody else may have taken it off.
        if there is not None and there.model is model and there in hooks_of(there.head):
            yield
            return
        self.attach(model)
        try:
            yield
        finally:
            self.detach()

    def state_dict(self) -> dict[str, Any]:
        """What was learned and, within a task, the weights from before it."""
        return {
            "known": self.known,
            "aligner": self.aligner.state_dict() if self._chosen is not None else None,
            "gate": self._chosen.state_dict() if self._chosen is not None else None,
            "previous": self._stored if self.previous is None else self.previous.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, into an object with the same options."""
        self.detach()
        self.known, self._stored, self.previous, self._chosen = state["known"], state["previous"], None, None
        if state["aligner"] is not None:
            self.aligner.load_state_dict(state["aligner"])
            gate = self._make_gate()
            gate.load_state_dict(state["gate"])
            self._chosen = gate

    def _make_gate(self) -> Gate:
        return self.gate if isinstance(self.gate, Gate) else self.gate(self.known)


class AlignmentMixin:
    """Gives a learner that it is mixed with a `TaskAlignment`; what the mixins for PyCIL and mammoth share.

    Attributes:
        alignment: The `TaskAlignment`; its `state_dict` is what to save beside the learner's own.
    """

    usual_head: ClassVar[str]
    """What the part that reads latents is called in that framework."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alignment = self.make_alignment()

    def make_alignment(self) -> TaskAlignment:
        """Override it to choose the head, the aligner and the gate."""
        return TaskAlignment(self.usual_head)
