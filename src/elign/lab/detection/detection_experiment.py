"""The benchmark of incremental object detection: data, training and evaluation of a run's tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elign.lab.data.base import data_dir
from elign.lab.data.memory import Memory
from elign.lab.detection.data.base import (
    Batches,
    DetectionData,
    DetectionSplit,
    fetch,
    open_detection_data,
    task_rows,
)
from elign.lab.detection.data.voc import VOC_PLACES, find_voc
from elign.lab.detection.detector_training import DetectorTraining, make_optimizer
from elign.lab.detection.evaluation.average_precision import Collected, coco_metadata, require_coco, score_methods
from elign.lab.detection.evaluation.region_methods import RegionMethods, predict_images, region_pairs
from elign.lab.detection.evaluation.unknown_objects import unknown_metadata
from elign.lab.detection.learners import DETECTION_LEARNERS, DetectionLearner, make_detection_learner
from elign.lab.detection.models import DetectorSettings, make_detector, settings_of
from elign.lab.detection.settings import TREE, DetectionConfig
from elign.lab.environment import derive_seed
from elign.lab.evaluation.metrics import Row
from elign.lab.runs.experiment import BENCHMARKS, DETECTION, Evaluation, Experiment, aligner_settings
from elign.lab.storage import read_tensors, write_tensors
from elign.lab.training.device import Precision
from elign.lab.training.trainer import Callback, Resume, Trainer
from elign.utils.errors import OptionError

_PICTURES = "pictures.safetensors"
_SHOWN = ("base", "eli/oracle", "eli/by-prediction")  # before alignment, as in the paper, and without test labels
_KEPT = 6
_CALIBRATION = 256  # training images that show what known and unknown objects look like (ORE)
_DETECTOR = ("min_size", "max_size", "anchors", "rois", "pool", "nms", "class_agnostic_boxes")


@BENCHMARKS.register(DETECTION)
class DetectionExperiment(Experiment):
    """Class-incremental object detection: `elign detect run`."""

    name = DETECTION
    command = "elign detect run"
    version = comparable_from = 2
    tree = TREE

    config: DetectionConfig
    data: DetectionData

    def __init__(
        self, config: DetectionConfig, precision: Precision, *, threads: int | None = None, devices: int | None = None
    ) -> None:
        if config.evaluation.coco:
            require_coco()
        super().__init__(config, precision, threads=threads, devices=devices)
        balanced = [stage.name for stage in self.learner().stages(1) if stage.data == "balanced"]
        if balanced and config.memory.per_class is None:
            raise OptionError(
                f"learner {config.learner.name} ends with fine-tuning on kept images: give memory.per_class=10, or "
                "learner.fine_tune_share=0"
            )

    @classmethod
    def first_task(cls, config: DetectionConfig) -> dict[str, Any]:
        """Return what decides the detector after the first task: learners that start alike can share it."""
        learner: Any = "plain"
        if not DETECTION_LEARNERS[config.learner.name].plain_first_task:
            learner = {"name": config.learner.name, **config.learner.options}
        return super().first_task(config) | {"learner": learner}

    @classmethod
    def missing_data(cls, config: DetectionConfig) -> str | None:
        """Look for VOC 2007; other data are made, or in a folder of the user's."""
        if config.data.name != "voc2007" or config.data.path is not None:
            return None
        root = data_dir(config.data.data_dir)
        places = " or ".join(str(root / place) for place in VOC_PLACES)
        return None if find_voc(root) else f"the data set voc2007 is not in {places}: put it there"

    def open_data(self) -> DetectionData:
        """Open the data of the configuration."""
        data = self.config.data
        return open_detection_data(
            data.name,
            path=data.path,
            data_dir=data.data_dir,
            order=data.order,
            limit=data.limit,
            seed=self.config.seed,
            image_size=data.image_size,
            flips=data.flips,
            scenes=data.scenes,
        )

    def learner(self) -> DetectionLearner:
        """Return an untrained learner."""
        settings = self.config.learner
        make = partial(
            make_detector,
            self.config.model.name,
            settings=self._detector_settings(unknown=DETECTION_LEARNERS[settings.name].needs_unknown),
            weights=self.config.model.weights,
        )
        seed = derive_seed(self.config.seed, "learner") % 2**31
        return make_detection_learner(settings.name, make, settings.options, seed=seed)

    def memory(self) -> Memory:
        """Return a memory of images with nothing in it."""
        return Memory(
            per_class=self.config.memory.per_class,
            selection="random",
            seed=derive_seed(self.config.seed, "exemplars"),
        )

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

    def extract(
        self, learner: DetectionLearner, memory: Memory, number: int, evaluation: Evaluation
    ) -> tuple[tuple[Tensor, Tensor] | None, float]:
        """Extract the latents of the task's regions under both detectors, or read them; none at the first task."""
        clock = _Clock()
        if not number:
            return None, clock.lap()
        file, settings = evaluation.target.pairs_file(number), evaluation.aligner
        if not file.is_file():
            assert learner.teacher is not None  # noqa: S101  (for the type checker)
            previous, current = region_pairs(
                learner.teacher,
                learner.model,
                _new_images(self, number),
                regions=settings.regions,
                shared_backbone=settings.shared_backbone,
                seed=derive_seed(self.config.seed, f"pairs of task {number}"),
                per_image=settings.per_image,
            )
            write_tensors(file, {"previous": previous, "current": current})
        tensors, _ = read_tensors(file, expect=["previous", "current"])
        return (tensors["previous"], tensors["current"]), clock.lap()

    def evaluate(
        self,
        learner: DetectionLearner,
        latents: tuple[tuple[Tensor, Tensor] | None, float],
        number: int,
        evaluation: Evaluation,
    ) -> tuple[list[Row], dict[str, Any]]:
        """Fit the aligners of a task, write them and some pictures, and apply all methods."""
        clock, target = _Clock(), evaluation.target
        pairs, extracted = latents
        methods, seconds = None, {}
        if pairs is not None:
            methods = RegionMethods.fit(
                *pairs,
                old_classes=self.protocol.tasks[number].start,
                settings=aligner_settings(evaluation.aligner),
                seed=derive_seed(self.config.seed, f"evaluation of task {number + 1}"),
            )
            seconds = {"extract": extracted, "fit": clock.lap()}
        seen = range(self.protocol.tasks[number].stop)
        objects = [each.of(seen) for each in self.data.test.objects]
        previous = learner.teacher if number else None
        collected = predict_images(learner.model, all_test_images(self), methods, objects=objects, previous=previous)
        counted = self.config.evaluation
        rows, precisions = score_methods(
            collected,
            objects,
            task_sizes=self.protocol.sizes[: number + 1],
            threshold=counted.overlap,
            method=counted.method,
        )
        found: dict[str, Any] = {"average_precision": precisions}
        if counted.coco:
            found |= coco_metadata(collected, objects, classes=len(seen))
        if learner.model.unknown_label is not None and len(seen) < len(self.data.classes):
            images = _calibration_images(self, number), _annotated(self, self.data.test)
            found |= unknown_metadata(learner.model, *images)
        if methods is not None:
            for name, fitted in methods.aligners.items():
                fitted.save(target.aligner_file(number, name))
            keep_pictures(target.task(number), self.data.test, collected, old_classes=methods.old_classes)
        return rows, {"seconds": {**seconds, "methods": clock.lap()}, "drift": {}, **found}

    def _detector_settings(self, *, unknown: bool) -> DetectorSettings:
        model = self.config.model
        given = {name: getattr(model, name) for name in _DETECTOR if getattr(model, name) is not None}
        if model.proposals is not None:
            usual = settings_of(model.name)
            for name in ("proposals_train", "proposals_test"):
                given[name] = (max(model.proposals, getattr(usual, name)[0]), model.proposals)
        # Frozen statistics of a backbone that was never trained would be those of no data at all.
        given["normalisation"] = "group" if model.weights is None else "frozen"
        return settings_of(model.name, **given, unknown=unknown)


