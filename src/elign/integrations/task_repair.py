"""The part that all adapters share: repair a model after each task, and keep the statistics of all classes."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner, FitReport
from elign.aligners.linear import Ridge
from elign.attachments import Attachment, attach, attachments_of
from elign.classifiers.base import LatentClassifier
from elign.classifiers.bias import WeightAligned
from elign.classifiers.bic import BiC
from elign.classifiers.voting import Voting
from elign.gates import ByEnergy, ByPrediction, ByProbe, FixedStrength, Gate
from elign.repair import Repair
from elign.repair_report import RepairReport
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.errors import AttachError, LatentError, OptionError
from elign.utils.extraction import Latents, extract_labelled, extract_pairs, read_logits
from elign.utils.fitted import FittedModule

Repairing = Aligner | LatentClassifier
"""A `Repair`, another classifier, or an aligner."""
Classes = int | Sequence[int]
"""How many of the head's first outputs, or which of them."""
_REPAIR, _GATE, _STATISTICS = "repair.safetensors", "gate.safetensors", "statistics.safetensors"


@dataclass(frozen=True)
class _Task:
    """Latents of one task's data under both models, and of exemplars `(z, labels, z_prev)` of old classes."""

    model: Latents
    z_prev: Tensor
    z_cur: Tensor
    labels: Tensor | None
    exemplars: tuple[Tensor, Tensor, Tensor] | None

    @property
    def known_labels(self) -> Tensor:
        if self.labels is None:
            raise OptionError("labels are not read with statistics=False: use statistics=True")
        return self.labels

    @property
    def classes(self) -> list[int]:
        return [] if self.labels is None else _unique(self.labels)


