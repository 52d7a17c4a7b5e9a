"""The benchmark of incremental object detection: data, training and evaluation of a run's tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elign.lab.data.base import data_dir
from elign.lab.data.scenario import Memory
from elign.lab.detection.average_precision import Collected, coco_metadata, coco_metric, score_methods
from elign.lab.detection.c4_networks import settings_of
from elign.lab.detection.config import TREE, DetectionConfig, DetectorTrainConfig
from elign.lab.detection.data import (
    DETECTION_DATASETS,
    Batches,
    DetectionData,
    DetectionSplit,
    Targets,
    fetch,
    task_rows,
)
from elign.lab.detection.detector import make_detector
from elign.lab.detection.learners import DETECTION_LEARNERS, DetectionLearner, Stage
from elign.lab.detection.region_methods import RegionMethods, predict_images, region_pairs
from elign.lab.detection.unknown_objects import unknown_metadata
from elign.lab.environment import derive_seed
from elign.lab.evaluation.metrics import Row
from elign.lab.runs.experiment import BENCHMARKS, DETECTION, Evaluation, Experiment
from elign.lab.storage import read_tensors, write_tensors
from elign.lab.training.device import Precision
from elign.lab.training.trainer import (
    Callback,
    Resume,
    Step,
    StepResult,
    TaskTraining,
    Trainer,
    rate_share,
    stochastic_descent,
)
from elign.utils.errors import OptionError

_PICTURES = "pictures.safetensors"
_SHOWN = ("base", "eli/oracle", "eli/by-prediction")  # before alignment, as in the paper, and without test labels
_KEPT = 6
_CALIBRATION = 256  # training images that show what known and unknown objects look like (ORE)


@BENCHMARKS.register(DETECTION)
class DetectionExperiment(Experiment):
    """Class-incremental object detection: `elign detect run`."""

    name = DETECTION
    command = "elign detect run"
    version = comparable_from = 2
    tree = TREE

    config: DetectionConfig
    data: DetectionData

    def __init__(self, config: DetectionConfig, precision: Precision, *, devices: int | None = None) -> None:
        if config.evaluation.coco:
            coco_metric()  # raises, before anything is written, if a package is missing
        super().__init__(config, precision, devices=devices)
        balanced = any(stage.data == "balanced" for stage in self.learner().stages(1))
        if balanced and config.memory.per_class is None:
            raise OptionError(
                f"learner {config.learner.name} ends with fine-tuning on kept images: give memory.per_class=10, or "
                "learner.fine_tune_share=0"
            )

    @classmethod
    def first_task(cls, config: DetectionConfig) -> dict[str, Any]:
        """Return what decides the detector after the first task: learners that start alike can share it."""
        plain = DETECTION_LEARNERS[config.learner.name].plain_first_task
        learner = "plain" if plain else {"name": config.learner.name, **config.learner.options}
        return super().first_task(config) | {"learner": learner}

    @classmethod
    def missing_data(cls, config: DetectionConfig) -> str | None:
        """Look for data sets of the data folder; others are made, or in a folder of the user's."""
        source, root = DETECTION_DATASETS[config.data.name](config.data.name), data_dir(config.data.data_dir)
        if not source.places or config.data.path is not None or source.find(root):
            return None
        places = " or ".join(str(root / place) for place in source.places)
        return f"the data set {source.name} is not in {places}: put it there"

    def open_data(self) -> DetectionData:
        """Open the data of the configuration."""
        source = DETECTION_DATASETS[self.config.data.name](self.config.data.name)
        return source.open(self.config.data, seed=self.config.seed)

    def learner(self) -> DetectionLearner:
        """Return an untrained learner."""
        settings, model = self.config.learner, self.config.model
        given = {name: value for name, value in model if name not in ("name", "weights") and value is not None}
        if (proposals := given.pop("proposals", None)) is not None:
            usual = settings_of(model.name)
            for name in ("proposals_train", "proposals_test"):
                given[name] = (max(proposals, getattr(usual, name)[0]), proposals)
        # Frozen statistics of a backbone that was never trained would be those of no data at all.
        given["normalisation"] = "group" if model.weights is None else "frozen"
        kind = DETECTION_LEARNERS[settings.name]
        make = partial(make_detector, model.name, weights=model.weights, unknown=kind.needs_unknown, **given)
        return kind(make, options=settings.options, seed=derive_seed(self.config.seed, "learner") % 2**31)

    def memory(self) -> Memory:
        """Return a memory of images with nothing in it."""
        seed = derive_seed(self.config.seed, "exemplars")
        return Memory(per_class=self.config.memory.per_class, selection="random", seed=seed)

    def rows(self, classes: range) -> Tensor:
        """Return the places of the training images with an object of these classes."""
        return task_rows(self.data.train, classes)

    def train(
        self, learner: DetectionLearner, memory: Memory, number: int, *, callback: Callback, resume: Resume | None
    ) -> None:
        """Train a learner, which has grown for it, in one task."""
        training = DetectorTraining(self, learner, memory, number)
        trainer = Trainer(
            learner, training, self.config.train, engine=self.engine, callback=callback, optimizer=make_optimizer
        )
        trainer.fit(resume)

    def update_memory(self, learner: DetectionLearner | None, memory: Memory, number: int) -> None:
        """Keep images of the classes that a task brings: by chance, so that it can be done before or after it."""
        classes = self.protocol.tasks[number]
        if not memory.per_class_count(classes.stop):
            return
        for label in classes:
            rows = self.rows(range(label, label + 1))
            memory.add(label, rows, torch.zeros(len(rows), 1))  # latents are for herding

    def images(self, split: DetectionSplit, rows: Tensor, classes: range) -> Batches:
        """Yield images of a split as a detector takes them, with the boxes of some classes."""
        for some in torch.split(rows, self.config.train.eval_batch_size):
            yield fetch(split, some, classes, device=self.engine.device)

    def test_images(self) -> Iterator[list[Tensor]]:
        """Yield all test images, without their objects."""
        split = self.data.test
        for images, _ in self.images(split, torch.arange(len(split)), range(0)):
            yield images

    def extract(
        self, learner: DetectionLearner, memory: Memory, number: int, evaluation: Evaluation
    ) -> tuple[tuple[Tensor, Tensor] | None, float]:
        """Extract the latents of the task's regions under both detectors, or read them; none at the first task."""
        start = time.perf_counter()
        if learner.teacher is None:
            return None, 0.0
        file = evaluation.target.task_file(number, "pairs")
        settings, classes = evaluation.aligner, self.protocol.tasks[number]
        if not file.is_file():
            previous, current = region_pairs(
                learner.teacher,
                learner.model,
                self.images(self.data.train, self.rows(classes), classes),
                regions=settings.regions,
                shared_backbone=settings.shared_backbone,
                seed=derive_seed(self.config.seed, f"pairs of task {number}"),
                per_image=settings.per_image,
            )
            write_tensors(file, {"previous": previous, "current": current})
        tensors, _ = read_tensors(file, expect=["previous", "current"])
        return (tensors["previous"], tensors["current"]), time.perf_counter() - start

    def evaluate(
        self,
        learner: DetectionLearner,
        latents: tuple[tuple[Tensor, Tensor] | None, float],
        number: int,
        evaluation: Evaluation,
    ) -> tuple[list[Row], dict[str, Any]]:
        """Fit the aligners of a task, write them and some pictures, and apply all methods."""
        start, target, counted = time.perf_counter(), evaluation.target, self.config.evaluation
        pairs, extracted = latents
        methods, seconds = None, {}
        old_classes, seen = self.protocol.tasks[number].start, range(self.protocol.tasks[number].stop)
        if pairs is not None:
            seed = derive_seed(self.config.seed, f"evaluation of task {number + 1}")
            methods = RegionMethods(*pairs, old_classes=old_classes, settings=evaluation.aligner, seed=seed)
            seconds = {"extract": extracted, "fit": time.perf_counter() - start}
            start += seconds["fit"]
        objects = [each.of(seen) for each in self.data.test.objects]
        collected = predict_images(
            learner.model, self.test_images(), methods, objects=objects, previous=learner.teacher
        )
        sizes = self.protocol.sizes[: number + 1]
        rows, precisions = score_methods(
            collected, objects, task_sizes=sizes, threshold=counted.overlap, method=counted.method
        )
        found: dict[str, Any] = {"average_precision": precisions}
        if counted.coco:
            found |= coco_metadata(collected, objects, classes=len(seen))
        if learner.model.unknown_label is not None and len(seen) < len(self.data.classes):
            found |= self._unknown_metadata(learner, number)
        if methods is not None:
            for name, aligner in methods.aligners.items():
                aligner.save(target.aligner_file(number, name))
            keep_pictures(target.task(number), self.data.test, collected, old_classes=old_classes)
        seconds["methods"] = time.perf_counter() - start
        return rows, {"seconds": seconds, "drift": {}, **found}

    def _unknown_metadata(self, learner: DetectionLearner, number: int) -> dict[str, Any]:
        """Compare known and unknown objects on images with the boxes of all classes, those still to come included."""
        train, test, classes = self.data.train, self.data.test, range(len(self.data.classes))
        seed = derive_seed(self.config.seed, f"unknown objects of task {number + 1}")
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:_CALIBRATION]
        calibration = self.images(train, drawn, classes)
        return unknown_metadata(learner.model, calibration, self.images(test, torch.arange(len(test)), classes))


