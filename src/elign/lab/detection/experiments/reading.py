"""The readings of a task of a detection run: aligners fitted on regions, every reading of the test images, their score.

Nothing of a test image is kept but what was found on it: the latents of all regions would fill a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from elign.lab.data.memory import Memory
from elign.lab.detection.data.split import DetectionSplit
from elign.lab.detection.data.tasks import Batches, fetch
from elign.lab.detection.evaluation.pairs import region_pairs
from elign.lab.detection.evaluation.reading_images import Collected, read_images
from elign.lab.detection.evaluation.readings import RegionReadings
from elign.lab.detection.evaluation.scoring import class_facts, coco_facts, score_readings
from elign.lab.detection.evaluation.unknown_objects import unknown_facts
from elign.lab.detection.experiments.bench import DetectionBench
from elign.lab.detection.experiments.pictures import keep_pictures
from elign.lab.detection.experiments.sections import RegionAlignerConfig
from elign.lab.detection.learners import DetectionLearner
from elign.lab.evaluation.results import JSON_NAME, write_results
from elign.lab.experiments.editions import EDITION
from elign.lab.experiments.reading import aligner_settings
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.seeds import derive_seed
from elign.lab.tensor_file import read_tensors, write_tensors

READINGS_EDITION = 2
"""See `Kind.edition`."""
PAIRS = "pairs.safetensors"
CALIBRATION = 256
"""How many training images show what known and unknown objects look like (ORE)."""


def is_read(target: RunFolder, source: RunFolder, number: int) -> bool:
    """Whether all that `read_task` leaves is there; the results are written last."""
    return (target.task(number) / JSON_NAME).is_file()


def read_task(
    bench: DetectionBench,
    learner: DetectionLearner,
    memory: Memory,
    number: int,
    *,
    source: RunFolder,
    target: RunFolder,
    settings: RegionAlignerConfig,
    say: Callable[[str], None],
) -> None:
    """Fit the aligners of a task, take all readings and write them.

    Args:
        bench: What the run is.
        learner: After the task.
        memory: After the task.
        number: Of the task.
        source: The run.
        target: Where the readings go.
        settings: Of the aligners; the run's own, or those of a later evaluation.
        say: Hears of each thing that begins.
    """
    clock = _Clock()
    seconds = {"train": source.load_model(number)[2]["seconds"]}
    readings = None
    if number:
        say(f"task {number + 1}: collecting regions")
        pairs = _pairs(bench, learner, number, target, settings)
        seconds["extract"] = clock.lap()
        say(f"task {number + 1}: fitting aligners")
        readings = _fit(bench, pairs, number, settings)
        seconds["fit"] = clock.lap()
    say(f"task {number + 1}: reading test images")
    seen = range(bench.protocol.tasks[number].stop)
    objects = [each.of(seen) for each in bench.data.test.objects]
    collected = read_images(
        learner.model, all_test_images(bench), readings, objects=objects, previous=learner.teacher if number else None
    )
    sizes = bench.protocol.sizes[: number + 1]
    counted = bench.config.evaluation
    rows, precisions = score_readings(
        collected, objects, task_sizes=sizes, threshold=counted.overlap, method=counted.method
    )
    found = class_facts(precisions)
    if counted.coco:
        found |= coco_facts(collected, objects, classes=len(seen))
    if learner.model.unknown_label is not None and len(seen) < len(bench.data.classes):
        say(f"task {number + 1}: telling unknown objects apart")
        found |= unknown_facts(learner.model, _calibration_images(bench, number), _annotated(bench, bench.data.test))
    seconds["readings"] = clock.lap()
    _write(bench, target, number, readings, collected)
    facts = {EDITION: READINGS_EDITION, "task": number + 1, "seconds": seconds, "drift": {}, **found}
    write_results(target.task(number), rows, {}, tasks=[facts])


def _write(
    bench: DetectionBench,
    target: RunFolder,
    number: int,
    readings: RegionReadings | None,
    collected: dict[str, Collected],
) -> None:
    if readings is None:
        return
    for name, fitted in readings.aligners.items():
        fitted.save(target.task(number) / "aligners" / f"{name}.safetensors")
    keep_pictures(target.task(number), bench.data.test, collected, known=readings.known)


def _fit(
    bench: DetectionBench, pairs: tuple[Tensor, Tensor], number: int, settings: RegionAlignerConfig
) -> RegionReadings:
    return RegionReadings.fit(
        *pairs,
        known=bench.protocol.tasks[number].start,
        settings=aligner_settings(settings),
        seed=derive_seed(bench.config.seed, f"evaluation of task {number + 1}"),
    )


def _pairs(
    bench: DetectionBench, learner: DetectionLearner, number: int, target: RunFolder, settings: RegionAlignerConfig
) -> tuple[Tensor, Tensor]:
    """Latents of the task's regions under both detectors: read if they are there, else extracted and kept."""
    file = target.task(number) / PAIRS
    if not file.is_file():
        assert learner.teacher is not None  # noqa: S101  (for the type checker)
        previous, current = region_pairs(
            learner.teacher,
            learner.model,
            _new_images(bench, number),
            regions=settings.regions,
            shared_backbone=settings.shared_backbone,
            seed=derive_seed(bench.config.seed, f"pairs of task {number}"),
            per_image=settings.per_image,
        )
        write_tensors(file, {"previous": previous, "current": current})
    tensors, _ = read_tensors(file, expect=["previous", "current"])
    return tensors["previous"], tensors["current"]


def _new_images(bench: DetectionBench, number: int) -> Batches:
    """Training images of a task, with the boxes of its own classes."""
    classes = bench.protocol.tasks[number]
    return image_batches(bench, bench.data.train, bench.rows(classes), classes)


def _calibration_images(bench: DetectionBench, number: int) -> Batches:
    """Some training images, with the boxes of all classes: also of those that are still to come."""
    generator = torch.Generator().manual_seed(derive_seed(bench.config.seed, f"unknown objects of task {number + 1}"))
    order = torch.randperm(len(bench.data.train), generator=generator)
    return _annotated(bench, bench.data.train, order[:CALIBRATION])


def _annotated(bench: DetectionBench, split: DetectionSplit, rows: Tensor | None = None) -> Batches:
    rows = torch.arange(len(split)) if rows is None else rows
    return image_batches(bench, split, rows, range(len(bench.data.classes)))


def all_test_images(bench: DetectionBench) -> Iterator[list[Tensor]]:
    """All test images, without what is on them."""
    split = bench.data.test
    # No class: nothing but the images.
    for images, _ in image_batches(bench, split, torch.arange(len(split)), range(0)):
        yield images


def image_batches(bench: DetectionBench, split: DetectionSplit, rows: Tensor, classes: range) -> Batches:
    """Some images of a split as a detector takes them, with the boxes of some classes."""
    device = bench.engine.device
    for some in torch.split(rows, bench.config.train.eval_batch_size):
        images, targets = fetch(split, some, classes, seed=None)
        yield [image.to(device) for image in images], targets


class _Clock:
    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last call."""
        now = time.perf_counter()
        self._last, before = now, self._last
        return now - before
