"""Every way to read the regions of some images, as detections. Annotations are counted elsewhere (`scoring.py`).

A batch of images at a time, since the latents of a whole test set (1000 regions an image, 2048 numbers a region) do not
fit into memory. All that can come from test annotations is one bit for each region, `old`; without it the readings that
need it are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.attachments.split_outputs import SplitOutputs
from elign.gates.base import Always, ByMask, Gate
from elign.gates.by_energy import ByEnergy
from elign.gates.by_prediction import ByPrediction
from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.passes import Regions, RoiOutputs
from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.errors import EvaluationError
from elign.lab.evaluation.fitting import fit_backward
from elign.lab.evaluation.settings import AlignerSettings
from elign.lab.seeds import derive_seed
from elign.utils.errors import OptionError

REGION_READINGS = (
    "base",
    "eli/oracle",
    "eli/all",
    "eli/by-prediction",
    "eli/by-energy",
    "eli/old-classes",
    "mean-shift/oracle",
    "mean-shift/all",
    "ridge/oracle",
    "ridge/old-classes",
    "random-shift/oracle",
    "oracle-mask",
    "previous-model",
)
"""What is read unless other names are given. Each costs a head and a non-maximum suppression for every image.

`previous-model`: regions on old objects take the previous detector's scores and boxes, the current one's proposals."""
_UNMOVED = ("base", "oracle-mask", "previous-model")
_BY_CLASS = "old-classes"
"""Every region is read twice: scores of old classes, and boxes that are theirs alone, are those of the moved one."""


@dataclass(frozen=True, eq=False)
class RegionReading:
    """One way to read the regions of some images.

    Args:
        detections: Of each image, as `Detector.detections` gives them.
        label_free: False if it knows which regions lie on old objects.
        weights: How far each region was moved, 0 to 1, (R,); None if it is not about moving.
        gated: Did a label-free gate choose the weights?
    """

    detections: list[dict[str, Tensor]]
    label_free: bool
    weights: Tensor | None = None
    gated: bool = False


class RegionReadings:
    """The readings of one task.

    Args:
        aligners: Fitted aligners by name, as `fit_backward` gives them.
        gates: Label-free gates of ELI by name. `elign.ByPrediction` needs `old_classes=[1, ..., known]`: output 0
            is the background.
        known: Number of classes before the task.
        names: Readings to take: those of `REGION_READINGS`, or any `<aligner>/oracle`, `<aligner>/all` and
            `eli/<gate>` that is in the catalogue of readings, likewise `<aligner>/old-classes`.
        seed: Of the noise of aligners that use some.

    Raises:
        OptionError: A reading that does not exist, or whose aligner or gate is missing.
    """

    def __init__(
        self,
        aligners: Mapping[str, Aligner],
        *,
        gates: Mapping[str, Gate],
        known: int,
        names: Sequence[str] = REGION_READINGS,
        seed: int = 0,
    ) -> None:
        self.aligners = dict(aligners)
        self.gates: dict[str, Gate] = {"all": Always(), **gates}
        self.known = known
        self.names = tuple(names)
        self._seed = seed
        self._check_names()
        self.start()

    @classmethod
    def fit(
        cls,
        previous: Tensor,
        current: Tensor,
        *,
        known: int,
        settings: AlignerSettings,
        seed: int,
        old: Tensor | None = None,
        names: Sequence[str] = REGION_READINGS,
    ) -> Self:
        """Fit ELI, its controls and its gates on pairs of region latents.

        Args:
            previous: Latents of regions on objects of the task's own classes under the previous detector, (P, D).
            current: The same under the current one, (P, D); `region_pairs` gives both.
            known: Number of classes before the task.
            settings: Options of the aligners.
            seed: Of everything random.
            old: Latents of stored regions on old objects under the current detector, where a method keeps some.
            names: Readings to take.
        """
        if settings.space != "latent":
            raise OptionError(f"regions are read through their latents; space={settings.space!r} is for classification")
        aligners = fit_backward(previous, current, old=old, settings=settings, seed=seed)
        energy = ByEnergy(quantile=settings.energy_quantile).fit(aligners["eli"], current, old)
        gates: dict[str, Gate] = {
            "by-prediction": ByPrediction(old_classes=list(range(1, 1 + known))),
            "by-energy": energy,
        }
        return cls(aligners, gates=gates, known=known, names=names, seed=seed)

    def start(self) -> None:
        """Begin with a new test set: the noise of aligners, if they use any, begins anew."""
        self._noise = {
            name: torch.Generator().manual_seed(derive_seed(self._seed, f"noise, {name}")) for name in self.aligners
        }

    def apply(
        self, detector: Detector, regions: Regions, *, old: Tensor | None = None, previous: RoiOutputs | None = None
    ) -> dict[str, list[dict[str, Tensor]]]:
        """Detections of each image for each reading; arguments as in `read`."""
        return {
            name: reading.detections
            for name, reading in self.read(detector, regions, old=old, previous=previous).items()
        }

    @torch.no_grad()
    def read(
        self, detector: Detector, regions: Regions, *, old: Tensor | None = None, previous: RoiOutputs | None = None
    ) -> dict[str, RegionReading]:
        """Take all readings of a batch of images.

        Args:
            detector: After the task, in evaluation mode.
            regions: What it proposes on the images.
            old: Which regions lie on objects of old classes, (R,) bool. None: only label-free readings are taken.
            previous: What the previous detector makes of the same regions. None: no `previous-model`.
        """
        if old is not None and (old.dtype != torch.bool or old.shape != regions.latents.shape[:1]):
            raise EvaluationError(
                f"old must be bool, one entry for each of {len(regions.latents)} regions, got {old.dtype} "
                f"{tuple(old.shape)}"
            )
        batch = _Batch(self, detector, regions, old)
        readings: dict[str, RegionReading] = {}
        for name in self.names:
            if READINGS[name].label_free:
                readings[name] = batch.moved(name)
            elif old is not None and not (name == "previous-model" and previous is None):
                readings[name] = batch.oracle(name, old, previous)
        return readings

    def _check_names(self) -> None:
        for name in self.names:
            aligner, _, how = name.partition("/")
            if name not in READINGS or (not how and name not in _UNMOVED):
                known = ", ".join(REGION_READINGS)
                raise OptionError(f"there is no reading of regions called {name!r}; there are {known}")
            if how and (aligner not in self.aligners or how not in ("oracle", _BY_CLASS, *self.gates)):
                raise OptionError(
                    f"the reading {name!r} needs the aligner {aligner!r} and, unless oracle, gate {how!r}"
                )


class _Batch:
    """The regions of a batch of images, with what several readings of them share."""

    def __init__(self, readings: RegionReadings, detector: Detector, regions: Regions, old: Tensor | None) -> None:
        self._readings = readings
        self._detector = detector
        self._regions = regions
        self._gates = dict(readings.gates)
        if old is not None:
            self._gates["oracle"] = ByMask(old)
        self._moved: dict[str, Tensor] = {}

    def moved(self, name: str) -> RegionReading:
        """`base`, or regions that an aligner moves where a gate says so."""
        latents, label_free = self._regions.latents, READINGS[name].label_free
        aligner, _, how = name.partition("/")
        if not how:
            detections = self._detector.detections(latents, self._regions)
            return RegionReading(detections, label_free, latents.new_zeros(len(latents)))
        head = self._detector.roi_heads.box_predictor
        if how == _BY_CLASS:
            return RegionReading(self._by_class(latents, self._all_moved(aligner)), label_free)
        gate = self._gates[how]
        weights = gate(latents, head=head, aligner=self._readings.aligners[aligner]).to(latents.dtype)
        # lerp is exact at both ends: weight 0 leaves a latent as it is, bit for bit.
        rows = torch.lerp(latents, self._all_moved(aligner), weights.unsqueeze(1))
        gated = label_free and not isinstance(gate, Always)
        return RegionReading(self._detector.detections(rows, self._regions), label_free, weights, gated=gated)

    def _by_class(self, latents: Tensor, moved: Tensor) -> list[dict[str, Tensor]]:
        """Detections of old classes off moved regions, of all others off the regions as they are."""
        detector = self._detector
        said = [detector.roi_heads.box_predictor(z) for z in (latents, moved)]
        old = SplitOutputs(range(1, 1 + self._readings.known), background=0)
        logits, deltas = old.merge(*((detector.known_logits(logits), deltas) for logits, deltas in said))
        return detector.detections_from(logits, deltas, self._regions)

    def oracle(self, name: str, old: Tensor, previous: RoiOutputs | None) -> RegionReading:
        """A reading that knows which regions lie on old objects."""
        if name not in _UNMOVED:
            return self.moved(name)
        logits, deltas = self._detector.roi_heads.box_predictor(self._regions.latents)
        logits, deltas = logits.clone(), deltas.flatten(1).clone()
        old = old.to(logits.device)
        # Background and old classes remain; the unknown, which some heads end with, counts as background.
        old_end, new_end = 1 + self._readings.known, 1 + self._detector.classes
        logits[:, old_end:new_end] = logits[:, old_end:new_end].masked_fill(old.unsqueeze(1), -torch.inf)
        if name == "previous-model" and previous is not None:
            theirs = previous.logits.to(logits)[old]
            logits[old, :old_end], logits[old, new_end:] = theirs[:, :old_end], theirs[:, old_end:]
            # Either one box for all classes, or one for each column, of which the first ones are the previous model's.
            boxes = previous.deltas.to(deltas).flatten(1)[old]
            deltas[old, : boxes.shape[1]] = boxes
        return RegionReading(self._detector.detections_from(logits, deltas, self._regions), label_free=False)

    def _all_moved(self, aligner: str) -> Tensor:
        # All regions once per aligner: many readings differ in their weights only.
        if aligner not in self._moved:
            generator = self._readings._noise[aligner]
            self._moved[aligner] = self._readings.aligners[aligner].align(self._regions.latents, generator=generator)
        return self._moved[aligner]
