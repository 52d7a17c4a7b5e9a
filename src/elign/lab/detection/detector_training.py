"""The training of a detector in one task: stages, batches, rates and losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from elign.lab.data.memory import Memory
from elign.lab.detection.data.base import fetch
from elign.lab.detection.learners import DetectionLearner, Stage, Targets
from elign.lab.detection.settings import DetectorTrainConfig
from elign.lab.environment import derive_seed
from elign.lab.training.schedule import rate_share
from elign.lab.training.trainer import Step, StepResult, TaskTraining, stochastic_descent

if TYPE_CHECKING:
    from elign.lab.detection.detection_experiment import DetectionExperiment


class Batch(NamedTuple):
    """Some training images."""

    rows: Tensor
    images: list[Tensor]
    targets: Targets
    seed: int
    """Of what is drawn at random in the losses."""


class Part(NamedTuple):
    """An epoch of a task: which stage it belongs to, and where in it."""

    stage: Stage
    epoch: int
    epochs: int


def make_optimizer(parameters: list[nn.Parameter], config: DetectorTrainConfig) -> torch.optim.Optimizer:
    """Make the optimiser that the configuration names."""
    if config.optimizer == "sgd":
        return stochastic_descent(parameters, config)
    return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)


class DetectorTraining(TaskTraining):
    """A task's images and boxes, an epoch at a time.

    The epochs of the configuration are those of the task's own images. A stage has its share of their steps, in whole
    epochs of its images, at least one.

    Args:
        experiment: The run.
        learner: The learner.
        memory: What is kept of earlier tasks.
        number: Of the task.
    """

    def __init__(self, experiment: DetectionExperiment, learner: DetectionLearner, memory: Memory, number: int) -> None:
        self._experiment, self._learner = experiment, learner
        self._config, self._engine = experiment.config.train, experiment.engine
        self.task = number
        classes = experiment.protocol.tasks[number]
        self._seen = range(classes.stop)
        self._classes = self._seen if learner.sees_all_data else classes
        self._rows = {"task": experiment.rows(self._classes), "balanced": _balanced(experiment, memory, number)}
        self._parts = self._plan(learner.stages(number))
        self.epochs = len(self._parts)
        self._stage: Stage | None = None

    def _plan(self, stages: tuple[Stage, ...]) -> list[Part]:
        epochs = self._config.first_epochs if self.task == 0 else self._config.epochs
        steps = epochs * self._steps("task")
        parts: list[Part] = []
        for stage in stages:
            count = max(1, round(stage.share * steps / self._steps(stage.data)))
            parts += [Part(stage, epoch, count) for epoch in range(count)]
        return parts

    def _steps(self, data: str) -> int:
        return max(1, -(-len(self._rows[data]) // self._config.batch_size))

    def batches(self, epoch: int) -> tuple[int, Iterator[Batch]]:
        """Return all images of a stage once, in an order of this epoch."""
        stage = self._parts[epoch].stage
        if self._stage != stage:
            self._learner.start_stage(stage)
            self._stage = stage
        rows = self._rows[stage.data]
        generator = torch.Generator().manual_seed(self._seed("order", epoch))
        order = rows[torch.randperm(len(rows), generator=generator)]
        return self._steps(stage.data), self._batches(order, stage, epoch)

    def _batches(self, order: Tensor, stage: Stage, epoch: int) -> Iterator[Batch]:
        classes = self._classes if stage.data == "task" else self._seen
        for step, rows in enumerate(torch.split(order, self._config.batch_size)):
            images, targets = self._fetch(rows, classes, seed=self._seed("augmentation", epoch))
            yield Batch(rows, images, targets, self._seed(f"sampling in step {step}", epoch))

    def _fetch(self, rows: Tensor, classes: range, seed: int | None) -> tuple[list[Tensor], Targets]:
        split, device = self._experiment.data.train, self._engine.device
        images, targets = fetch(split, rows, classes, seed=seed, difficult=self._experiment.config.data.difficult)
        return (
            [image.to(device) for image in images],
            [{name: value.to(device) for name, value in target.items()} for target in targets],
        )

    def rate(self, epoch: int, within: float) -> float:
        """Return the rate by the schedule of the epoch's stage; a stage starts with a warm-up, if there is one."""
        part = self._parts[epoch]
        share = part.stage.rate * rate_share(self._config, part.epoch, within, epochs=part.epochs)
        steps = self._steps(part.stage.data)
        done = (part.epoch + within) * steps + 1
        return share * min(1.0, done / self._config.warm_up) if self._config.warm_up else share

    def loss(self, module: Any, batch: Batch) -> StepResult:
        """Return the learner's loss. What it draws at random depends on the step alone and not on the past."""
        with self._seeded(batch):
            terms = module(batch.images, batch.targets)
        return StepResult(terms, len(batch.images))

    def before_step(self) -> None:
        """Let the learner change the gradients."""
        self._learner.before_step()

    def after_step(self, step: Step, batch: Batch, rate: float) -> None:
        """Let the learner follow up on a step."""
        part = self._parts[step.epoch]
        number = part.epoch * self._steps(part.stage.data) + step.step

        def of_seen(rows: Tensor) -> tuple[list[Tensor], Targets]:
            return self._fetch(rows, self._seen, seed=None)

        with self._seeded(batch):
            self._learner.after_step(number, batch.rows, batch.targets, of_seen, rate)

    @contextmanager
    def _seeded(self, batch: Batch) -> Iterator[None]:
        """Draw random numbers from the batch's seed, without a trace outside."""
        device = self._engine.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(batch.seed)
            yield

    def _seed(self, purpose: str, epoch: int) -> int:
        return derive_seed(self._experiment.config.seed, f"{purpose} of task {self.task} epoch {epoch}")


def _balanced(experiment: DetectionExperiment, memory: Memory, number: int) -> Tensor:
    """Return the images that are kept of all classes seen, those of this task included; each once."""
    kept = experiment.memory()
    kept.restore(memory.ranked)
    experiment.update_memory(None, kept, number)
    rows: Tensor = torch.unique(kept.indices(experiment.protocol.tasks[number].stop))
    return rows
