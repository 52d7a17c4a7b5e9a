"""The methods of detection: pairs of region latents, and every way to predict from the regions of test images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torchvision.ops import box_iou

from elign.attachments import SplitOutputs
from elign.gates import Always, ByEnergy, ByMask, ByPrediction, Gate
from elign.lab.config.schema import EnergyConfig
from elign.lab.detection.average_precision import Collected
from elign.lab.detection.data import Batches, Objects, Targets
from elign.lab.detection.detector import Detector, Regions, RoiOutputs
from elign.lab.environment import derive_seed
from elign.lab.evaluation.inputs import EvaluationError
from elign.lab.evaluation.methods import METHODS
from elign.lab.evaluation.task_evaluation import fit_backward
from elign.utils.errors import OptionError

_OVERLAP = 0.5
"""Least intersection over union of a region with the object that it lies on."""


def old_regions(boxes: Sequence[Tensor], objects: Sequence[Objects], *, old_classes: int) -> Tensor:
    """Return which regions of all images, (R_i, 4) in the frame of each, match an object of an old class: (R,) bool.

    A region matches the object that it overlaps most with, of whatever class (the first one, if there are several).
    `objects` are those of the classes seen so far, difficult ones included.

    The authors' code gives the model more than this: it appends the true boxes to the proposals and draws among the
    proposals by how they match. Here regions are what the model proposed, and only whether they are old is told.
    """
    if len(boxes) != len(objects):
        raise EvaluationError(f"there are regions of {len(boxes)} images, but objects on {len(objects)}")
    old = [torch.zeros(len(regions), dtype=torch.bool, device=regions.device) for regions in boxes]
    for mine, regions, image in zip(old, boxes, objects, strict=True):
        if len(image):
            best, which = _overlaps(regions, image.boxes)
            mine.copy_((best >= _OVERLAP) & (image.labels.to(regions.device)[which] < old_classes))
    return torch.cat(old)


def _overlaps(regions: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest overlap of each region with any of the boxes, and with which one; there must be one."""
    best, which = box_iou(regions.double(), boxes.to(regions).double()).nan_to_num(0.0).max(dim=1)
    return best, which


RegionKind = Literal["objects", "others", "all"]


@torch.no_grad()
def region_pairs(
    previous: Detector,
    current: Detector,
    batches: Batches,
    *,
    regions: RegionKind = "objects",
    shared_backbone: bool = False,
    seed: int,
    per_image: int = 128,
) -> tuple[Tensor, Tensor]:
    """Return latents of regions of the new task's images under both models, row by row of the same region: (P, D).

    Regions on objects are the annotated boxes and those of the current model's proposals that overlap one of them; the
    other proposals lie on background and on what is not annotated, old objects among it. Objects are as published; but
    the previous model has learned that these are background, and an aligner that learns from them moves old objects
    there, too.

    The authors' code collects while it trains the current model further, whose weights drift away from those that are
    evaluated; here both models are in evaluation mode (and stay in it) and unchanged. It also gives both heads the
    current backbone's features, so that drift of the backbone is not in the pairs; only `shared_backbone` does that.

    Args:
        previous: The detector before the task.
        current: The detector after it.
        batches: Images of the new task, and their targets with "boxes" of new classes.
        regions: `objects` of the new classes, all proposals but those (`others`), or both (`all`).
        shared_backbone: Whether the previous model's head sees the current backbone's features.
        seed: Of the choice where an image has more regions than `per_image`.
        per_image: Most regions of an image; 128 is a quarter of those that the head of R50-C4 learns from.

    Raises:
        EvaluationError: There is no box on any image.
        OptionError: `per_image` is below 1, or `regions` is something else.
    """
    if regions not in get_args(RegionKind) or per_image < 1:
        kinds = ", ".join(get_args(RegionKind))
        raise OptionError(f"regions must be one of {kinds} and per_image at least 1, got {regions!r} and {per_image}")
    previous.eval(), current.eval()
    generator = torch.Generator().manual_seed(seed)
    pairs: list[tuple[Tensor, Tensor]] = []
    for images, targets in batches:
        seen, placed = current.transform(images, [{"boxes": target["boxes"]} for target in targets])
        features = current.features(seen.tensors)
        rois = []
        for proposals, target in zip(current.propose(seen, features)[0], placed, strict=True):
            found = _of_kind(regions, proposals, target["boxes"].to(proposals))
            if len(found) > per_image:
                drawn = torch.randperm(len(found), generator=generator)[:per_image].sort().values
                found = found[drawn.to(found.device)]
            rois.append(found)
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