class TaskRepair:
    """Repairs a model after each task: `begin` before a task, `end` after it, `attached` to evaluate.

    After the first task, `end` computes the statistics of its classes. After each later one it fits a copy of `what`,
    and moves the statistics into the space of the changed model. Between `begin` and `end` nothing is attached.

    Args:
        head: The name of the head, as in `model.named_modules()`.
        what: A `Repair` (the default), another classifier, or an aligner; not fitted. A classifier is fitted on the
            data of the task and on the statistics of the old classes, which a forward `Ridge` has moved.
        gate: Which latents an aligner moves: a gate, or a function that makes one from the list of old classes.
            `ByPrediction` if not given. `FixedStrength`, `ByEnergy` and `ByProbe` are fitted after each task.
        statistics: Statistics of the classes that the model knows before the first task. True starts without any.
            False keeps none: an aligner then needs no labels, and a `Repair` depends on exemplars.
        old_classes: Classes that the model knows before the first task, if you have no statistics of them.

    Attributes:
        enabled: Set it to False to evaluate the model without the repair.
        fitted: The fitted copy of `what` of the last task; None after the first task.
        statistics: Of all classes so far, in the space of the model after the last task.
        learned_classes: All classes so far. Set it yourself if the data have no labels.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from elign.integrations import TaskRepair
        >>> _ = torch.manual_seed(0)
        >>> model, centers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval(), 6 * torch.randn(4, 8)
        >>> def data(classes):
        ...     labels = torch.tensor(classes).repeat(100)
        ...     return [(centers[labels] + torch.randn(len(labels), 8), labels)]
        >>> repair = TaskRepair("1")
        >>> for classes in ([0, 1], [2, 3]):
        ...     repair.begin(model)
        ...     _ = model[0].weight.data.add_(0.2 * torch.randn(8, 8))       # stands for the training of a task
        ...     repair.end(model, data(classes))
        >>> x, labels = data([0, 1, 2, 3])[0]
        >>> with repair.attached(model):
        ...     accuracy = (model(x).argmax(dim=1) == labels).float().mean()
        >>> bool(accuracy > 0.9), repair.statistics.classes.tolist()
        (True, [0, 1, 2, 3])
    """

    def __init__(
        self,
        head: str,
        what: Repairing | None = None,
        *,
        gate: Gate | Callable[[list[int]], Gate] | None = None,
        statistics: ClassStatistics | bool = True,
        old_classes: Classes = (),
    ) -> None:
        self.head = head
        self.what = _checked(what, head)
        if gate is not None and not isinstance(self.what, Aligner):
            raise OptionError(f"a gate chooses latents for an aligner; a {type(self.what).__name__} has no use for it")
        self.gate = ByPrediction if gate is None else gate
        self.keeps_statistics = statistics is not False
        self.statistics = statistics if isinstance(statistics, ClassStatistics) else None
        known = [] if self.statistics is None else self.statistics.classes.tolist()
        self.learned_classes = sorted({*known, *_listed(old_classes)})
        self.enabled = True
        self.previous: nn.Module | None = None
        self.fitted: Repairing | None = None
        self.old_classes: list[int] = []  # of the task that is being learned, or was learned last
        self._tasks: list[list[int]] = [known] if known else []
        self._stored: Mapping[str, Any] | None = None
        self._chosen_gate: Gate | None = None
        self._attachment: Attachment | None = None

    @property
    def report(self) -> RepairReport | FitReport | None:
        """The report of the last fit; None for classifiers without one, and after `load_state_dict`."""
        return getattr(self.fitted, "report", None)

    def begin(self, model: nn.Module, old_classes: Classes | None = None, *, resumed: bool = False) -> None:
        """Keep a copy of the model before a task changes it, if it knows any classes yet.

        Args:
            model: The model before the task.
            old_classes: The classes of earlier tasks; `learned_classes` by default.
            resumed: The task was interrupted, and `model` has learned a part of it. The copy is then made from the
                weights in the state that was loaded.
        """
        self.detach()
        stored, self._stored, self.fitted, self._chosen_gate = self._stored, None, None, None
        self.old_classes = self.learned_classes if old_classes is None else _listed(old_classes)
        self.previous = copy.deepcopy(model) if self.old_classes else None
        if self.previous is not None and resumed and stored is not None:
            self.previous.load_state_dict(stored)

    def end(
        self,
        model: nn.Module,
        data: Iterable[Any],
        *,
        exemplars: Iterable[Any] | None = None,
        inputs: Callable[[Any], Any] | None = None,
        labels: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Fit on the data of a task that the model has learned, and update the statistics.

        Args:
            model: The model after the task.
            data: Batches of this task's training data, without samples of earlier tasks: inputs first, classes second,
                or a mapping.
            exemplars: Batches of some training data of old classes, if you keep any.
            inputs: Takes the model's input out of a batch, if it is not the first entry.
            labels: Takes the classes out of a batch, if they are not the second entry.
            device: Where to run the models; by default where `model`'s parameters are.
        """
        where = _device_of(model) if device is None else device
        entries: dict[str, Any] = {"inputs": inputs, "labels": labels, "device": where}
        # A DataLoader draws from torch's generator: the training of the next task must not depend on that.
        with torch.random.fork_rng(devices=[]):
            self._end(model, data, exemplars, entries)

    def attach(self, model: nn.Module) -> Attachment | None:
        """Attach the repair to a model, if there is one; see `elign.attach`. It is attached to one model at a time."""
        self.detach()
        if self.fitted is not None and self.enabled:
            fitted = self.fitted.to(_device_of(model))
            self._attachment = attach(model, self.head, fitted, gate=self._chosen_gate, replace=True)
        return self._attachment

    def detach(self) -> None:
        """Take the repair off again."""
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Attach, and detach at the end of the `with` block; an outer block of the same model goes on."""
        there = self._attachment
        # Other code may have detached it.
        if there is not None and there.model is model and there in attachments_of(there.head):
            yield
            return
        self.attach(model)
        try:
            yield
        finally:
            self.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned and, within a task, the weights from before it: plain values and tensors."""
        previous = self._stored if self.previous is None else self.previous.state_dict()
        return {
            "classes": [list(self.old_classes), list(self.learned_classes), list(self._tasks)],
            "statistics": _state_of(self.statistics),
            "fitted": _state_of(self.fitted),
            "gate": None if self._chosen_gate is None else self._chosen_gate.state_dict(),
            "previous": previous,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, into an object with the same options."""
        self.detach()
        self.old_classes, self.learned_classes, self._tasks = map(list, state["classes"])
        self._stored, self.previous, self._chosen_gate = state["previous"], None, None
        self.statistics = _restored(ClassStatistics(), state["statistics"])
        self.fitted = _restored(self.what, state["fitted"])
        if state["gate"] is not None:
            self._chosen_gate = self._new_gate()
            self._chosen_gate.load_state_dict(state["gate"])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `repair.safetensors` and `statistics.safetensors` into a folder; `load_repaired` finds them there.

        Files of an earlier task are removed if there is nothing to take their place.
        """
        parts = {_REPAIR: self.fitted, _GATE: self._chosen_gate, _STATISTICS: self.statistics}
        for name, part in parts.items():
            if part is None:
                Path(folder, name).unlink(missing_ok=True)
            else:
                part.save(Path(folder, name))

    def _end(self, model: nn.Module, data: Any, exemplars: Any, entries: dict[str, Any]) -> None:
        current = Latents(model, self.head)
        if self.previous is None:
            if self.keeps_statistics:
                (z,), labels = extract_labelled([current], data, **entries)
                self._learned(ClassStatistics().update(z, labels), _unique(labels))
            return
        # A framework may have moved one of the two models, for example to save it.
        previous = Latents(self.previous.to(entries["device"]), self.head)
        task = self._read(previous, current, data, exemplars, entries)
        fitted = copy.deepcopy(self.what)
        statistics = self._fit_repair(fitted, task) if isinstance(fitted, Repair) else self._fit_other(fitted, task)
        self.fitted, self.previous = fitted, None
        self._learned(statistics, task.classes)

    def _learned(self, statistics: ClassStatistics | None, classes: list[int]) -> None:
        """Note that the model has learned these classes."""
        if self.keeps_statistics:
            self.statistics = statistics
        self.learned_classes = sorted({*self.old_classes, *classes})
        self._tasks = [*self._tasks, classes]

    def _read(
        self, previous: Latents, current: Latents, data: Any, exemplars: Any, entries: Mapping[str, Any]
    ) -> _Task:
        """Run both models on the data."""
        if isinstance(self.what, Aligner) and not self.keeps_statistics:
            where = {name: entries[name] for name in ("inputs", "device")}
            return _Task(current, *extract_pairs(previous, current, data, **where), None, None)
        (z_prev, z_cur), labels = extract_labelled([previous, current], data, **entries)
        kept: tuple[Tensor, Tensor, Tensor] | None = None
        if exemplars is not None:
            (kept_prev, kept_cur), classes = extract_labelled([previous, current], exemplars, **entries)
            old = ~torch.isin(classes, torch.tensor(_unique(labels), device=classes.device))
            if bool(old.any()):
                kept = kept_cur[old], classes[old], kept_prev[old]
        return _Task(current, z_prev, z_cur, labels, kept)

    def _fit_repair(self, repair: Repair, task: _Task) -> ClassStatistics | None:
        """Fit, and return the statistics of all classes."""
        ends = list(itertools.accumulate(map(len, self._tasks)))
        in_order = [label for classes in [*self._tasks, task.classes] for label in classes]
        repair.fit_latents(
            task.z_prev,
            task.z_cur,
            task.known_labels,
            head=task.model.logits,
            weights=task.model.head if isinstance(task.model.head, nn.Linear) else None,
            statistics=self.statistics,
            exemplars=task.exemplars,
            # Boundaries are numbers of classes: they say nothing if the classes were not learned in their order.
            task_boundaries=ends if ends and in_order == list(range(len(in_order))) else None,
        )
        return repair.statistics

    def _fit_other(self, fitted: Any, task: _Task) -> ClassStatistics | None:
        """Fit an aligner or a classifier, and return the statistics of all classes."""
        old = _moved(self.statistics, task)
        if isinstance(fitted, Aligner):
            fitted.fit_latents(task.z_prev, task.z_cur)
            self._chosen_gate = self._new_gate()
            _fit_gate(self._chosen_gate, fitted, task, self.old_classes)
        elif isinstance(fitted, BiC):
            if task.exemplars is None:
                raise LatentError("BiC needs latents of old classes: give exemplars=...")
            rows = zip(task.exemplars[:2], (task.z_cur, task.known_labels), strict=True)
            z, labels = (torch.cat(both) for both in rows)
            fitted.fit(z, labels, head=task.model.head, old_classes=self.old_classes)
        elif isinstance(fitted, WeightAligned):
            fitted.fit(head=task.model.head, old_classes=self.old_classes)
        elif fitted.learns:
            if old is None:
                raise LatentError("nothing is known of the old classes: give statistics=... or exemplars=...")
            outputs = read_logits(task.model.logits, task.z_cur[:1]).shape[-1]
            fitted.fit(old, task.z_cur, task.known_labels, head=task.model.head, classes=outputs)
        if task.labels is None:
            return None
        fresh = ClassStatistics(covariance="auto" if old is None else old.form).update(task.z_cur, task.labels)
        return fresh if old is None else old.merge(fresh)

    def _new_gate(self) -> Gate:
        return copy.deepcopy(self.gate) if isinstance(self.gate, Gate) else self.gate(self.old_classes)


def load_repaired(model: nn.Module, folder: str | os.PathLike[str], *, head: str = "") -> Attachment:
    """Attach the repair that `TaskRepair.save`, or a callback for a framework, wrote into a folder.

    Args:
        model: The model with the weights that the repair was fitted for.
        folder: Where `repair.safetensors` is.
        head: The name of the head; not needed for a `Repair`, which knows it.

    Raises:
        FileNotFoundError: If there is no repair in the folder: after the first task there is none.
        AttachError: If the repair does not fit the model.
    """
    what: Any = FittedModule.load(Path(folder, _REPAIR), device=_device_of(model))
    head = head or getattr(what, "head", "")
    if not head:
        raise AttachError(f'a {type(what).__name__} does not know its head: load_repaired(model, folder, head="fc")')
    path = Path(folder, _GATE)
    gate = Gate.load(path) if isinstance(what, Aligner) and path.is_file() else None
    return attach(model, head, what, gate=gate, replace=True)


class RepairingCallback:
    """The part that the callbacks for trainers share.

    Args:
        head: The head of the model: a name as in `named_modules()`.
        what: A `Repair` (the default), another classifier, or an aligner; see `TaskRepair`.
        data: Batches of the task's own data; by default the trainer's training data. Give it if these hold samples of
            earlier tasks, too, or are augmented.
        exemplars: Batches of old training data, if you keep any.
        inputs: Takes the model's input out of a batch, if it is not the first entry or `pixel_values`.
        labels: Takes the classes out of a batch, if they are not the second entry or `labels`.
        options: `gate`, `statistics` and `old_classes` of `TaskRepair`.

    Attributes:
        task_repair: The `TaskRepair`, with the report and the statistics.
    """

    def __init__(
        self,
        head: str,
        what: Repairing | None = None,
        *,
        data: Iterable[Any] | None = None,
        exemplars: Iterable[Any] | None = None,
        inputs: Callable[[Any], Any] | None = None,
        labels: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.task_repair = TaskRepair(head, what, **options)
        self.data, self.exemplars, self.inputs, self.labels = data, exemplars, inputs, labels

    def fit_repair(self, model: nn.Module, data: Iterable[Any], device: torch.device) -> None:
        """Fit after a task, on `self.data` or else on these."""
        data = data if self.data is None else self.data
        entries: dict[str, Any] = {"inputs": self.inputs, "labels": self.labels, "device": device}
        self.task_repair.end(model, data, exemplars=self.exemplars, **entries)


class RepairingLearner:
    """Gives a learner that it is mixed with a `TaskRepair`; the mixins for PyCIL and mammoth are made of it.

    Attributes:
        task_repair: The `TaskRepair`; save its `state_dict` beside the learner's own.
    """

    usual_head: ClassVar[str]
    """How the framework calls the head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task_repair = self.make_repair()

    def make_repair(self) -> TaskRepair:
        """Return the repair; override it to choose the head, or anything else than `Repair`."""
        return TaskRepair(self.usual_head)

    def repair_exemplars(self, data: Any) -> Iterable[Any] | None:
        """Return batches of old training data for the repair; None by default.

        Args:
            data: The data manager or dataset of the framework.
        """
        return None


def _checked(what: Repairing | None, head: str) -> Repairing:
    """Return what is fitted after each task."""
    if what is None:
        return Repair(head)
    if not isinstance(what, Aligner | LatentClassifier):
        raise OptionError(f"give a Repair, a LatentClassifier or an Aligner, not a {type(what).__name__}")
    if isinstance(what, Voting):
        raise OptionError("a Voting takes estimators that are fitted already: give a Repair, which fits its own")
    if isinstance(what, Repair):
        if what.head not in ("", head):
            raise OptionError(f"the Repair is for the head {what.head!r}, not for {head!r}")
        what = copy.deepcopy(what)
        what.head = head
    return what


def _fit_gate(gate: Gate, aligner: Aligner, task: _Task, old: list[int]) -> None:
    """Fit a gate that learns."""
    kept = None if task.exemplars is None else task.exemplars[0]
    if isinstance(gate, ByEnergy):
        gate.fit(aligner, task.z_cur, kept)
    elif isinstance(gate, ByProbe):
        if kept is None:
            raise OptionError("ByProbe needs exemplars of old classes")
        gate.fit(kept, task.z_cur)
    elif isinstance(gate, FixedStrength):
        if old != list(range(len(old))):
            raise OptionError("FixedStrength needs old classes that are the first ones: 0, 1, 2, ...")
        z, labels = task.z_cur, task.known_labels
        if task.exemplars is not None:
            z, labels = torch.cat([task.exemplars[0], z]), torch.cat([task.exemplars[1], labels])
        gate.fit(aligner, task.model.logits, z, labels, old_classes=len(old))


def _moved(statistics: ClassStatistics | None, task: _Task) -> ClassStatistics | None:
    """Move the statistics of old classes into the current space, and their means towards those of exemplars."""
    old = None if statistics is None else statistics.without(task.classes)
    if old is not None:
        old = Ridge().fit_latents(task.z_prev, task.z_cur, direction="forward").transport(old)
    if task.exemplars is not None:
        z, labels, _ = task.exemplars
        old = ClassStatistics().update(z, labels) if old is None else old.shrink_means(z, labels)
    return old


def _state_of(part: FittedModule | None) -> dict[str, Any] | None:
    """Return a fitted object as plain values and tensors."""
    if part is None:
        return None
    # Only these two change their options when they are fitted.
    options = part.config() if isinstance(part, Repair | ClassStatistics) else None
    return {"options": options, "tensors": part.state_dict()}


def _restored(template: Any, state: Mapping[str, Any] | None) -> Any:
    """Return the object that `_state_of` described."""
    if state is None:
        return None
    made = copy.deepcopy(template) if state["options"] is None else type(template)(**state["options"])
    made.load_state_dict(state["tensors"])
    return made


def _unique(labels: Tensor) -> list[int]:
    return sorted(set(labels.tolist()))


def _listed(classes: Classes) -> list[int]:
    return list(range(classes)) if isinstance(classes, int) else sorted(int(label) for label in classes)


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
