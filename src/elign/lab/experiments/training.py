"""How a classifier is taught one task: the course of the loop in `loop.py` for images and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elign.lab.data.split import Split
from elign.lab.experiments.engine import Engine
from elign.lab.experiments.loop import Place, Result, Watch, teach_course
from elign.lab.experiments.run_sections import TrainConfig
from elign.lab.experiments.schedule import rate_share
from elign.lab.learners import Learner
from elign.lab.seeds import derive_seed

_BALANCED_PER_CLASS = 20


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
    course = _Course(learner, task, split, config, engine, seed)
    teach_course(learner, course, config, engine=engine, watch=watch, resume=resume)


class _Course:
    """A task's images and labels, an epoch at a time."""

    def __init__(
        self, learner: Learner, task: Task, split: Split, config: TrainConfig, engine: Engine, seed: int
    ) -> None:
        self._learner, self._task, self._split = learner, task, split
        self._config, self._engine, self._seed = config, engine, seed
        self._balanced = _balanced(task, seed)
        self.task = task.number
        self.epochs = config.first_epochs if task.number == 0 else config.epochs

    def begin_epoch(self, epoch: int) -> tuple[int, Iterator[tuple[Tensor, Tensor]]]:
        """All images once, in an order of this epoch; a process has its share of each batch."""
        rows = torch.cat([self._task.new, self._task.rehearsed])
        generator = torch.Generator().manual_seed(self._epoch_seed("order", epoch))
        order = rows[torch.randperm(len(rows), generator=generator)]
        if len(order) % self._config.batch_size == 1 and len(order) > 1:
            order = order[:-1]  # batch norm cannot train on a single image; another epoch leaves out another one
        mine, size = self._engine.share(order), self._config.batch_size // self._engine.processes
        seed = self._epoch_seed(self._engine.purpose("augmentation"), epoch)
        return -(-len(mine) // size), self._split.batches(mine, size=size, augment=seed)

    def rate(self, epoch: int, within: float) -> float:
        """By the schedule."""
        return rate_share(self._config, epoch, within, epochs=self.epochs)

    def loss(self, module: Any, batch: tuple[Tensor, Tensor]) -> Result:
        """The learner's loss, and how many images it recognised."""
        labels = self._engine.labels(batch[1])
        terms, logits = module(self._engine.images(batch[0]), labels)
        return Result(terms, len(labels), (logits.argmax(dim=1) == labels).sum().item())

    def before_step(self) -> None:
        """Nothing is done here."""

    def after_step(self, place: Place, batch: tuple[Tensor, Tensor], rate: float) -> None:
        """Nothing is done here."""

    def end_epoch(self, epoch: int) -> None:
        """What the learner does between two epochs."""
        if self._task.number == 0 or not len(self._task.rehearsed):
            return
        seed = self._epoch_seed("augmentation of the balanced set", epoch)

        def balanced() -> Iterator[tuple[Tensor, Tensor]]:
            for images, labels in self._split.batches(self._balanced, size=self._config.batch_size, augment=seed):
                yield self._engine.images(images), self._engine.labels(labels)

        with self._engine.autocast():
            self._learner.end_epoch(balanced, rate=self.rate(epoch, 0.0))

    def _epoch_seed(self, purpose: str, epoch: int) -> int:
        return derive_seed(self._seed, f"{purpose} of task {self._task.number} epoch {epoch}")


def _balanced(task: Task, seed: int) -> Tensor:
    """Exemplars and a few new images, drawn once per task: 20 for each new class on average, as AANet's authors do."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"balanced set of task {task.number}"))
    order = torch.randperm(len(task.new), generator=generator)[: _BALANCED_PER_CLASS * len(task.classes)]
    both = torch.cat([task.rehearsed, task.new[order]])
    return both[torch.randperm(len(both), generator=generator)]
