"""The loop that teaches a learner one task: epochs, optimiser, learning rate, state to go on from after a kill.

Written once for all learners. All random choices of an epoch come from seeds of its own, so that an epoch is the same
whether the process that runs it also ran the one before. Imported by the runner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from eli.errors import EliError
from eli.lab.data.split import Split
from eli.lab.experiments.engine import Engine
from eli.lab.experiments.run_config import TrainConfig
from eli.lab.experiments.schedule import one_cycle, steps
from eli.lab.learners import Learner
from eli.lab.seeds import derive_seed

_BALANCED_PER_CLASS = 20


class DivergedError(EliError):
    """The loss became infinite or NaN."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a learner gets to see in one task.

    Args:
        number: From 0.
        classes: The labels it brings.
        new: Places of their training images, (N,).
        rehearsed: Places of the training images of earlier classes that are there too: exemplars, as a rule.
    """

    number: int
    classes: range
    new: Tensor
    rehearsed: Tensor


class Place(NamedTuple):
    """How far the training of a task is."""

    epoch: int
    """The epoch, from 0."""
    step: int
    """How many of its steps are done."""


@dataclass(frozen=True)
class Moment:
    """Where the training of a task is, for a display."""

    task: int
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    seconds: float
    """Since the training of this task began, or went on."""
    first_epoch: int = 0
    """With which epoch it went on."""


class Watch(Protocol):
    """What a training tells and asks its surroundings."""

    def moment(self, moment: Moment) -> None:
        """Called now and then."""
        ...

    def keep(self, place: Place, state: Callable[[], Mapping[str, Tensor]]) -> None:
        """Called after each step; `state` gives what `teach` needs to go on from this place."""
        ...


def teach(
    learner: Learner,
    task: Task,
    split: Split,
    config: TrainConfig,
    *,
    engine: Engine,
    seed: int,
    watch: Watch,
    resume: tuple[Place, Mapping[str, Tensor]] | None = None,
) -> None:
    """Teach `learner`, which has grown for it, one task.

    Args:
        learner: The learner; it trains in place and is left in evaluation mode.
        task: What it gets to see.
        split: The training images.
        config: Epochs, rates and so on.
        engine: Device, precision, layout.
        seed: Of the whole run.
        watch: Hears of the progress, and keeps states.
        resume: The last place that was kept and its state, to go on from there.

    Raises:
        DivergedError: The loss is not finite any more.
    """
    lesson = _Lesson(learner, task, split, config, engine, seed, watch)
    if resume is not None:
        lesson.first = resume[0]
        _restore(learner, lesson.optimizer, resume[1])
    for epoch in range(lesson.first.epoch, lesson.epochs):
        lesson.epoch(epoch)
        if task.number > 0 and len(task.rehearsed):
            lesson.end_epoch(epoch)
    learner.eval()


class _Lesson:
    """One task being taught."""

    def __init__(
        self, learner: Learner, task: Task, split: Split, config: TrainConfig, engine: Engine, seed: int, watch: Watch
    ) -> None:
        self.learner, self.task, self.split, self.config = learner, task, split, config
        self.engine, self.seed, self.watch = engine, seed, watch
        self.first = Place(0, 0)
        self.epochs = config.first_epochs if task.number == 0 else config.epochs
        self.optimizer = torch.optim.SGD(
            learner.groups(), lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
        )
        self._module, self._wrapped = engine.prepare(learner, self.optimizer)
        self._balanced = _balanced(task, seed)
        self._start = time.perf_counter()

    def epoch(self, number: int) -> None:
        """All images once."""
        rows = torch.cat([self.task.new, self.task.rehearsed])
        generator = torch.Generator().manual_seed(self._seed("order", number))
        order = self.engine.share(rows[torch.randperm(len(rows), generator=generator)])
        size = max(1, self.config.batch_size // self.engine.processes)
        if len(order) % size == 1 and len(order) > 1:
            order = order[:-1]  # batch norm cannot train on a single image; another epoch leaves out another one
        count = -(-len(order) // size)
        done = self.first.step if number == self.first.epoch else 0
        self.learner.train()
        total = correct = seen = 0.0
        batches = self.split.batches(order, size=size, augment=self._seed("augmentation", number))
        for step, (images, labels) in enumerate(batches):
            if step < done:
                continue
            self._set_rate(self._share(number, step / count))
            labels = self.engine.labels(labels)
            loss, logits = self._step(self.engine.images(images), labels, number)
            total += loss * len(labels)
            correct += (logits.argmax(dim=1) == labels).sum().item()
            seen += len(labels)
            seconds = time.perf_counter() - self._start
            place = (self.task.number, number, self.epochs, step + 1, count)
            self.watch.moment(Moment(*place, total / seen, correct / seen, seconds, self.first.epoch))
            self.watch.keep(Place(number, step + 1), lambda: _state(self.learner, self.optimizer))

    def end_epoch(self, number: int) -> None:
        """What the learner does between two epochs."""
        seed = self._seed("augmentation of the balanced set", number)

        def balanced() -> Iterator[tuple[Tensor, Tensor]]:
            for images, labels in self.split.batches(self._balanced, size=self.config.batch_size, augment=seed):
                yield self.engine.images(images), self.engine.labels(labels)

        with self.engine.autocast():
            self.learner.end_epoch(balanced, rate=self._share(number, 0.0))

    def _step(self, images: Tensor, labels: Tensor, epoch: int) -> tuple[float, Tensor]:
        terms, logits = self._module(images, labels)
        loss = torch.stack([*terms.values()]).sum()
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value} in epoch {epoch + 1} of task {self.task.number + 1}; "
                f"a lower train.learning_rate (now {self.config.learning_rate:g}) helps"
            )
        self._wrapped.zero_grad(set_to_none=True)
        self.engine.fabric.backward(loss)
        self._wrapped.step()
        return value, logits

    def _share(self, epoch: int, within: float) -> float:
        """The learning rate as a share of its peak."""
        if self.config.schedule == "one-cycle":
            return one_cycle((epoch + within) / self.epochs)
        return steps(epoch, self.epochs, milestones=self.config.milestones, gamma=self.config.gamma)

    def _set_rate(self, share: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * share

    def _seed(self, purpose: str, epoch: int) -> int:
        return derive_seed(self.seed, f"{purpose} of task {self.task.number} epoch {epoch}")


def _balanced(task: Task, seed: int) -> Tensor:
    """Exemplars and a few new images, drawn once per task: 20 for each new class on average, as AANet's authors do."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"balanced set of task {task.number}"))
    order = torch.randperm(len(task.new), generator=generator)[: _BALANCED_PER_CLASS * len(task.classes)]
    both = torch.cat([task.rehearsed, task.new[order]])
    return both[torch.randperm(len(both), generator=generator)]


def _state(learner: Learner, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    momenta = {f"momentum.{number}": state["momentum_buffer"] for number, state in _slots(optimizer)}
    return {f"learner.{name}": value for name, value in learner.state().items()} | momenta


def _slots(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, dict[str, Tensor]]]:
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        # A parameter that no batch reached has no momentum yet.
        if optimizer.state[parameter].get("momentum_buffer") is not None:
            yield number, optimizer.state[parameter]


def _restore(learner: Learner, optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    prefix = "learner."
    learner.load_state({name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)})
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        momentum = state.get(f"momentum.{number}")
        if momentum is not None:
            # `to` keeps the layout of the parameter: another one would be added up in another order.
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