def _of_kind(kind: RegionKind, proposals: Tensor, boxes: Tensor) -> Tensor:
    if not len(boxes):
        return boxes
    best, _ = _overlaps(proposals, boxes)
    objects, others = torch.cat([boxes, proposals[best >= _OVERLAP]]), proposals[best < _OVERLAP]
    return {"objects": objects, "others": others, "all": torch.cat([objects, others])}[kind]


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


class RegionPrediction(NamedTuple):
    """What one method finds on some images."""

    detections: Targets  # of each image, as `Detector.detections` gives them
    weights: Tensor | None = None
    """How far each region was moved, 0 to 1, (R,); None if the method does not move regions."""


class RegionMethods:
    """The methods of one task: ELI, its baselines and its gates, fitted on pairs of region latents.

    Args:
        previous: Latents of regions of the new task's images under the previous detector, (P, D).
        current: The same under the current one; `region_pairs` gives both.
        old_classes: Number of classes before the task.
        settings: Of the aligners.
        seed: Of everything random.
        names: Methods to apply: those of `REGION_METHODS`, or any `<aligner>/oracle`, `<aligner>/all`,
            `<aligner>/old-classes` and `eli/<gate>` that is in `METHODS`.
    """

    def __init__(
        self,
        previous: Tensor,
        current: Tensor,
        *,
        old_classes: int,
        settings: EnergyConfig,
        seed: int,
        names: Sequence[str] = REGION_METHODS,
    ) -> None:
        self.aligners = fit_backward(previous, current, old=None, settings=settings, seed=seed)
        self.gates: dict[str, Gate] = {
            "all": Always(),
            # Output 0 is the background.
            "by-prediction": ByPrediction(old_classes=list(range(1, 1 + old_classes))),
            "by-energy": ByEnergy(**settings.options_of(ByEnergy)).fit(self.aligners["eli"], current, None),
        }
        self.old_classes = old_classes
        self.names = tuple(names)
        self._seed = seed
        for name in self.names:
            aligner, _, how = name.partition("/")
            moves = aligner in self.aligners and how in ("oracle", _BY_CLASS, *self.gates)
            if name not in METHODS or not (moves or name in _UNMOVED):
                raise OptionError(f"there is no method of regions {name!r}; there are {', '.join(REGION_METHODS)}")
        self.start()

    def start(self) -> None:
        """Start a new test set: the noise of aligners, if they use any, starts again."""
        self.noise = {
            name: torch.Generator().manual_seed(derive_seed(self._seed, f"noise, {name}")) for name in self.aligners
        }

    @torch.no_grad()
    def predict(
        self, detector: Detector, regions: Regions, *, old: Tensor | None = None, previous: RoiOutputs | None = None
    ) -> dict[str, RegionPrediction]:
        """Apply all methods to the regions that a detector in evaluation mode proposes on some images.

        `old` says which regions lie on objects of old classes, (R,) bool, `previous` are the previous detector's
        outputs for the same regions. What needs one that is None is left out.
        """
        latents, head, gates = regions.latents, detector.roi_heads.box_predictor, self.gates
        if old is not None:
            gates = {**gates, "oracle": ByMask(old)}
        moved: dict[str, Tensor] = {}
        found: dict[str, RegionPrediction] = {}
        for name in self.names:
            if (old is None and METHODS[name].uses_labels) or (previous is None and name == "previous-model"):
                continue
            aligner, _, how = name.partition("/")
            # All regions once per aligner: many methods differ in their weights only.
            if how and aligner not in moved:
                moved[aligner] = self.aligners[aligner].align(latents, generator=self.noise[aligner])
            weights = None
            if name == "base":
                (logits, deltas), weights = head(latents), latents.new_zeros(len(latents))
            elif not how:
                logits, deltas = self._masked(detector, latents, old, previous if name == "previous-model" else None)
            elif how == _BY_CLASS:
                logits, deltas = self._split(detector, latents, moved[aligner])
            else:
                weights = gates[how](latents, head=head, aligner=self.aligners[aligner]).to(latents.dtype)
                # lerp is exact at both ends: weight 0 leaves a latent unchanged, bit for bit.
                logits, deltas = head(torch.lerp(latents, moved[aligner], weights.unsqueeze(1)))
            found[name] = RegionPrediction(detector.detections_from(logits, deltas, regions), weights)
        return found

    def _split(self, detector: Detector, latents: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head's outputs, those of old classes from moved latents."""
        old = SplitOutputs(range(1, 1 + self.old_classes), background=0)
        outputs = [detector.roi_heads.box_predictor(z) for z in (latents, moved)]
        logits, deltas = old.merge(*((detector.class_logits(logits), deltas) for logits, deltas in outputs))
        return logits, deltas

    def _masked(
        self, detector: Detector, latents: Tensor, old: Tensor | None, previous: RoiOutputs | None
    ) -> tuple[Tensor, Tensor]:
        """Let regions on old objects choose among old classes, by the current or the previous detector's outputs."""
        assert old is not None  # noqa: S101  (for the type checker: these methods use labels)
        logits, deltas = detector.roi_heads.box_predictor(latents)
        logits, deltas = logits.clone(), deltas.flatten(1).clone()
        old = old.to(logits.device)
        # Background and old classes remain; the unknown, which some heads end with, counts as background.
        old_end, new_end = 1 + self.old_classes, 1 + detector.classes
        logits[:, old_end:new_end] = logits[:, old_end:new_end].masked_fill(old.unsqueeze(1), -torch.inf)
        if previous is not None:
            theirs = previous.logits.to(logits)[old]
            logits[old, :old_end], logits[old, new_end:] = theirs[:, :old_end], theirs[:, old_end:]
            # Either one box for all classes, or one for each column, of which the first ones are the previous model's.
            boxes = previous.deltas.to(deltas).flatten(1)[old]
            deltas[old, : boxes.shape[1]] = boxes
        return logits, deltas


@torch.no_grad()
def predict_images(
    detector: Detector,
    batches: Iterable[list[Tensor]],
    methods: RegionMethods | None,
    *,
    objects: Sequence[Objects] | None = None,
    previous: Detector | None = None,
) -> dict[str, Collected]:
    """Apply all methods to all test images; both detectors are put into evaluation mode.

    Args:
        detector: After the task.
        batches: All test images, as the detector takes them.
        methods: Of the task; None at the first task, where there is nothing but `base`.
        objects: For the oracles, of each image, of the classes seen so far. None: only label-free methods are applied.
        previous: The detector before the task, for `previous-model`. None: without it.
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
            found = {"base": RegionPrediction(detector.detections(regions.latents, regions))}
        else:
            if objects is not None:
                here = objects[done : done + len(images)]
                old = old_regions(regions.boxes, here, old_classes=methods.old_classes)
            others = None if previous is None or old is None else outputs_on(previous, images, regions)
            found = methods.predict(detector, regions, old=old, previous=others)
        for name, (detections, weights) in found.items():
            method = Collected(label_free=not METHODS[name].uses_labels, gated="/by-" in name)
            collected.setdefault(name, method).add(detections, weights, old=old)
        done += len(images)
    if objects is not None and done != len(objects):
        raise EvaluationError(f"there are {done} images, but annotations of {len(objects)}")
    return collected


def outputs_on(detector: Detector, images: list[Tensor], regions: Regions) -> RoiOutputs:
    """Return a detector's outputs for regions that another one proposed, through its own backbone."""
    seen, _ = detector.transform(images)
    if [tuple(size) for size in seen.image_sizes] != [tuple(size) for size in regions.image_sizes]:
        raise EvaluationError("the two detectors resize images to different sizes: make them with the same settings")
    return detector.roi_outputs(detector.features(seen.tensors), regions.rois, seen.image_sizes)
