"""What the benches of all kinds of runs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from elign.lab.data.protocol import Protocol
from elign.lab.experiments.engine import Engine
from elign.lab.experiments.run_sections import TrainConfig
from elign.lab.experiments.speed import Speed
from elign.lab.seeds import derive_seed
from elign.utils.errors import OptionError


@dataclass(frozen=True, eq=False)
class BaseBench:
    """Everything that a run needs, made from its configuration.

    Args:
        config: The configuration.
        data: The dataset, its classes in the order of arrival.
        protocol: How they come in tasks.
        engine: Where and how numbers are computed.
    """

    several_processes: ClassVar[bool] = False
    """Whether the work can be shared by several processes."""

    config: Any
    data: Any
    protocol: Protocol
    engine: Engine

    def __post_init__(self) -> None:
        processes, batch = self.engine.processes, self.config.train.batch_size
        if processes > 1 and not self.several_processes:
            raise OptionError(f"this kind of run is done by one process, not by {processes}: start it without torchrun")
        if batch % processes:
            raise OptionError(f"train.batch_size={batch} must be a multiple of the number of processes, {processes}")

    def common(self, learner: Any) -> dict[str, Any]:
        """What every process has one of, by name: see `Crew`."""
        return {}

    def grow(self, learner: Any, number: int) -> None:
        """Make the learner ready for a task; what is drawn at random for it depends on the run's seed and the task."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.config.seed, f"new weights of task {number}"))
            learner.grow(len(self.protocol.tasks[number]))
        self.engine.place(learner)


def make_engine(train: TrainConfig, speed: Speed) -> Engine:
    """The engine that a configuration asks for, with the way of training that was chosen."""
    return Engine(
        accelerator=train.accelerator,
        devices=train.devices,
        precision=speed.precision,
        channels_last=speed.channels_last,
    )
