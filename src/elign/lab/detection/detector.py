"""The detector: torchvision's Faster R-CNN on a C4 network, opened up for learners and for changes of its latents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import fastrcnn_loss
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.models.detection.transform import resize_boxes

from elign.lab.detection.c4_networks import DETECTORS, Backbone, BoxHead, DetectorSettings, RegionPool, settings_of
from elign.lab.detection.data import Targets
from elign.utils.errors import ElignError, OptionError

# Of Fast R-CNN (R. Girshick, ICCV 2015): scores start nearly equal, boxes nearly unchanged.
_SCORE_STD = 0.01
_BOX_STD = 0.001

Sizes = list[tuple[int, int]]


class DetectorUseError(ElignError, RuntimeError):
    """A detector that cannot do what is asked yet: it has no classes, or is in the wrong mode."""


class Predictor(nn.Module):
    """Two linear layers on a region's latent, as torchvision's `FastRCNNPredictor`, that grow with the classes.

    Column 0 of the scores is background, column 1 + c is class c; with `unknown` one more stands last. There is one set
    of box corrections for all columns, or one for each but the unknown's. `grow` makes new parameters, so build the
    optimiser after it; what is attached to the module stays.

    Example:
        >>> predictor = Predictor(8)
        >>> predictor.grow(5)
        >>> logits, deltas = predictor(torch.zeros(5, 8))
        >>> logits.shape, deltas.shape
        (torch.Size([5, 6]), torch.Size([5, 4]))
    """

    def __init__(self, latent_dim: int, *, class_agnostic: bool = True, unknown: bool = False) -> None:
        super().__init__()
        self.classes = 0
        self.class_agnostic = class_agnostic
        self.unknown = unknown
        self.score = _linear(latent_dim, 1 + unknown, _SCORE_STD)
        self.box = _linear(latent_dim, 4, _BOX_STD)

    def grow(self, new: int) -> None:
        """Add `new` classes behind the others, whose rows keep their values bit for bit."""
        if new < 1:
            raise OptionError(f"a head can only grow by 1 class or more, not by {new}")
        _insert_rows(self.score, new, _SCORE_STD, before_last=int(self.unknown))
        if not self.class_agnostic:
            _insert_rows(self.box, 4 * new, _BOX_STD)
        self.classes += new

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Map latents (R, D) to logits (R, 1 + classes [+ 1]) and corrections (R, 4) or (R, 4 (1 + classes))."""
        return self.score(latents), self.box(latents)


def _linear(dim: int, rows: int, std: float) -> nn.Linear:
    layer = nn.Linear(dim, rows)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


def _insert_rows(layer: nn.Linear, rows: int, std: float, *, before_last: int = 0) -> None:
    weight, bias = layer.weight.detach(), layer.bias.detach()
    place = len(weight) - before_last
    fresh = weight.new_empty(rows, weight.shape[1]).normal_(std=std)
    for name, old, added in (("weight", weight, fresh), ("bias", bias, bias.new_zeros(rows))):
        joined = torch.cat([old[:place], added, old[place:]])
        setattr(layer, name, nn.Parameter(joined, requires_grad=getattr(layer, name).requires_grad))
    layer.out_features += rows


@dataclass(frozen=True, eq=False)
class RoiOutputs:
    """The head's outputs for R regions."""

    latents: Tensor  # (R, D), the head's input
    logits: Tensor  # (R, 1 + classes), with one more column for a head with an output for the unknown
    deltas: Tensor  # box corrections, (R, 4) when they are class-agnostic, else (R, 1 + classes, 4)

    def rows(self, rows: Tensor) -> RoiOutputs:
        """Keep the outputs for these regions."""
        return RoiOutputs(self.latents[rows], self.logits[rows], self.deltas[rows])