def keep_pictures(folder: Path, split: DetectionSplit, collected: Mapping[str, Collected], *, old_classes: int) -> None:
    """Write the first few test images that show an object of the first `old_classes`, with what was found on them."""
    rows = [row for row, objects in enumerate(split.objects) if len(objects.of(range(old_classes)))][:_KEPT]
    tensors: dict[str, Tensor] = {}
    for place, row in enumerate(rows):
        tensors[f"{place}.image"] = split.image(row).contiguous()
        tensors |= {f"{place}.{part}": value for part, value in vars(split.objects[row]).items()}
        for name in filter(collected.__contains__, _SHOWN):
            found = vars(collected[name].detections[row])
            tensors |= {f"{place}.{name}.{part}": value.contiguous() for part, value in found.items()}
    write_tensors(folder / _PICTURES, tensors, {"count": len(rows)})


def make_optimizer(parameters: list[nn.Parameter], config: DetectorTrainConfig) -> torch.optim.Optimizer:
    """Make the optimiser that the configuration names."""
    if config.optimizer == "sgd":
        return stochastic_descent(parameters, config)
    return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)


class Batch(NamedTuple):
    """Some training images, and the seed of what is drawn at random in their losses."""

    rows: Tensor
    images: list[Tensor]
    targets: Targets
    seed: int


