"""How a detector is taught one task: the course of the loop in `elign.lab.experiments.loop` for images and boxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elign.lab.data.memory import Memory
from elign.lab.detection.data.tasks import fetch
from elign.lab.detection.experiments.bench import DetectionBench
from elign.lab.detection.experiments.sections import DetectorTrainConfig
from elign.lab.detection.learners import DetectionLearner, Stage, Targets
from elign.lab.experiments.loop import Place, Result, Watch, stochastic_descent, teach_course
from elign.lab.experiments.schedule import rate_share
from elign.lab.seeds import derive_seed


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


def teach_task(
    bench: DetectionBench,
    learner: DetectionLearner,
    memory: Memory,
    number: int,
    *,
    watch: Watch,
    resume: tuple[Place, Mapping[str, Tensor]] | None,
) -> None:
    """Train a learner, which has grown for it, in one task."""
    course = Course(bench, learner, memory, number)
    teach_course(
        learner, course, bench.config.train, engine=bench.engine, watch=watch, resume=resume, optimizer=make_optimizer
    )


def make_optimizer(parameters: list[nn.Parameter], config: DetectorTrainConfig) -> torch.optim.Optimizer:
    """The optimiser that the configuration names."""
    if config.optimizer == "sgd":
        return stochastic_descent(parameters, config)
    return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)


class Course:
    """A task's images and boxes, an epoch at a time.

    The epochs of the configuration are those of the task's own images. A stage has its share of their steps, in whole
    epochs of its images, at least one.

    Args:
        bench: The run.
        learner: The learner.
        memory: What is kept of earlier tasks.
        number: Of the task.
    """

    def __init__(self, bench: DetectionBench, learner: DetectionLearner, memory: Memory, number: int) -> None:
        self._bench, self._learner = bench, learner
        self._config, self._engine = bench.config.train, bench.engine
        self.task = number
        classes = bench.protocol.tasks[number]
        self._seen = range(classes.stop)
        self._classes = self._seen if learner.sees_all_data else classes
        self._rows = {"task": bench.rows(self._classes), "balanced": _balanced(bench, memory, number)}
        self._parts = self._plan(learner.stages(number))
        self.epochs = len(self._parts)
        self._begun: Stage | None = None

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

    def begin_epoch(self, epoch: int) -> tuple[int, Iterator[Batch]]:
        """All images of a stage once, in an order of this epoch."""
        stage = self._parts[epoch].stage
        if self._begun != stage:
            self._learner.begin_stage(stage)
            self._begun = stage
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
        split, device = self._bench.data.train, self._engine.device
        images, targets = fetch(split, rows, classes, seed=seed, difficult=self._bench.config.data.difficult)
        return (
            [image.to(device) for image in images],
            [{name: value.to(device) for name, value in target.items()} for target in targets],
        )

    def rate(self, epoch: int, within: float) -> float:
        """By the schedule of the epoch's stage; a stage begins with a warm-up, if there is one."""
        part = self._parts[epoch]
        share = part.stage.rate * rate_share(self._config, part.epoch, within, epochs=part.epochs)
        steps = self._steps(part.stage.data)
        done = (part.epoch + within) * steps + 1
        return share * min(1.0, done / self._config.warm_up) if self._config.warm_up else share

    def loss(self, module: Any, batch: Batch) -> Result:
        """The learner's loss. What it draws at random, regions say, depends on the step alone and not on the past."""
        with self._drawing(batch):
            terms = module(batch.images, batch.targets)
        return Result(terms, len(batch.images))

    def before_step(self) -> None:
        """What the learner does with the gradients."""
        self._learner.before_step()

    def after_step(self, place: Place, batch: Batch, rate: float) -> None:
        """What the learner does after a step."""
        part = self._parts[place.epoch]
        step = part.epoch * self._steps(part.stage.data) + place.step

        def of_seen(rows: Tensor) -> tuple[list[Tensor], Targets]:
            return self._fetch(rows, self._seen, seed=None)

        with self._drawing(batch):
            self._learner.after_step(step, batch.rows, batch.targets, of_seen, rate)

    def end_epoch(self, epoch: int) -> None:
        """Nothing is done here."""

    def _drawing(self, batch: Batch) -> Any:
        return _Drawing(batch.seed, self._engine.device)

    def _seed(self, purpose: str, epoch: int) -> int:
        return derive_seed(self._bench.config.seed, f"{purpose} of task {self.task} epoch {epoch}")


class _Drawing:
    """Random numbers from a seed; outside of it they go on as if nothing had been drawn."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        devices = [device] if device.type == "cuda" else []
        self._fork = torch.random.fork_rng(devices=devices)

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: Any) -> None:
        self._fork.__exit__(*error)


def _balanced(bench: DetectionBench, memory: Memory, number: int) -> Tensor:
    """Images that are kept of all classes seen, those of this task included; each once."""
    kept = bench.memory()
    kept.restore(memory.ranked)
    bench.remember(kept, number)
    rows: Tensor = torch.unique(kept.indices(bench.protocol.tasks[number].stop))
    return rows