def _new_images(experiment: DetectionExperiment, number: int) -> Batches:
    """Yield training images of a task, with the boxes of its own classes."""
    classes = experiment.protocol.tasks[number]
    return image_batches(experiment, experiment.data.train, experiment.rows(classes), classes)


def _calibration_images(experiment: DetectionExperiment, number: int) -> Batches:
    """Yield some training images, with the boxes of all classes: also of those that are still to come."""
    generator = torch.Generator().manual_seed(
        derive_seed(experiment.config.seed, f"unknown objects of task {number + 1}")
    )
    order = torch.randperm(len(experiment.data.train), generator=generator)
    return _annotated(experiment, experiment.data.train, order[:_CALIBRATION])


def _annotated(experiment: DetectionExperiment, split: DetectionSplit, rows: Tensor | None = None) -> Batches:
    rows = torch.arange(len(split)) if rows is None else rows
    return image_batches(experiment, split, rows, range(len(experiment.data.classes)))


def all_test_images(experiment: DetectionExperiment) -> Iterator[list[Tensor]]:
    """Yield all test images, without their objects."""
    split = experiment.data.test
    # No class: nothing but the images.
    for images, _ in image_batches(experiment, split, torch.arange(len(split)), range(0)):
        yield images


def image_batches(experiment: DetectionExperiment, split: DetectionSplit, rows: Tensor, classes: range) -> Batches:
    """Yield images of a split as a detector takes them, with the boxes of some classes."""
    device = experiment.engine.device
    for some in torch.split(rows, experiment.config.train.eval_batch_size):
        images, targets = fetch(split, some, classes, seed=None)
        yield [image.to(device) for image in images], targets


def keep_pictures(folder: Path, split: DetectionSplit, collected: Mapping[str, Collected], *, old_classes: int) -> None:
    """Write the first few test images that show an old object, with what was found on them.

    Args:
        folder: Of the task.
        split: The test images.
        collected: What each method found on all of them.
        old_classes: Number of classes before the task.
    """
    rows = [row for row, objects in enumerate(split.objects) if len(objects.of(range(old_classes)))][:_KEPT]
    tensors: dict[str, Tensor] = {}
    for place, row in enumerate(rows):
        objects = split.objects[row]
        tensors |= {
            f"{place}.image": split.image(row).contiguous(),
            f"{place}.boxes": objects.boxes,
            f"{place}.labels": objects.labels,
            f"{place}.difficult": objects.difficult,
        }
        for name in _SHOWN:
            if name in collected:
                found = collected[name].detections[row]
                for part in ("boxes", "scores", "labels"):
                    tensors[f"{place}.{name}.{part}"] = getattr(found, part).contiguous()
    write_tensors(folder / _PICTURES, tensors, {"count": len(rows)})


class _Clock:
    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last call."""
        now = time.perf_counter()
        self._last, before = now, self._last
        return now - before