@dataclass(frozen=True, eq=False)
class Look:
    """One pass over training images, down to the head."""

    images: ImageList  # resized, normalised and batched; a teacher gets the same
    features: Tensor  # of the backbone, (B, C, h, w)
    objectness: Tensor  # raw output of the region proposal network, (B, A, h, w)
    region_deltas: Tensor  # its raw box corrections, (B, 4 A, h, w)
    region_losses: dict[str, Tensor]  # its losses, "objectness" and "region_box"
    proposals: list[Tensor]  # of each image, (P, 4)
    proposal_scores: list[Tensor]  # their objectness as a probability, (P,)
    rois: list[Tensor]  # the sampled regions of each image, out of proposals and annotated boxes
    labels: Tensor  # 0 for background, 1 + c for class c, (R,)
    regression_targets: Tensor  # the right box corrections, (R, 4); without meaning for background
    outputs: RoiOutputs  # of the sampled regions


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of some images at test, and their latents; annotations have no part in it."""

    rois: list[Tensor]  # of each image, in the frame of the resized image
    boxes: list[Tensor]  # the same in the frame of the image that was given
    latents: Tensor  # (R, D), all images one after the other
    image_sizes: Sizes  # (height, width) of each resized image
    original_sizes: Sizes  # (height, width) of each image that was given


def roi_losses(look: Look, labels: Tensor | None = None) -> dict[str, Tensor]:
    """Return the losses of the head on the sampled regions, "classification" and "box", as torchvision defines them.

    Cross entropy, and smooth L1 with beta 1/9 over the regions on objects, divided by the number of all regions
    (Detectron2, which iOD and ELI were run with, has plain L1 there). `labels` (R,) replace those of the look in the
    cross entropy (ORE).
    """
    deltas = columns_of(look.outputs.deltas, look.outputs.logits.shape[1])
    classification, box = fastrcnn_loss(look.outputs.logits, deltas, [look.labels], [look.regression_targets])
    if labels is not None:
        classification = F.cross_entropy(look.outputs.logits, labels)
    return {"classification": classification, "box": box}


def columns_of(deltas: Tensor, columns: int) -> Tensor:
    """Bring box corrections into torchvision's layout, (R, 4 columns); class-agnostic ones are repeated."""
    flat = deltas.flatten(1)
    return flat.repeat(1, columns) if flat.shape[1] == 4 else flat


