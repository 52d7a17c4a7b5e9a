"""The training of one task: the loop over epochs and batches, its learning rate, and the state to resume from."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from elign.lab.config.schema import TrainConfig
from elign.lab.data.base import Split
from elign.lab.environment import derive_seed
from elign.lab.learners import Learner
from elign.lab.training.device import Engine
from elign.utils.errors import ElignError


class DivergedError(ElignError):
    """The loss became infinite or NaN."""


class Step(NamedTuple):
    """How far the training of a task is."""

    epoch: int
    """From 0."""
    step: int
    """How many steps of this epoch are done."""


@dataclass(frozen=True)
class TrainingProgress:
    """How far the training of a task is, for a display."""

    task: int
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float | None
    """On the training images of this epoch so far; None for detectors."""
    seconds: float
    """Since the training of this task started or resumed."""
    first_epoch: int = 0
    """The epoch that it started or resumed with."""


class Callback(Protocol):
    """What a training reports to."""

    def on_step(self, progress: TrainingProgress) -> None:
        """Show the progress; called after each step."""
        ...

    def checkpoint(self, step: Step, state: Callable[[], Mapping[str, Tensor]]) -> None:
        """Save `state()` if it is time to; called after each step."""
        ...


class StepResult(NamedTuple):
    """The loss of a batch."""

    terms: Mapping[str, Tensor]
    """Named terms of the loss; their sum is minimised."""
    images: int
    correct: float | None = None
    """How many images were classified correctly."""


Resume = tuple[Step, Mapping[str, Tensor]]
"""The last step that was saved, and the state after it."""


class TaskTraining(ABC):
    """The batches and the loss of one task.

    All random numbers of an epoch come from its own seeds, so that a resumed epoch equals an undisturbed one.
    """

    task: int
    """From 0."""
    epochs: int

    @abstractmethod
    def batches(self, epoch: int) -> tuple[int, Iterator[Any]]:
        """Prepare the learner for an epoch; return the number of batches, and the batches."""

    @abstractmethod
    def rate(self, epoch: int, within: float) -> float:
        """Return the learning rate as a share of its peak, `within` (0 to 1) of an epoch."""

    @abstractmethod
    def loss(self, module: Any, batch: Any) -> StepResult:
        """Return the loss of a batch, by the learner as wrapped for its devices."""

    def before_step(self) -> None:  # noqa: B027  (most need none)
        """Change the gradients before the optimiser's step."""

    def after_step(self, step: Step, batch: Any, rate: float) -> None:  # noqa: B027  (most need none)
        """Follow up on the optimiser's step, which had this learning rate."""

    def end_epoch(self, epoch: int) -> None:  # noqa: B027  (most need none)
        """Follow up on an epoch."""


_WARM_UP, _START = 0.3, 0.04  # of the one-cycle schedule: share of the steps, share of the rate


def rate_share(config: TrainConfig, epoch: int, within: float, *, epochs: int) -> float:
    """Return the learning rate as a share of its peak, `within` (0 to 1) of an epoch from 0; nothing is stored.

    One cycle: half a cosine up from 1/25, then one down to 0. Steps: times `gamma` from each milestone on, one epoch
    early as in the published code, which moves its scheduler before each epoch: with 160 epochs and a milestone of 1/2,
    epoch 79 (from 0) is the first with the lower rate.
    """
    if config.schedule == "steps":
        return config.gamma ** sum(epoch + 1 >= round(milestone * epochs) for milestone in config.milestones)
    done = (epoch + within) / epochs
    if done < _WARM_UP:
        return _START + (1 - _START) * (1 - math.cos(math.pi * done / _WARM_UP)) / 2
    return (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) / 2


