"""The methods of detection: pairs of region latents, and every way to predict from the regions of test images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from torch import Tensor
from torchvision.ops import box_iou

from elign.aligners.base import Aligner
from elign.attachments.split_outputs import SplitOutputs
from elign.gates.base import Always, ByMask, Gate
from elign.gates.by_energy import ByEnergy
from elign.gates.by_prediction import ByPrediction
from elign.lab.detection.data.base import Batches, Objects
from elign.lab.detection.evaluation.average_precision import Collected
from elign.lab.detection.models.detector import Detector, Regions, RoiOutputs
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import AlignerSettings, EvaluationError
from elign.lab.evaluation.methods import METHODS
from elign.lab.evaluation.task_evaluation import fit_backward
from elign.utils.errors import OptionError


def old_regions(
    boxes: Sequence[Tensor], objects: Sequence[Objects], *, old_classes: int, threshold: float = 0.5
) -> Tensor:
    """Return which regions match an object of an old class, (R,) bool, R counting through all images.

    A region matches the object that it overlaps most with, of whatever class (the first one, if there are several), if
    the overlap (intersection over union) is at least `threshold`. Difficult objects are objects, too.

    The authors' code gives the model more than this: it appends the true boxes to the proposals and draws among the
    proposals by how they match. Here regions are what the model proposed, and only whether they are old is told.

    Args:
        boxes: Regions of each image, in its own frame, (R_i, 4).
        objects: On each image, in the same order; of the classes seen so far.
        old_classes: How many there are.
        threshold: Least overlap.
    """
    if len(boxes) != len(objects):
        raise EvaluationError(f"there are regions of {len(boxes)} images, but objects on {len(objects)}")
    return torch.cat(
        [
            _old(regions, image, old_classes=old_classes, threshold=threshold)
            for regions, image in zip(boxes, objects, strict=True)
        ]
    )


def overlaps(regions: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest overlap of each region with any of the boxes, and with which one; there must be one."""
    best, which = box_iou(regions.double(), boxes.to(regions).double()).nan_to_num(0.0).max(dim=1)
    return best, which


def _old(regions: Tensor, image: Objects, *, old_classes: int, threshold: float) -> Tensor:
    if not len(image):
        return torch.zeros(len(regions), dtype=torch.bool, device=regions.device)
    best, which = overlaps(regions, image.boxes)
    return (best >= threshold) & (image.labels.to(regions.device)[which] < old_classes)


RegionKind = Literal["objects", "others", "all"]

PER_IMAGE = 128
"""A quarter of 512, as many regions on objects as the head of R50-C4 is trained on."""


