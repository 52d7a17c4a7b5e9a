"""What a detection configuration stands for: its data, tasks, learner, memory and engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elign.lab.data.memory import Memory
from elign.lab.detection.data.open import open_detection_data
from elign.lab.detection.data.split import DetectionData
from elign.lab.detection.data.tasks import task_rows
from elign.lab.detection.evaluation.coco_average_precision import require_coco
from elign.lab.detection.experiments.config import DetectionConfig
from elign.lab.detection.learners import LEARNERS, DetectionLearner, make_detection_learner
from elign.lab.detection.models import make_detector, settings_of
from elign.lab.experiments.base_bench import BaseBench, make_engine
from elign.lab.experiments.speed import Speed
from elign.lab.seeds import derive_seed
from elign.utils.errors import OptionError

_DETECTOR = ("min_size", "max_size", "anchors", "rois", "pool", "nms", "class_agnostic_boxes")


@dataclass(frozen=True, eq=False)
class DetectionBench(BaseBench):
    """Everything that a detection run needs; see `BaseBench`."""

    config: DetectionConfig
    data: DetectionData

    def learner(self) -> DetectionLearner:
        """A learner that has learned nothing yet."""
        settings = self.config.learner
        kind = LEARNERS[settings.name]
        options = dict(settings.options)
        if "seed" in kind.defaults:
            options["seed"] = derive_seed(self.config.seed, "learner") % 2**31
        make = partial(
            make_detector,
            self.config.model.name,
            settings=settings_of(self.config.model.name, **self._changes(kind)),
            weights=self.config.model.weights,
        )
        return make_detection_learner(settings.name, make, options)

    def memory(self) -> Memory:
        """A memory of images with nothing in it."""
        return Memory(
            per_class=self.config.memory.per_class,
            selection="random",
            seed=derive_seed(self.config.seed, "exemplars"),
        )

    def rows(self, classes: range) -> Tensor:
        """Places of the training images with an object of these classes."""
        return task_rows(self.data.train, classes)

    def remember(self, memory: Memory, number: int) -> None:
        """Keep images of the classes that a task brings: by chance, so that it can be done before or after it."""
        classes = self.protocol.tasks[number]
        if not memory.per_class_count(classes.stop):
            return
        for label in classes:
            rows = self.rows(range(label, label + 1))
            memory.add(label, rows, torch.zeros(len(rows), 1))  # latents are for herding

    def _changes(self, kind: type[DetectionLearner]) -> dict[str, Any]:
        model = self.config.model
        given = {name: getattr(model, name) for name in _DETECTOR if getattr(model, name) is not None}
        if model.proposals is not None:
            usual = settings_of(model.name)
            for name in ("proposals_train", "proposals_test"):
                given[name] = (max(model.proposals, getattr(usual, name)[0]), model.proposals)
        # Frozen statistics of a backbone that was never trained would be those of no data at all.
        given["normalisation"] = "group" if model.weights is None else "frozen"
        return given | {"unknown": kind.needs_unknown}


def first_task(config: DetectionConfig, classes: int, speed: Speed) -> dict[str, Any]:
    """Everything that decides the detector after the first task, by the keys that the user types.

    Two runs whose first tasks are equal can share that detector: learners that only differ in what they do against
    forgetting, say.

    Args:
        config: Of the run.
        classes: How many the first task brings.
        speed: The way of training.
    """
    way = {"train.precision": speed.precision, "train.layout": speed.channels_last}
    learner: Any = "plain"
    if not LEARNERS[config.learner.name].plain_first_task:
        learner = {"name": config.learner.name, **config.learner.options}
    return config.first_task() | way | {"classes in the first task": classes, "learner": learner}


def open_bench(config: DetectionConfig, speed: Speed | None = None) -> tuple[DetectionBench, Speed]:
    """Open the data and make the engine.

    Args:
        config: The configuration.
        speed: The way of training to use; None to take the usual one: nothing is measured for detectors.

    Raises:
        DataError: The data cannot be had, or their classes do not split into these tasks.
        MissingExtraError: COCO's numbers are asked for, and what computes them is not installed.
        OptionError: The learner or the detector does not take these options.
    """
    if config.evaluation.coco:
        require_coco()
    train, settings = config.train, config.data
    if train.threads is not None:
        torch.set_num_threads(train.threads)
    speed = speed or Speed("32" if train.precision == "auto" else train.precision, train.layout == "channels-last")
    data = open_detection_data(
        settings.name,
        path=settings.path,
        data_dir=settings.data_dir,
        order=settings.order,
        limit=settings.limit,
        seed=config.seed,
        image_size=settings.image_size,
        flips=settings.flips,
        scenes=settings.scenes,
    )
    protocol = config.protocol.protocol(len(data.classes))
    engine = make_engine(train, speed)
    bench = DetectionBench(config, data, protocol, engine)
    # What cannot be made is found now, before a folder is.
    with torch.random.fork_rng(devices=[]):
        learner = bench.learner()
        learner.grow(protocol.sizes[0])
    balanced = [stage.name for stage in learner.stages(1) if stage.data == "balanced"]
    if balanced and config.memory.per_class is None:
        raise OptionError(
            f"learner {config.learner.name} ends with fine-tuning on kept images: give memory.per_class=10, or "
            "learner.fine_tune_share=0"
        )
    return bench, speed