class Detector(FasterRCNN):  # type: ignore[misc]  # torchvision has no types
    """Faster R-CNN with one feature map, and a latent for each region, from which the head predicts classes and boxes.

    Images are (3, H, W) float tensors from 0 to 1 of any sizes, boxes (N, 4) as x1, y1, x2, y2 in pixels, labels 1 + c
    for class c. It begins without classes: `grow` before anything else.
    """

    def __init__(self, backbone: Backbone, box_head: BoxHead, settings: DetectorSettings) -> None:
        if min(settings.min_size) < 4 * backbone.stride:
            raise OptionError(
                f"min_size must be at least {4 * backbone.stride} for features of stride {backbone.stride}, "
                f"got {min(settings.min_size)}"
            )
        head = Predictor(box_head.latent_dim, class_agnostic=settings.class_agnostic_boxes, unknown=settings.unknown)
        super().__init__(
            backbone,
            min_size=settings.min_size,
            max_size=settings.max_size,
            # Padding to more than the stride would only cost time.
            size_divisible=backbone.stride,
            rpn_anchor_generator=AnchorGenerator((settings.anchors,), (settings.anchor_ratios,)),
            rpn_pre_nms_top_n_train=settings.proposals_train[0],
            rpn_post_nms_top_n_train=settings.proposals_train[1],
            rpn_pre_nms_top_n_test=settings.proposals_test[0],
            rpn_post_nms_top_n_test=settings.proposals_test[1],
            rpn_nms_thresh=settings.region_nms,
            rpn_batch_size_per_image=settings.region_samples,
            box_roi_pool=RegionPool(settings.pool, stride=backbone.stride, samples=settings.pool_samples),
            box_head=box_head,
            box_predictor=head,
            box_score_thresh=settings.score_threshold,
            box_nms_thresh=settings.nms,
            box_detections_per_img=settings.detections_per_image,
            box_batch_size_per_image=settings.rois,
            box_positive_fraction=settings.positive_share,
        )
        self.latent_dim = box_head.latent_dim

    @property
    def predictor(self) -> Predictor:
        """The head, `roi_heads.box_predictor`."""
        return cast(Predictor, self.roi_heads.box_predictor)

    @property
    def classes(self) -> int:
        """How many classes the head has."""
        return self.predictor.classes

    @property
    def unknown_label(self) -> int | None:
        """The label of objects of classes that it was not taught, if the head has one."""
        return 1 + self.classes if self.predictor.unknown else None

    def grow(self, new: int) -> None:
        """Add `new` classes behind the others; everything that was learned stays, bit for bit."""
        self.predictor.grow(new)

    def forward(self, images: list[Tensor], targets: Targets | None = None) -> Any:
        """Return named losses in training mode, detections in evaluation mode, where targets are ignored."""
        if not self.training:
            regions = self.regions(images)
            return self.detections(regions.latents, regions)
        if targets is None:
            raise DetectorUseError("a detector in training mode needs targets; call .eval() on it for detections")
        look = self.look(images, targets)
        return {**look.region_losses, **roi_losses(look)}

    def look(self, images: list[Tensor], targets: Targets) -> Look:
        """Pass annotated images through the detector, down to the head.

        Sizes and numbers of proposals are those of the mode the detector is in; random numbers are drawn in the order
        torchvision draws them, so its own losses are these.
        """
        self._require_classes()
        batch, resized = self.transform(images, targets)
        for number, target in enumerate(resized):
            box = target["boxes"]
            if box.dim() != 2 or box.shape[1] != 4 or bool((box[:, 2:] <= box[:, :2]).any()):
                wanted = f"boxes of image {number} must be (N, 4) with x1 < x2 and y1 < y2"
                raise OptionError(f"{wanted}, got {box.tolist()}")
        features = self.features(batch.tensors)
        objectness, deltas = self.region_outputs(features)
        proposals, scores = self._decode(batch, objectness, deltas)
        region_losses = self._region_losses(batch, objectness, deltas, resized)
        rois, _, labels, regression_targets = self.roi_heads.select_training_samples(proposals, resized)
        return Look(
            images=batch,
            features=features,
            objectness=objectness,
            region_deltas=deltas,
            region_losses=region_losses,
            proposals=proposals,
            proposal_scores=scores,
            rois=rois,
            labels=torch.cat(labels),
            regression_targets=torch.cat(regression_targets),
            outputs=self.roi_outputs(features, rois, batch.image_sizes),
        )

    def features(self, images: Tensor) -> Tensor:
        """Map batched, transformed images (`Look.images.tensors`) to the feature map (B, C, h, w)."""
        return cast(Tensor, self.backbone(images))

    def region_outputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return raw objectness (B, A, h, w) and box corrections (B, 4 A, h, w) of the region proposal network."""
        (objectness,), (deltas,) = self.rpn.head([features])
        return objectness, deltas

    def propose(self, images: ImageList, features: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return proposals of each image and their objectness probability, strongest first, after suppression."""
        return self._decode(images, *self.region_outputs(features))

    def roi_outputs(self, features: Tensor, rois: list[Tensor], image_sizes: Sizes) -> RoiOutputs:
        """Return latents, logits and box corrections of regions."""
        self._require_classes()
        latents = self._latents(features, rois, image_sizes)
        logits, deltas = self.roi_heads.box_predictor(latents)
        if not self.predictor.class_agnostic:
            deltas = deltas.unflatten(1, (-1, 4))
        return RoiOutputs(latents=latents, logits=logits, deltas=deltas)

    def regions(self, images: list[Tensor]) -> Regions:
        """Return the first half of a test: proposals and their latents, under the caller's gradient mode."""
        if self.training:
            raise DetectorUseError("regions() is for tests: call .eval() on the detector first")
        original_sizes: Sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        batch, _ = self.transform(images)
        features = self.features(batch.tensors)
        rois, _ = self.propose(batch, features)
        sizes = zip(rois, batch.image_sizes, original_sizes, strict=True)
        return Regions(
            rois=rois,
            boxes=[resize_boxes(boxes, resized, original) for boxes, resized, original in sizes],
            latents=self._latents(features, rois, batch.image_sizes),
            image_sizes=batch.image_sizes,
            original_sizes=original_sizes,
        )

    def detections(self, latents: Tensor, regions: Regions) -> Targets:
        """Return the second half of a test: detections from latents of these regions, possibly changed ones.

        For each image "boxes" in the frame of the image that was given, "labels" (1 + c) and "scores". An aligner
        attached to `roi_heads.box_predictor` acts here.
        """
        self._require_classes()
        logits, deltas = self.roi_heads.box_predictor(latents)
        return self.detections_from(logits, deltas, regions)

    def detections_from(self, logits: Tensor, deltas: Tensor, regions: Regions) -> Targets:
        """Return detections from outputs of the head (or of several); corrections as in `RoiOutputs` or flat."""
        # Under autocast the head gives 16 bits, too few for places in an image.
        logits, deltas = (values.to(regions.rois[0]) for values in (logits, deltas))
        logits = self.class_logits(logits)
        boxes, scores, labels = self.roi_heads.postprocess_detections(
            logits, columns_of(deltas, logits.shape[1]), regions.rois, regions.image_sizes
        )
        return [
            {"boxes": resize_boxes(box, resized, original), "labels": label, "scores": score}
            for box, label, score, resized, original in zip(
                boxes, labels, scores, regions.image_sizes, regions.original_sizes, strict=True
            )
        ]

    def class_logits(self, logits: Tensor) -> Tensor:
        """Return logits of background and classes: the last one, of the unknown, if there is one, joins the former.

        The classes' probabilities do not change, and the unknown takes no place among the strongest detections.
        """
        if logits.shape[1] == 1 + self.classes:
            return logits
        nothing = logits[:, [0, -1]].logsumexp(dim=1, keepdim=True)
        return torch.cat([nothing, logits[:, 1:-1]], dim=1)

    def warp_parameters(self) -> list[nn.Parameter]:
        """Return the weight of the last convolution of the box head, which iOD learns by its own rule."""
        return [self.roi_heads.box_head.last_convolution.weight]

    def _latents(self, features: Tensor, rois: list[Tensor], image_sizes: Sizes) -> Tensor:
        pooled = self.roi_heads.box_roi_pool({"0": features}, rois, image_sizes)
        return cast(Tensor, self.roi_heads.box_head(pooled))

    def _decode(self, images: ImageList, objectness: Tensor, deltas: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        anchors = self._anchors(images, objectness)
        scores, corrections = (
            values.detach().to(anchors[0]) for values in concat_box_prediction_layers([objectness], [deltas])
        )
        # Regions are taken as given from here on: no gradient flows through where they lie.
        boxes = self.rpn.box_coder.decode(corrections, anchors).view(len(anchors), -1, 4)
        proposals, probabilities = self.rpn.filter_proposals(boxes, scores, images.image_sizes, [objectness[0].numel()])
        return proposals, probabilities

    def _anchors(self, images: ImageList, outputs: Tensor) -> list[Tensor]:
        # Torchvision makes them in the number type of the features, but 16 bits are too few for places in an image.
        shape = images.tensors.new_empty(1, 1, *outputs.shape[-2:])
        return cast(list[Tensor], self.rpn.anchor_generator(images, [shape]))

    def _region_losses(
        self, images: ImageList, objectness: Tensor, deltas: Tensor, targets: Targets
    ) -> dict[str, Tensor]:
        anchors = self._anchors(images, objectness)
        labels, matched = self.rpn.assign_targets_to_anchors(anchors, targets)
        wanted = self.rpn.box_coder.encode(matched, anchors)
        scores, corrections = concat_box_prediction_layers([objectness], [deltas])
        loss, box_loss = self.rpn.compute_loss(scores, corrections, labels, wanted)
        return {"objectness": loss, "region_box": box_loss}

    def _require_classes(self) -> None:
        if self.classes == 0:
            raise DetectorUseError("this detector has no classes yet: call grow() with the first task's number of them")


def make_detector(name: str, *, weights: Path | str | None = None, **changes: Any) -> Detector:
    """Make a detector without classes; `grow` it before use.

    Args:
        name: One of `DETECTORS`.
        weights: Of its network: a file with a state dict of torchvision's classification network, or "torchvision" to
            download one. None for freshly drawn weights.
        changes: Fields of `DetectorSettings` that are not the detector's own.

    Raises:
        OptionError: There is no such detector, or its network does not fit the settings.
        ConfigError: There is no such field, or a number is outside its range.
        WeightsError: The weights do not fit it.

    Example:
        >>> detector = make_detector("tiny-c4", min_size=64)
        >>> detector.grow(3)
        >>> detector.latent_dim, detector.classes
        (128, 3)
    """
    settings = settings_of(name, **changes)
    return Detector(*DETECTORS[name].make(settings, weights), settings)
