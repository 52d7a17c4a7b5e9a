"""Benchmarks: how the tasks of a run are made from its configuration, trained and evaluated."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from elign.lab.config.composition import ConfigTree
from elign.lab.config.schema import TREE, AlignerConfig, RunConfig
from elign.lab.data.base import Dataset, Split, catalogue, open_dataset
from elign.lab.data.scenario import Memory, Protocol, make_protocol
from elign.lab.environment import derive_seed
from elign.lab.evaluation.features import TaskLatents, latents_of, pairs_of
from elign.lab.evaluation.metrics import Row
from elign.lab.evaluation.task_evaluation import evaluate_task, read_statistics, write_statistics
from elign.lab.learners import Learner, make_learner
from elign.lab.models import make_backbone
from elign.lab.models.classifier import Classifier
from elign.lab.registry import Registry
from elign.lab.runs.run_dir import ARCHIVED, RunDir, RunError, resume_command
from elign.lab.storage import read_tensors, write_tensors
from elign.lab.training.device import Engine, Precision
from elign.lab.training.trainer import Callback, ClassifierTraining, Resume, Task, Trainer
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.errors import OptionError

CLASSIFICATION, DETECTION = "classification", "detection"


class Evaluation(NamedTuple):
    """Which models are evaluated with which aligner."""

    run: RunDir
    """Has the models and latents."""
    target: RunDir
    """Gets the files: the run itself, or a folder below it."""
    aligner: Any
    """Settings of the aligners: the run's own, or others."""