class StageEpoch(NamedTuple):
    """An epoch of a task: which stage it belongs to, and where in it."""

    stage: Stage
    epoch: int
    epochs: int


class DetectorTraining(TaskTraining):
    """A task's images and boxes, an epoch at a time.

    The epochs of the configuration are those of the task's own images. A stage has its share of their steps, in whole
    epochs of its images, at least one.
    """

    def __init__(self, experiment: DetectionExperiment, learner: DetectionLearner, memory: Memory, number: int) -> None:
        self._experiment, self._learner, self._config = experiment, learner, experiment.config.train
        self.task = number
        classes = experiment.protocol.tasks[number]
        self._seen = range(classes.stop)
        self._classes = self._seen if learner.sees_all_data else classes
        self._rows = {"task": experiment.rows(self._classes), "balanced": _balanced(experiment, memory, number)}
        steps = (self._config.epochs if number else self._config.first_epochs) * self._steps("task")
        self._plan: list[StageEpoch] = []
        for stage in learner.stages(number):
            count = max(1, round(stage.share * steps / self._steps(stage.data)))
            self._plan += [StageEpoch(stage, epoch, count) for epoch in range(count)]
        self.epochs = len(self._plan)
        self._stage: Stage | None = None

    def _steps(self, data: str) -> int:
        return max(1, -(-len(self._rows[data]) // self._config.batch_size))

    def batches(self, epoch: int) -> tuple[int, Iterator[Batch]]:
        """Return all images of a stage once, in an order of this epoch."""
        stage = self._plan[epoch].stage
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

    def _fetch(self, rows: Tensor, classes: range, seed: int | None = None) -> tuple[list[Tensor], Targets]:
        run = self._experiment
        difficult, device = run.config.data.difficult, run.engine.device
        return fetch(run.data.train, rows, classes, seed=seed, difficult=difficult, device=device)

    def rate(self, epoch: int, within: float) -> float:
        """Return the rate by the schedule of the epoch's stage; a stage starts with a warm-up, if there is one."""
        stage, epoch, epochs = self._plan[epoch]
        share = stage.rate * rate_share(self._config, epoch, within, epochs=epochs)
        done = (epoch + within) * self._steps(stage.data) + 1
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
        stage, epoch, _ = self._plan[step.epoch]
        number = epoch * self._steps(stage.data) + step.step
        with self._seeded(batch):
            of_seen = partial(self._fetch, classes=self._seen)
            self._learner.after_step(number, batch.rows, batch.targets, of_seen, rate)

    @contextmanager
    def _seeded(self, batch: Batch) -> Iterator[None]:
        """Draw random numbers from the batch's seed, without a trace outside."""
        device = self._experiment.engine.device
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
