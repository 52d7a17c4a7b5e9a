"""The way from test images to what every reading found on them, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elign.lab.detection.data.split import Objects
from elign.lab.detection.evaluation.average_precision import Detections
from elign.lab.detection.evaluation.matching import old_regions
from elign.lab.detection.evaluation.readings import RegionReading, RegionReadings
from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.passes import Regions, RoiOutputs
from elign.lab.evaluation.errors import EvaluationError


@dataclass(eq=False)
class Collected:
    """What one reading found on all images so far.

    Args:
        label_free: False if the reading knows which regions lie on old objects.
        gated: Did a label-free gate choose what is moved?
        detections: Of each image, in main memory.
        regions: Number of regions that were read.
        moved: Sum of the weights of alignment.
        judged: Number of regions of which it is known whether they lie on old objects.
        agreed: Number of those of which the gate says the same.
    """

    label_free: bool
    gated: bool = False
    detections: list[Detections] = field(default_factory=list)
    regions: int = 0
    moved: float = 0.0
    judged: int = 0
    agreed: int = 0

    def add(self, reading: RegionReading, *, old: Tensor | None) -> None:
        """Add what was found on a batch of images; `old` only counts how often a gate is right."""
        self.detections.extend(Detections.of(image) for image in reading.detections)
        if reading.weights is None:
            return
        self.regions += len(reading.weights)
        self.moved += float(reading.weights.double().sum())
        if reading.gated and old is not None:
            self.judged += len(old)
            self.agreed += int(((reading.weights > 0.5) == old.to(reading.weights.device)).sum())

    @property
    def aligned_share(self) -> float:
        """Mean weight of alignment over all regions."""
        return min(self.moved / self.regions, 1.0) if self.regions else 0.0

    @property
    def gate_accuracy(self) -> float | None:
        """Share of regions, most of which are background, that the gate treats as the oracle would."""
        return self.agreed / self.judged if self.judged else None


@torch.no_grad()
def read_images(
    detector: Detector,
    batches: Iterable[list[Tensor]],
    readings: RegionReadings | None,
    *,
    objects: Sequence[Objects] | None = None,
    previous: Detector | None = None,
) -> dict[str, Collected]:
    """Read images in every way.

    Args:
        detector: After the task; it is put into evaluation mode.
        batches: All test images, as the detector takes them.
        readings: Of the task; None at the first task, where there is nothing but `base`.
        objects: For the oracles, of each image, of the classes seen so far. None: only label-free readings are taken,
            and their gates' accuracy has no value.
        previous: The detector before the task, for `previous-model`; put into evaluation mode. None: without it.

    Returns:
        By the name of the reading.

    Raises:
        EvaluationError: There are not as many images as annotations.
    """
    detector.eval()
    if previous is not None:
        previous.eval()
    if readings is not None:
        readings.start()
    collected: dict[str, Collected] = {}
    done = 0
    for images in batches:
        regions = detector.regions(images)
        old = None
        found: Mapping[str, RegionReading]
        if readings is None:
            found = {"base": RegionReading(detector.detections(regions.latents, regions), label_free=True)}
        else:
            if objects is not None:
                old = old_regions(regions.boxes, objects[done : done + len(images)], known=readings.known)
            others = None if previous is None or old is None else read_regions(previous, images, regions)
            found = readings.read(detector, regions, old=old, previous=others)
        for name, reading in found.items():
            collected.setdefault(name, Collected(reading.label_free, reading.gated)).add(reading, old=old)
        done += len(images)
    if objects is not None and done != len(objects):
        raise EvaluationError(f"there are {done} images, but annotations of {len(objects)}")
    return collected


def read_regions(detector: Detector, images: list[Tensor], regions: Regions) -> RoiOutputs:
    """What a detector makes of the regions that another one proposed, through its own backbone.

    Raises:
        EvaluationError: The two detectors do not resize images alike.
    """
    seen, _ = detector.transform(images)
    if [tuple(size) for size in seen.image_sizes] != [tuple(size) for size in regions.image_sizes]:
        raise EvaluationError("the two detectors resize images to different sizes: make them with the same settings")
    return detector.read(detector.features(seen.tensors), regions.rois, seen.image_sizes)