class Experiment(ABC):
    """Everything that a run needs. Each benchmark is a subclass in `BENCHMARKS`.

    `devices` replaces the number of the configuration.

    Raises:
        DataError: The data are not there, or their classes do not split into these tasks.
        OptionError: The learner, the model or the device does not take these options.
    """

    name: ClassVar[str]
    command: ClassVar[str]
    """What the user types for a new run."""
    version: ClassVar[int]
    """Of its methods. Add one when a method is added, removed or measures something else: runs are evaluated again."""
    comparable_from: ClassVar[int]
    """The first version whose rows mean the same as today's, even if methods are missing."""
    several_processes: ClassVar[bool] = False
    knows_tasks: ClassVar[bool] = False
    """Whether every method knows which task a test image is of."""
    tree: ClassVar[ConfigTree[Any]]
    """Its settings."""

    config: Any
    data: Any

    def __init__(self, config: Any, precision: Precision, *, devices: int | None = None) -> None:
        # The number of threads decides how sums are split, hence their rounding.
        torch.set_num_threads(config.train.threads)
        self.config = config
        self.data = self.open_data()
        self.protocol: Protocol = protocol_of(config, len(self.data.classes))
        self.engine = Engine(
            accelerator=config.train.accelerator, devices=devices or config.train.devices, precision=precision
        )
        processes, batch_size = self.engine.processes, config.train.batch_size
        if processes > 1 and not self.several_processes:
            raise OptionError(f"this benchmark runs in one process, not in {processes}: start it without torchrun")
        if batch_size % processes:
            raise OptionError(f"train.batch_size={batch_size} must be a multiple of the {processes} processes")
        # A model or learner that cannot be made is found now, before a folder is made.
        with torch.random.fork_rng(devices=[]):
            self.learner().grow(self.protocol.sizes[0])

    @classmethod
    def compose(cls, words: Sequence[str]) -> Any:
        """Make the configuration that a user asks for."""
        return cls.tree.compose(words)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """Make the configuration that `describe` was given, by this or an earlier version."""
        return cls.tree.from_dict(values)

    @classmethod
    def with_aligner(cls, config: Any, words: Sequence[str]) -> Any:
        """Change the aligner of a run that was trained."""
        return cls.tree.with_aligner(config, words)

    @classmethod
    def first_task(cls, config: Any) -> dict[str, Any]:
        """Return what decides the model after the first task but its classes and precision, by key."""
        first: dict[str, Any] = config.first_task()
        return first

    @classmethod
    def missing_data(cls, config: Any) -> str | None:
        """Say where the data are looked for if they are not there; None if they are, or are made or downloaded."""
        return None

    @abstractmethod
    def open_data(self) -> Any:
        """Return the data set, its classes in the order of arrival."""

    @abstractmethod
    def learner(self) -> Any:
        """Return an untrained learner."""

    @abstractmethod
    def memory(self) -> Memory:
        """Return an empty memory."""

    def grow(self, learner: Any, number: int) -> None:
        """Make the learner ready for a task; its new weights depend on the run's seed and the task."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.config.seed, f"new weights of task {number}"))
            learner.grow(len(self.protocol.tasks[number]))
        self.engine.place(learner)

    @abstractmethod
    def train(self, learner: Any, memory: Memory, number: int, *, callback: Callback, resume: Resume | None) -> None:
        """Train a learner, which has grown for it, in one task."""

    @abstractmethod
    def update_memory(self, learner: Any, memory: Memory, number: int) -> None:
        """Choose the exemplars of the classes that a task brought, after it was learned."""

    def is_complete(self, number: int, evaluation: Evaluation) -> bool:
        """Return whether all files of an evaluated task but its results are there."""
        return True

    @abstractmethod
    def extract(self, learner: Any, memory: Memory, number: int, evaluation: Evaluation) -> Any:
        """Extract what `evaluate` needs of the models; every process has its share of the images."""

    @abstractmethod
    def evaluate(
        self, learner: Any, latents: Any, number: int, evaluation: Evaluation
    ) -> tuple[list[Row], dict[str, Any]]:
        """Fit the aligners of a task, write them, and apply all methods; in the first process only.

        `latents` is what `extract` returned. Returns the rows, and metadata of the task with `seconds` and `drift`.
        """


BENCHMARKS: Registry[type[Experiment]] = Registry(
    "elign.lab.detection", "benchmark", also=("elign.lab.paper.two_tasks",)
)
"""Benchmarks by name."""


def benchmark_of(metadata: Mapping[str, Any]) -> type[Experiment]:
    """Return the benchmark of a run, from its metadata.

    Raises:
        RunError: A newer elign made the run.
    """
    try:
        return BENCHMARKS[metadata["benchmark"]]
    except OptionError as error:
        raise RunError(f"a newer elign made this run: upgrade this one. {error}") from error


def protocol_of(config: Any, classes: int) -> Protocol:
    """Split so many classes into the tasks that a configuration asks for."""
    asked = config.protocol
    return make_protocol(asked.name, classes, first=asked.first, increment=asked.increment)


def evaluated_by(
    tasks: Sequence[Mapping[str, Any]], benchmark: type[Experiment]
) -> Literal["comparable", "older", "newer"]:
    """Compare the evaluation version of tasks, given by their metadata, with the methods of this elign."""
    versions = [task["evaluation_version"] for task in tasks]
    if any(version > benchmark.version for version in versions):
        return "newer"
    return "older" if any(version < benchmark.comparable_from for version in versions) else "comparable"


def version_note(folder: RunDir, metadata: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a sentence about a run whose methods do not compare with those of this elign, None if they do."""
    found = evaluated_by(tasks, benchmark_of(metadata))
    if found == "comparable":
        return None
    about = f"{folder.path} was evaluated by {'a newer' if found == 'newer' else 'an older'} elign"
    if found == "newer":
        return f"{about}, whose methods do not compare with these: upgrade elign"
    if metadata.get(ARCHIVED):
        return f"{about}, whose methods do not compare with today's, and has no models to evaluate again"
    finished = metadata.get("evaluation") is not None or folder.tasks() == len(metadata["sizes"])
    return (
        f"{about}, whose methods do not compare with today's; '{resume_command(folder, metadata)}' evaluates it again, "
        f"and {'trains nothing' if finished else 'resumes it'}"
    )