@torch.no_grad()
def region_pairs(
    previous: Detector,
    current: Detector,
    batches: Batches,
    *,
    regions: RegionKind = "objects",
    shared_backbone: bool = False,
    seed: int,
    per_image: int = PER_IMAGE,
    threshold: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Return latents of regions of the new task's images, row by row of the same region.

    Regions on objects are the annotated boxes and those of the current model's proposals that overlap one of them by
    `threshold`; the other proposals lie on background and on what is not annotated, old objects among it. Objects are
    as published; but the previous model has learned that these are background, and an aligner that learns from them
    moves old objects there, too. Each model uses its own backbone, so that a pair differs by all the drift that a test
    image meets.

    The authors' code differs in two things. It collects while it trains the current model further, whose weights drift
    away from those that are evaluated; here both models are in evaluation mode (and stay in it) and unchanged. And it
    gives both heads the current backbone's features, so that drift of the backbone is not in the pairs;
    `shared_backbone` does that.

    Args:
        previous: The detector before the task.
        current: The detector after it.
        batches: Images of the new task, as the detector takes them, and their targets with "boxes" of new classes.
        regions: `objects` of the new classes, all proposals but those (`others`), or both (`all`).
        shared_backbone: Whether the previous model's head sees the current backbone's features.
        seed: Of the choice where an image has more regions than `per_image`.
        per_image: Most regions of an image.
        threshold: Least overlap (intersection over union) of a proposal with an annotated box.

    Returns:
        Latents (P, D) under the previous and under the current model, in main memory.

    Raises:
        EvaluationError: There is no box on any image.
        OptionError: `per_image` is below 1, or `regions` is something else.
    """
    if regions not in get_args(RegionKind):
        raise OptionError(f"regions must be one of {', '.join(get_args(RegionKind))}, got {regions!r}")
    if per_image < 1:
        raise OptionError(f"per_image must be at least 1, got {per_image}")
    previous.eval(), current.eval()
    generator = torch.Generator().manual_seed(seed)
    pairs: list[tuple[Tensor, Tensor]] = []
    for images, targets in batches:
        seen, placed = current.transform(images, [{"boxes": target["boxes"]} for target in targets])
        features = current.features(seen.tensors)
        proposals, _ = current.propose(seen, features)
        rois = [
            _some(_regions(regions, proposed, target["boxes"], threshold), most=per_image, generator=generator)
            for proposed, target in zip(proposals, placed, strict=True)
        ]
        if not any(len(image) for image in rois):
            continue
        others = features if shared_backbone else previous.features(seen.tensors)
        before = previous.roi_outputs(others, rois, seen.image_sizes).latents
        after = current.roi_outputs(features, rois, seen.image_sizes).latents
        pairs.append((before.cpu(), after.cpu()))
    if not pairs:
        raise EvaluationError(
            f"no image has a box of a new class, or a region of this kind ({regions}): give images of the new task "
            "with their annotations"
        )
    z_prev, z_cur = (torch.cat(side) for side in zip(*pairs, strict=True))
    return z_prev, z_cur


def _regions(which: RegionKind, proposals: Tensor, boxes: Tensor, threshold: float) -> Tensor:
    boxes = boxes.to(proposals)
    if not len(boxes):
        return boxes
    best, _ = overlaps(proposals, boxes)
    objects, others = torch.cat([boxes, proposals[best >= threshold]]), proposals[best < threshold]
    return {"objects": objects, "others": others, "all": torch.cat([objects, others])}[which]


def _some(found: Tensor, *, most: int, generator: torch.Generator) -> Tensor:
    """Return all regions or, if these are too many, some of them, drawn at random."""
    if len(found) <= most:
        return found
    chosen = torch.randperm(len(found), generator=generator)[:most].sort().values
    return found[chosen.to(found.device)]


REGION_METHODS = (
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
"""The methods unless other names are given. Each costs a head and a non-maximum suppression for every image.

`previous-model`: regions on old objects take the previous detector's scores and boxes, the current one's proposals."""
_UNMOVED = ("base", "oracle-mask", "previous-model")
_BY_CLASS = "old-classes"
"""The head gets every region twice: scores of old classes, and boxes that are theirs alone, are of the moved one."""


@dataclass(frozen=True, eq=False)
class RegionPrediction:
    """What one method finds on some images.

    Args:
        detections: Of each image, as `Detector.detections` gives them.
        label_free: False if it knows which regions lie on old objects.
        weights: How far each region was moved, 0 to 1, (R,); None if the method does not move regions.
        gated: Whether a label-free gate chose the weights.
    """

    detections: list[dict[str, Tensor]]
    label_free: bool
    weights: Tensor | None = None
    gated: bool = False


class RegionMethods:
    """The methods of one task.

    Args:
        aligners: Fitted aligners by name, as `fit_backward` gives them.
        gates: Label-free gates of ELI by name. `elign.ByPrediction` needs `old_classes=[1, ..., old_classes]`: output
            0 is the background.
        old_classes: Number of classes before the task.
        names: Methods to apply: those of `REGION_METHODS`, or any `<aligner>/oracle`, `<aligner>/all`,
            `<aligner>/old-classes` and `eli/<gate>` that is in `METHODS`.
        seed: Of the noise of aligners that use some.

    Raises:
        OptionError: A method that does not exist, or whose aligner or gate is missing.
    """

    def __init__(
        self,
        aligners: Mapping[str, Aligner],
        *,
        gates: Mapping[str, Gate],
        old_classes: int,
        names: Sequence[str] = REGION_METHODS,
        seed: int = 0,
    ) -> None:
        self.aligners = dict(aligners)
        self.gates: dict[str, Gate] = {"all": Always(), **gates}
        self.old_classes = old_classes
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
        old_classes: int,
        settings: AlignerSettings,
        seed: int,
        names: Sequence[str] = REGION_METHODS,
    ) -> Self:
        """Fit ELI, its baselines and its gates on pairs of region latents.

        Args:
            previous: Latents of regions on objects of the task's own classes under the previous detector, (P, D).
            current: The same under the current one, (P, D); `region_pairs` gives both.
            old_classes: Number of classes before the task.
            settings: Options of the aligners.
            seed: Of everything random.
            names: Methods to apply.
        """
        if settings.space != "latent":
            raise OptionError(f"regions are aligned by their latents; space={settings.space!r} is for classification")
        aligners = fit_backward(previous, current, old=None, settings=settings, seed=seed)
        gates: dict[str, Gate] = {
            "by-prediction": ByPrediction(old_classes=list(range(1, 1 + old_classes))),
            "by-energy": ByEnergy(quantile=settings.energy_quantile).fit(aligners["eli"], current, None),
        }
        return cls(aligners, gates=gates, old_classes=old_classes, names=names, seed=seed)

    def start(self) -> None:
        """Start a new test set: the noise of aligners, if they use any, starts again."""
        self.noise = {
            name: torch.Generator().manual_seed(derive_seed(self._seed, f"noise, {name}")) for name in self.aligners
        }

    @torch.no_grad()
    def predict(
        self, detector: Detector, regions: Regions, *, old: Tensor | None = None, previous: RoiOutputs | None = None
    ) -> dict[str, RegionPrediction]:
        """Apply all methods to a batch of images.

        Args:
            detector: After the task, in evaluation mode.
            regions: What it proposes on the images.
            old: Which regions lie on objects of old classes, (R,) bool. None: only label-free methods are applied.
            previous: The previous detector's outputs for the same regions. None: no `previous-model`.
        """
        if old is not None and (old.dtype != torch.bool or old.shape != regions.latents.shape[:1]):
            raise EvaluationError(
                f"old must be bool, one entry for each of {len(regions.latents)} regions, got {old.dtype} "
                f"{tuple(old.shape)}"
            )
        batch = _Batch(self, detector, regions, old)
        found: dict[str, RegionPrediction] = {}
        for name in self.names:
            if name in ("oracle-mask", "previous-model"):
                if old is not None and (previous is not None or name == "oracle-mask"):
                    found[name] = batch.masked(old, previous if name == "previous-model" else None)
            elif old is not None or not METHODS[name].uses_labels:
                found[name] = batch.moved(name)
        return found

    def _check_names(self) -> None:
        for name in self.names:
            aligner, _, how = name.partition("/")
            if name not in METHODS or (not how and name not in _UNMOVED):
                raise OptionError(f"there is no method of regions {name!r}; there are {', '.join(REGION_METHODS)}")
            if how and (aligner not in self.aligners or how not in ("oracle", _BY_CLASS, *self.gates)):
                raise OptionError(f"the method {name!r} needs the aligner {aligner!r} and, unless oracle, gate {how!r}")


class _Batch:
    """The regions of a batch of images, with what several methods of them share."""

    def __init__(self, methods: RegionMethods, detector: Detector, regions: Regions, old: Tensor | None) -> None:
        self._methods, self._detector, self._regions = methods, detector, regions
        self._gates = methods.gates if old is None else {**methods.gates, "oracle": ByMask(old)}
        self._moved: dict[str, Tensor] = {}

    def moved(self, name: str) -> RegionPrediction:
        """Apply `base`, or move regions with an aligner where a gate says so."""
        detector, regions, latents = self._detector, self._regions, self._regions.latents
        label_free = not METHODS[name].uses_labels
        aligner, _, how = name.partition("/")
        if not how:
            return RegionPrediction(detector.detections(latents, regions), label_free, latents.new_zeros(len(latents)))
        head, moved = detector.roi_heads.box_predictor, self._all_moved(aligner)
        if how == _BY_CLASS:
            old = SplitOutputs(range(1, 1 + self._methods.old_classes), background=0)
            outputs = [head(z) for z in (latents, moved)]
            logits, deltas = old.merge(*((detector.class_logits(logits), deltas) for logits, deltas in outputs))
            return RegionPrediction(detector.detections_from(logits, deltas, regions), label_free)
        gate = self._gates[how]
        weights = gate(latents, head=head, aligner=self._methods.aligners[aligner]).to(latents.dtype)
        # lerp is exact at both ends: weight 0 leaves a latent unchanged, bit for bit.
        rows = torch.lerp(latents, moved, weights.unsqueeze(1))
        gated = label_free and not isinstance(gate, Always)
        return RegionPrediction(detector.detections(rows, regions), label_free, weights, gated)

    def masked(self, old: Tensor, previous: RoiOutputs | None) -> RegionPrediction:
        """Let regions on old objects choose among old classes, by the current or the previous detector's outputs."""
        logits, deltas = self._detector.roi_heads.box_predictor(self._regions.latents)
        logits, deltas = logits.clone(), deltas.flatten(1).clone()
        old = old.to(logits.device)
        # Background and old classes remain; the unknown, which some heads end with, counts as background.
        old_end, new_end = 1 + self._methods.old_classes, 1 + self._detector.classes
        logits[:, old_end:new_end] = logits[:, old_end:new_end].masked_fill(old.unsqueeze(1), -torch.inf)
        if previous is not None:
            theirs = previous.logits.to(logits)[old]
            logits[old, :old_end], logits[old, new_end:] = theirs[:, :old_end], theirs[:, old_end:]
            # Either one box for all classes, or one for each column, of which the first ones are the previous model's.
            boxes = previous.deltas.to(deltas).flatten(1)[old]
            deltas[old, : boxes.shape[1]] = boxes
        return RegionPrediction(self._detector.detections_from(logits, deltas, self._regions), label_free=False)

    def _all_moved(self, aligner: str) -> Tensor:
        # All regions once per aligner: many methods differ in their weights only.
        if aligner not in self._moved:
            generator = self._methods.noise[aligner]
            self._moved[aligner] = self._methods.aligners[aligner].align(self._regions.latents, generator=generator)
        return self._moved[aligner]


@torch.no_grad()
def predict_images(
    detector: Detector,
    batches: Iterable[list[Tensor]],
    methods: RegionMethods | None,
    *,
    objects: Sequence[Objects] | None = None,
    previous: Detector | None = None,
) -> dict[str, Collected]:
    """Apply all methods to all test images.

    Args:
        detector: After the task; it is put into evaluation mode.
        batches: All test images, as the detector takes them.
        methods: Of the task; None at the first task, where there is nothing but `base`.
        objects: For the oracles, of each image, of the classes seen so far. None: only label-free methods are applied,
            and their gates' accuracy has no value.
        previous: The detector before the task, for `previous-model`; put into evaluation mode. None: without it.

    Raises:
        EvaluationError: There are not as many images as annotations.
    """
    detector.eval()
    if previous is not None:
        previous.eval()
    if methods is not None:
        methods.start()
    collected: dict[str, Collected] = {}
    done = 0
    for images in batches:
        regions, old = detector.regions(images), None
        if methods is None:
            found = {"base": RegionPrediction(detector.detections(regions.latents, regions), label_free=True)}
        else:
            if objects is not None:
                here = objects[done : done + len(images)]
                old = old_regions(regions.boxes, here, old_classes=methods.old_classes)
            others = None if previous is None or old is None else outputs_on(previous, images, regions)
            found = methods.predict(detector, regions, old=old, previous=others)
        for name, each in found.items():
            collected.setdefault(name, Collected(each.label_free, each.gated)).add(
                each.detections, each.weights, old=old
            )
        done += len(images)
    if objects is not None and done != len(objects):
        raise EvaluationError(f"there are {done} images, but annotations of {len(objects)}")
    return collected


def outputs_on(detector: Detector, images: list[Tensor], regions: Regions) -> RoiOutputs:
    """Return a detector's outputs for regions that another one proposed, through its own backbone.

    Raises:
        EvaluationError: The two detectors do not resize images alike.
    """
    seen, _ = detector.transform(images)
    if [tuple(size) for size in seen.image_sizes] != [tuple(size) for size in regions.image_sizes]:
        raise EvaluationError("the two detectors resize images to different sizes: make them with the same settings")
    return detector.roi_outputs(detector.features(seen.tensors), regions.rois, seen.image_sizes)
