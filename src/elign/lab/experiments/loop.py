"""The loop that teaches a learner one task: epochs, optimiser, learning rate, state to go on from after a kill.

Written once for all learners of all kinds; what is taught is a `Course`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from elign.lab.experiments.engine import Engine
from elign.lab.experiments.run_sections import TrainConfig
from elign.utils.errors import ElignError


class DivergedError(ElignError):
    """The loss became infinite or NaN."""


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
    accuracy: float | None
    """Of this epoch's training images so far; None where there is no such thing."""
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
        """Called after each step; `state` gives what the loop needs to go on from this place."""
        ...


class Taught(Protocol):
    """What the loop needs of a learner; a module that makes a loss of a batch."""

    def groups(self) -> list[nn.Parameter]:
        """What is trained."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What changes while a task is learned."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        ...


class Result(NamedTuple):
    """What a course makes of a batch."""

    terms: Mapping[str, Tensor]
    """Named terms of the loss; their sum is minimised."""
    images: int
    right: float | None = None
    """How many of them were recognised, where that can be said."""


class Course(Protocol):
    """What is taught in one task.

    All random choices of an epoch come from seeds of its own, so that an epoch is the same whether the process that
    runs it also ran the one before.
    """

    @property
    def task(self) -> int:
        """Number of the task, from 0."""
        ...

    @property
    def epochs(self) -> int:
        """How many."""
        ...

    def begin_epoch(self, epoch: int) -> tuple[int, Iterator[Any]]:
        """Make the learner ready; the number of batches of an epoch, and the batches."""
        ...

    def rate(self, epoch: int, within: float) -> float:
        """The learning rate as a share of its peak, `within` (0 to 1) of an epoch."""
        ...

    def loss(self, module: Any, batch: Any) -> Result:
        """What the learner, wrapped for its devices, makes of a batch."""
        ...

    def before_step(self) -> None:
        """Called between the gradients and the optimiser's step."""
        ...

    def after_step(self, place: Place, batch: Any, rate: float) -> None:
        """Called after the optimiser's step, with the learning rate it was done with."""
        ...

    def end_epoch(self, epoch: int) -> None:
        """Called after each epoch."""
        ...


def stochastic_descent(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """The optimiser of all published learners."""
    return torch.optim.SGD(
        parameters, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
    )


def teach_course(
    learner: Any,
    course: Course,
    config: TrainConfig,
    *,
    engine: Engine,
    watch: Watch,
    resume: tuple[Place, Mapping[str, Tensor]] | None = None,
    optimizer: Callable[[list[nn.Parameter], Any], torch.optim.Optimizer] = stochastic_descent,
) -> None:
    """Teach `learner` one task.

    Args:
        learner: A module that is `Taught`; it trains in place and is left in evaluation mode.
        course: What is taught.
        config: Rates and so on.
        engine: Device, precision, layout.
        watch: Hears of the progress, and keeps states.
        resume: The last place that was kept and its state, to go on from there.
        optimizer: Makes the optimiser of what is trained.

    Raises:
        DivergedError: The loss is not finite any more.
    """
    lesson = _Lesson(learner, course, config, engine, watch, optimizer(learner.groups(), config))
    if resume is not None:
        lesson.first = resume[0]
        _restore(learner, lesson.optimizer, resume[1])
    for epoch in range(lesson.first.epoch, course.epochs):
        lesson.epoch(epoch)
        course.end_epoch(epoch)
    learner.eval()


class _Lesson:
    """One task being taught."""

    def __init__(
        self,
        learner: Any,
        course: Course,
        config: TrainConfig,
        engine: Engine,
        watch: Watch,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.learner, self.course, self.config = learner, course, config
        self.engine, self.watch = engine, watch
        self.first = Place(0, 0)
        self.optimizer = optimizer
        self._module, self._wrapped = engine.prepare(learner, self.optimizer)
        self._start = time.perf_counter()

    def epoch(self, number: int) -> None:
        """All batches once."""
        course = self.course
        done = self.first.step if number == self.first.epoch else 0
        self.learner.train()
        count, batches = course.begin_epoch(number)
        total = right = seen = 0.0
        accuracy: float | None = None
        for step, batch in enumerate(batches):
            if step < done:
                continue
            rate = self._set_rate(course.rate(number, step / count))
            loss, result = self._step(batch, number)
            place = Place(number, step + 1)
            course.after_step(place, batch, rate)
            total += loss * result.images
            seen += result.images
            if result.right is not None:
                right += result.right
                accuracy = right / seen
            seconds = time.perf_counter() - self._start
            where = (course.task, number, course.epochs, step + 1, count)
            self.watch.moment(Moment(*where, total / seen, accuracy, seconds, self.first.epoch))
            self.watch.keep(place, lambda: _state(self.learner, self.optimizer))

    def _step(self, batch: Any, epoch: int) -> tuple[float, Result]:
        result = self.course.loss(self._module, batch)
        loss = torch.stack([*result.terms.values()]).sum()
        # Of all processes: what one of them cannot go on with, none can.
        value = self.engine.mean(loss).item()
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value} in epoch {epoch + 1} of task {self.course.task + 1}; "
                f"a lower train.learning_rate (now {self.config.learning_rate:g}) helps"
            )
        self._wrapped.zero_grad(set_to_none=True)
        self.engine.fabric.backward(loss)
        self.course.before_step()
        self._wrapped.step()
        return value, result

    def _set_rate(self, share: float) -> float:
        rate = self.config.learning_rate * share
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate


def _state(learner: Taught, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The learner's state and the optimiser's: momenta, say; a parameter that no batch reached has none yet."""
    moments = {
        f"optimizer.{number}.{name}": value
        for number, parameter in enumerate(optimizer.param_groups[0]["params"])
        for name, value in optimizer.state[parameter].items()
        if value is not None
    }
    return {f"learner.{name}": value for name, value in learner.state().items()} | moments


def _restore(learner: Taught, optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    prefix = "learner."
    learner.load_state({name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)})
    parameters = optimizer.param_groups[0]["params"]
    for key, value in state.items():
        kind, _, place = key.partition(".")
        if kind != "optimizer":
            continue
        number, _, name = place.partition(".")
        parameter = parameters[int(number)]
        # In the layout of the parameter: another one would be added up in another order.
        same = value.shape == parameter.shape
        optimizer.state[parameter][name] = torch.empty_like(parameter).copy_(value) if same else value.clone()