@BENCHMARKS.register(CLASSIFICATION)
class Classification(Experiment):
    """Class-incremental classification: `elign run`."""

    name = CLASSIFICATION
    command = "elign run"
    version = 2
    comparable_from = 1
    several_processes = True
    tree = TREE

    config: RunConfig
    data: Dataset

    @classmethod
    def missing_data(cls, config: RunConfig) -> str | None:
        """Look for the data set among those of the bench."""
        entry = next((entry for entry in catalogue(config.data.data_dir) if entry.name == config.data.name), None)
        if entry is None or entry.status != "missing" or config.data.path is not None:
            return None
        return f"the data set {entry.name} is not in {' or '.join(map(str, entry.places))}: put it there"

    def open_data(self) -> Dataset:
        """Open the data set of the configuration."""
        settings = dict(self.config.data)
        return open_dataset(order_seed=settings.pop("order"), **settings)

    def learner(self) -> Learner:
        """Return an untrained learner."""
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
        """Return an empty memory."""
        return Memory(**dict(self.config.memory), seed=derive_seed(self.config.seed, "exemplars"))

    def train(
        self, learner: Learner, memory: Memory, number: int, *, callback: Callback, resume: Resume | None
    ) -> None:
        """Imprint the new classes where the learner does so, then train."""
        config, split = self.config, self.data.train
        task = self.task(number, memory, all_data=learner.sees_all_data)
        if number and learner.imprints:
            learner.imprint(self._latents(learner.model, split, task.new), split.labels[task.new])
        training = ClassifierTraining(learner, task, split, config.train, engine=self.engine, seed=config.seed)
        Trainer(learner, training, config.train, engine=self.engine, callback=callback).fit(resume)

    def task(self, number: int, memory: Memory, *, all_data: bool) -> Task:
        """Return the training images of a task."""
        classes = self.protocol.tasks[number]
        rehearsed = memory.indices(max(classes.start, 1))
        if all_data:
            rehearsed = torch.nonzero(self.data.train.labels < classes.start).flatten()
        return Task(number, classes, self.new_rows(number), rehearsed)

    def new_rows(self, number: int) -> Tensor:
        """Return the indices of the training images of the classes that a task brings."""
        classes, labels = self.protocol.tasks[number], self.data.train.labels
        return torch.nonzero((labels >= classes.start) & (labels < classes.stop)).flatten()

    def update_memory(self, learner: Learner, memory: Memory, number: int) -> None:
        """Choose the exemplars of the classes that a task brought."""
        classes, rows = self.protocol.tasks[number], self.new_rows(number)
        if not memory.per_class_count(classes.stop):
            return
        latents, labels = self._latents(learner.model, self.data.train, rows), self.data.train.labels[rows]
        for label in classes:
            memory.add(label, rows[labels == label], latents[labels == label])

    def is_complete(self, number: int, evaluation: Evaluation) -> bool:
        """Return whether latents, prototypes and statistics are there."""
        run, target, _ = evaluation
        made = [target.task_file(number, name) for name in ("prototypes", "statistics")]
        return all(file.is_file() for file in (run.task_file(number, "latents"), *made))

    def extract(
        self, learner: Learner, memory: Memory, number: int, evaluation: Evaluation
    ) -> tuple[TaskLatents | None, float]:
        """Extract the latents of a task, or read them; return them in the first process, and how long it took."""
        start, engine = time.perf_counter(), self.engine
        run, target, aligner = evaluation
        stored = run.task_file(number, "latents")
        if engine.of_first(stored.is_file):
            latents = TaskLatents.load(stored) if engine.is_main else None
        else:
            latents = self._extract(learner, memory, number)
            if engine.is_main:
                latents.save(stored)
        if number and engine.of_first(lambda: latents is not None and not len(latents.new_previous)):
            # Files of version 0.1 lack the previous model's latents of labelled images.
            missing = self._previous_latents(learner, memory, number)
            if latents is not None:
                latents = dataclasses.replace(latents, **missing)
                latents.save(stored)
        own = self.config.aligner
        if number and (aligner.passes, aligner.mixup) != (own.passes, own.mixup):
            # Another augmentation needs other pairs.
            file = target.task_file(number, "pairs")
            if not engine.of_first(file.is_file):
                before, after = self._pairs(learner, self.new_rows(number), number, aligner)
                if engine.is_main:
                    write_tensors(file, {"previous": before, "current": after})
            if latents is not None:
                pairs, _ = read_tensors(file, expect=["previous", "current"])
                latents = dataclasses.replace(latents, pairs_previous=pairs["previous"], pairs_current=pairs["current"])
        if number and aligner.rivals and aligner.space == "latent":
            self._extract_oracle(learner, number, target.task_file(number, "oracle"))
        return latents, time.perf_counter() - start

    def _extract_oracle(self, learner: Learner, number: int, file: Path) -> None:
        """Write the statistics of all old training images under the current model, for an oracle."""
        if self.engine.of_first(file.is_file):
            return
        labels = self.data.train.labels
        rows = torch.nonzero(labels < self.protocol.tasks[number].start).flatten()
        latents = self._latents(learner.model, self.data.train, rows)
        if self.engine.is_main:
            write_statistics(file, {"oracle": ClassStatistics().update(latents, labels[rows])})

    def _extract(self, learner: Learner, memory: Memory, number: int) -> TaskLatents:
        classes, train, test = self.protocol.tasks[number], self.data.train, self.data.test
        new, exemplars = self.new_rows(number), memory.indices(classes.stop)
        # Class by class, so that the images of earlier tasks come first, in the same order after every task.
        order = torch.argsort(test.labels, stable=True)
        seen = order[test.labels[order] < classes.stop]
        none = torch.empty(0, learner.model.backbone.latent_dim)
        pairs = self._pairs(learner, new, number, self.config.aligner) if number else (none, none)
        return TaskLatents(
            test=self._latents(learner.model, test, seen),
            test_labels=test.labels[seen],
            new=self._latents(learner.model, train, new),
            new_labels=train.labels[new],
            memory=self._latents(learner.model, train, exemplars),
            memory_labels=train.labels[exemplars],
            pairs_previous=pairs[0],
            pairs_current=pairs[1],
            **self._previous_latents(learner, memory, number),
        )

    def _previous_latents(self, learner: Learner, memory: Memory, number: int) -> dict[str, Tensor]:
        """Extract the latents of labelled images under the previous model; nothing at the first task."""
        if learner.teacher is None:
            return {}
        new, exemplars = self.new_rows(number), memory.indices(self.protocol.tasks[number].stop)
        of = partial(self._latents, learner.teacher, self.data.train)
        return {"new_previous": of(new), "memory_previous": of(exemplars)}

    def _latents(self, model: Classifier, split: Split, rows: Tensor) -> Tensor:
        return latents_of(model, split, rows, engine=self.engine, size=self.config.train.eval_batch_size)

    def _pairs(self, learner: Learner, rows: Tensor, number: int, aligner: AlignerConfig) -> tuple[Tensor, Tensor]:
        assert learner.teacher is not None  # noqa: S101  (for the type checker: there is a task before)
        seed = derive_seed(self.config.seed, f"pairs of task {number}")
        return pairs_of(learner.teacher, learner.model, self.data.train, rows, aligner, engine=self.engine, seed=seed)

    def evaluate(
        self, learner: Learner, latents: tuple[TaskLatents, float], number: int, evaluation: Evaluation
    ) -> tuple[list[Row], dict[str, Any]]:
        """Fit the aligners of a task, write them and the prototypes, and apply all methods."""
        (current, seconds), (run, target, aligner) = latents, evaluation
        found = evaluate_task(
            current,
            learner.model.head.cpu(),
            previous=TaskLatents.load(run.task_file(number - 1, "latents")) if number else None,
            previous_head=learner.teacher.head.cpu() if learner.teacher else None,
            prototypes=read_tensors(target.task_file(number - 1, "prototypes"))[0] if number else {},
            statistics=read_statistics(target.task_file(number - 1, "statistics")) if number else {},
            task_sizes=self.protocol.sizes[: number + 1],
            settings=aligner,
            seed=self.config.seed,
            oracle=read_statistics(file)["oracle"] if (file := target.task_file(number, "oracle")).is_file() else None,
        )
        self.engine.place(learner)
        for name, fitted in (*found.aligners.items(), *found.fitted.items()):
            fitted.save(target.aligner_file(number, name))
        write_tensors(target.task_file(number, "prototypes"), found.prototypes)
        write_statistics(target.task_file(number, "statistics"), found.statistics)
        drift = {name: dataclasses.asdict(drift) for name, drift in found.drift.items()}
        return found.rows, {"seconds": {**found.seconds, "extract": seconds}, "drift": drift}