def stochastic_descent(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """Make the optimiser of all published learners."""
    return torch.optim.SGD(
        parameters, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
    )


class Trainer:
    """Trains a learner, which has `groups`, `state` and `load_state`, in one task, in place."""

    def __init__(
        self,
        learner: Any,
        training: TaskTraining,
        config: TrainConfig,
        *,
        engine: Engine,
        callback: Callback,
        optimizer: Callable[[list[nn.Parameter], Any], torch.optim.Optimizer] = stochastic_descent,
    ) -> None:
        self.learner, self.training, self.config = learner, training, config
        self.engine, self.callback = engine, callback
        self.optimizer = optimizer(learner.groups(), config)
        self._module, self._wrapped = engine.prepare(learner, self.optimizer)

    def fit(self, resume: Resume | None = None) -> None:
        """Train all epochs, or those after `resume`; leave the learner in evaluation mode.

        Raises:
            DivergedError: The loss is not finite.
        """
        self._start, self._first = time.perf_counter(), Step(0, 0)
        if resume is not None:
            self._first = resume[0]
            self._load_state(resume[1])
        for epoch in range(self._first.epoch, self.training.epochs):
            self._epoch(epoch)
            self.training.end_epoch(epoch)
        self.learner.eval()

    def _epoch(self, epoch: int) -> None:
        training = self.training
        done = self._first.step if epoch == self._first.epoch else 0
        self.learner.train()
        count, batches = training.batches(epoch)
        total = correct = seen = 0.0
        accuracy: float | None = None
        for number, batch in enumerate(batches):
            if number < done:
                continue
            step = Step(epoch, number + 1)
            rate = self._set_rate(training.rate(epoch, number / count))
            loss, result = self._step(batch, epoch)
            training.after_step(step, batch, rate)
            total += loss * result.images
            seen += result.images
            if result.correct is not None:
                correct += result.correct
                accuracy = correct / seen
            seconds = time.perf_counter() - self._start
            where = (training.task, epoch, training.epochs, number + 1, count)
            self.callback.on_step(TrainingProgress(*where, total / seen, accuracy, seconds, self._first.epoch))
            self.callback.checkpoint(step, self._state)

    def _step(self, batch: Any, epoch: int) -> tuple[float, StepResult]:
        result = self.training.loss(self._module, batch)
        loss = torch.stack([*result.terms.values()]).sum()
        # Of all processes, so that all of them stop.
        value = self.engine.mean(loss).item()
        if not math.isfinite(value):
            raise DivergedError(
                f"the loss is {value} in epoch {epoch + 1} of task {self.training.task + 1}; "
                f"a lower train.learning_rate (now {self.config.learning_rate:g}) helps"
            )
        self._wrapped.zero_grad(set_to_none=True)
        self.engine.fabric.backward(loss)
        self.training.before_step()
        self._wrapped.step()
        return value, result

    def _set_rate(self, share: float) -> float:
        rate = self.config.learning_rate * share
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _state(self) -> dict[str, Tensor]:
        """Return the state of learner and optimiser; a parameter that no batch reached has no momentum yet."""
        moments = {
            f"optimizer.{number}.{name}": value
            for number, parameter in enumerate(self.optimizer.param_groups[0]["params"])
            for name, value in self.optimizer.state[parameter].items()
            if value is not None
        }
        return {f"learner.{name}": value for name, value in self.learner.state().items()} | moments

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        learned = {key.removeprefix("learner."): value for key, value in state.items() if key.startswith("learner.")}
        self.learner.load_state(learned)
        parameters = self.optimizer.param_groups[0]["params"]
        for key, value in state.items():
            if key.startswith("optimizer."):
                number, name = key.split(".")[1:]
                parameter = parameters[int(number)]
                # In the layout of the parameter: another one would be added up in another order.
                same = value.shape == parameter.shape
                self.optimizer.state[parameter][name] = (
                    torch.empty_like(parameter).copy_(value) if same else value.clone()
                )


_BALANCED_PER_CLASS = 20


@dataclass(frozen=True, eq=False)
class Task:
    """The training images that a learner gets in one task.

    Args:
        number: From 0.
        classes: The labels it brings.
        new: Indices of their training images, (N,).
        rehearsed: Indices of the training images of earlier classes: exemplars, as a rule.
    """

    number: int
    classes: range
    new: Tensor
    rehearsed: Tensor


class ClassifierTraining(TaskTraining):
    """The images and labels of a task, for a learner that has grown for it; `seed` is that of the whole run."""

    def __init__(
        self, learner: Learner, task: Task, split: Split, config: TrainConfig, *, engine: Engine, seed: int
    ) -> None:
        self._learner, self._task, self._split = learner, task, split
        self._config, self._engine, self._seed = config, engine, seed
        self._balanced = _balanced(task, seed)
        self.task = task.number
        self.epochs = config.first_epochs if task.number == 0 else config.epochs

    def batches(self, epoch: int) -> tuple[int, Iterator[tuple[Tensor, Tensor]]]:
        """Return all images once, in an order of this epoch; a process has its share of each batch."""
        rows = torch.cat([self._task.new, self._task.rehearsed])
        generator = torch.Generator().manual_seed(self._epoch_seed("order", epoch))
        order = rows[torch.randperm(len(rows), generator=generator)]
        if len(order) % self._config.batch_size == 1 and len(order) > 1:
            order = order[:-1]  # batch norm cannot train on a single image; another epoch leaves out another one
        mine, size = self._engine.share(order), self._config.batch_size // self._engine.processes
        seed = self._epoch_seed(self._engine.purpose("augmentation"), epoch)
        return -(-len(mine) // size), self._split.batches(mine, size=size, augment=seed)

    def rate(self, epoch: int, within: float) -> float:
        """Follow the schedule of the configuration."""
        return rate_share(self._config, epoch, within, epochs=self.epochs)

    def loss(self, module: Any, batch: tuple[Tensor, Tensor]) -> StepResult:
        """Return the learner's loss, and how many images it classified correctly."""
        labels = batch[1].to(self._engine.device)
        terms, logits = module(self._engine.images(batch[0]), labels)
        return StepResult(terms, len(labels), (logits.argmax(dim=1) == labels).sum().item())

    def end_epoch(self, epoch: int) -> None:
        """Give the learner a balanced set, after the first task."""
        if self._task.number == 0 or not len(self._task.rehearsed):
            return
        seed = self._epoch_seed("augmentation of the balanced set", epoch)

        def balanced() -> Iterator[tuple[Tensor, Tensor]]:
            for images, labels in self._split.batches(self._balanced, size=self._config.batch_size, augment=seed):
                yield self._engine.images(images), labels.to(self._engine.device)

        with self._engine.autocast():
            self._learner.end_epoch(balanced, rate=self.rate(epoch, 0.0))

    def _epoch_seed(self, purpose: str, epoch: int) -> int:
        return derive_seed(self._seed, f"{purpose} of task {self._task.number} epoch {epoch}")


def _balanced(task: Task, seed: int) -> Tensor:
    """Draw exemplars and new images once per task: 20 for each new class on average, as AANet's authors do."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"balanced set of task {task.number}"))
    order = torch.randperm(len(task.new), generator=generator)[: _BALANCED_PER_CLASS * len(task.classes)]
    both = torch.cat([task.rehearsed, task.new[order]])
    return both[torch.randperm(len(both), generator=generator)]
