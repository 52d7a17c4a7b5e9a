"""What a configuration stands for: its data, tasks, learner, memory and engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elign.lab.data.bench_dataset import BenchDataset, open_dataset
from elign.lab.data.memory import Memory
from elign.lab.experiments.base_bench import BaseBench, make_engine
from elign.lab.experiments.processes import started_by_torchrun
from elign.lab.experiments.run_config import RunConfig
from elign.lab.experiments.speed import Speed, choose_speed
from elign.lab.experiments.training import Task
from elign.lab.learners import Learner, make_learner
from elign.lab.models import make_backbone
from elign.lab.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Bench(BaseBench):
    """Everything that a run needs; see `BaseBench`."""

    several_processes = True

    config: RunConfig
    data: BenchDataset

    def learner(self) -> Learner:
        """A learner that has learned nothing yet."""
        settings = self.config.learner
        return make_learner(
            settings.name,
            partial(make_backbone, self.config.model.name, image_shape=self.data.image_shape),
            head=settings.head,
            freeze_old=settings.freeze_old,
            imprint_new=settings.imprint,
            options=settings.options,
        )

    def memory(self) -> Memory:
        """A memory with nothing in it."""
        settings = self.config.memory
        return Memory(
            budget=settings.budget,
            per_class=settings.per_class,
            selection=settings.selection,
            seed=derive_seed(self.config.seed, "exemplars"),
        )

    def common(self, learner: Learner) -> dict[str, Any]:
        """Models and images: what latents are made of."""
        images = {"train": self.data.train, "test": self.data.test}
        return {"model": learner.model, "teacher": learner.teacher} | images

    def task(self, number: int, memory: Memory, *, all_data: bool) -> Task:
        """What the learner gets to see in a task."""
        classes = self.protocol.tasks[number]
        if all_data:
            rehearsed = torch.nonzero(self.data.train.labels < classes.start).flatten()
        else:
            rehearsed = memory.indices(classes.start) if number else torch.empty(0, dtype=torch.int64)
        return Task(number, classes, self.new_rows(number), rehearsed)

    def new_rows(self, number: int) -> Tensor:
        """Places of the training images of the classes that a task brings."""
        classes, labels = self.protocol.tasks[number], self.data.train.labels
        return torch.nonzero((labels >= classes.start) & (labels < classes.stop)).flatten()

    def test_rows(self, number: int) -> Tensor:
        """Places of the test images of all classes seen after a task, class by class.

        So those of earlier tasks come first, in the same order after every task.
        """
        labels = self.data.test.labels
        order = torch.argsort(labels, stable=True)
        return order[labels[order] < self.protocol.tasks[number].stop]


def first_task(config: RunConfig, classes: int, speed: Speed) -> dict[str, Any]:
    """Everything that decides the model after the first task, by the keys that the user types.

    Two runs whose first tasks are equal can share that model.

    Args:
        config: Of the run.
        classes: How many the first task brings.
        speed: The way of training.
    """
    way = {"train.precision": speed.precision, "train.layout": speed.channels_last}
    return config.first_task() | way | {"classes in the first task": classes}


def open_bench(config: RunConfig, speed: Speed | None = None) -> tuple[Bench, Speed]:
    """Open the data and make the engine.

    Args:
        config: The configuration.
        speed: The way of training to use; None to choose one.

    Returns:
        The bench, and the way of training.

    Raises:
        DataError: The dataset cannot be had, or its classes do not split into these tasks.
        OptionError: The model does not take these images, or the learner not these options.
    """
    train = config.train
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    settings = config.data
    data = open_dataset(
        settings.name,
        path=settings.path,
        data_dir=settings.data_dir,
        order_seed=settings.order,
        limit=settings.limit,
        workers=settings.workers,
        image_size=settings.image_size,
        validation=settings.validation,
    )
    protocol = config.protocol.protocol(len(data.classes))
    make = partial(make_backbone, config.model.name, image_shape=data.image_shape)
    if speed is None:
        speed = choose_speed(
            make,
            data.image_shape,
            measure=_on_cpu(train.accelerator) and started_by_torchrun() is None and train.devices == 1,
            precision=train.precision,
            layout=train.layout,
        )
    engine = make_engine(train, speed)
    bench = Bench(config, data, protocol, engine)
    # A model or learner that cannot be made is found now, before a folder is.
    with torch.random.fork_rng(devices=[]):
        bench.learner().grow(protocol.sizes[0])
    return bench, speed


def _on_cpu(accelerator: str) -> bool:
    return accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
