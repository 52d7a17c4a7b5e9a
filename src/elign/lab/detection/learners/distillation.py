"""Fine-tuning, joint training, ILOD and Faster ILOD, with the distances to a teacher."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from elign.lab.detection.detector import Detector, Look
from elign.lab.detection.learners import DETECTION_LEARNERS, DetectionLearner
from elign.lab.learners.base import LearnerOptions


def draw_lowest(values: Tensor, *, pool: int, count: int) -> Tensor:
    """Draw places of `count` values from the `pool` lowest; of fewer values, as many as there are."""
    lowest = values.topk(min(pool, len(values)), largest=False).indices
    return lowest[torch.randperm(len(lowest))[:count].to(lowest.device)]


def centred_logit_distance(student: Tensor, teacher: Tensor, *, old: int) -> Tensor:
    """Return ILOD's term for logits: mean of (ȳ_T - ȳ_S)², where ȳ is a region's logits minus their mean.

    Over regions and the logits of background and old classes (K. Shmelkov et al., ICCV 2017; C. Peng et al., "Faster
    ILOD", 2020). The mean that is taken off is that of these logits, in the student too.
    Logits are (R, 1 + classes or more) of the student and (R, 1 + old or more) of the teacher.
    """
    ours, theirs = student[:, : 1 + old], teacher.detach()[:, : 1 + old]
    if len(ours) == 0:
        return student.sum() * 0
    return F.mse_loss(ours - ours.mean(dim=1, keepdim=True), theirs - theirs.mean(dim=1, keepdim=True))


def delta_distance(student: Tensor, teacher: Tensor, *, old: int, smooth: bool) -> Tensor:
    """Return the term for boxes: |t_T - t_S| of the old classes' box deltas, smooth L1 (ILOD) or squares (Faster ILOD).

    Summed over the four coordinates, mean over regions and old classes (K. Shmelkov et al., ICCV 2017, whose code takes
    smooth L1 unless told otherwise; C. Peng et al., 2020). Smooth L1 has its corner at 1. Deltas that all classes share
    count as those of one class: the papers have deltas for each class. Deltas are (R, 4) or (R, 1 + classes, 4).
    """
    ours, theirs = old_deltas(student, old=old), old_deltas(teacher.detach(), old=old)
    if len(ours) == 0:
        return student.sum() * 0
    distance = F.smooth_l1_loss if smooth else F.mse_loss
    return distance(ours, theirs, reduction="none").sum(dim=-1).mean()


def old_deltas(deltas: Tensor, *, old: int) -> Tensor:
    """Return the box deltas of old classes, (R, old, 4); of class-agnostic deltas all there are, (R, 1, 4)."""
    return deltas.unsqueeze(1) if deltas.ndim == 2 else deltas[:, 1 : 1 + old]


def lost_features(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Faster ILOD's term for feature maps: mean of max(0, F̄_T - F̄_S) (C. Peng et al., 2020).

    F̄ is the map of an image minus the mean over all its entries. Only activations that became weaker than the teacher's
    count: new ones are free to come. The published code takes the mean over the batch, which is one image there.
    """
    ours, theirs = student.flatten(1), teacher.detach().flatten(1)
    return F.relu(theirs - theirs.mean(dim=1, keepdim=True) - ours + ours.mean(dim=1, keepdim=True)).mean()


def lost_regions(
    objectness: Tensor, deltas: Tensor, teacher_objectness: Tensor, teacher_deltas: Tensor, *, threshold: float
) -> Tensor:
    """Return Faster ILOD's term for the region proposal network (C. Peng et al., 2020).

    mean of max(0, o_T - o_S)² + [o_T - o_S > `threshold`] ||r_T - r_S||² over all anchors, where o is the raw
    objectness (B, A, h, w) and r the four deltas of an anchor (B, 4A, h, w): the anchors of which the teacher is surer
    than the student.
    """
    gap = teacher_objectness.detach() - objectness
    batch, channels, height, width = deltas.shape
    apart = (teacher_deltas.detach() - deltas).reshape(batch, channels // 4, 4, height, width).square().sum(dim=2)
    return (F.relu(gap).square() + (gap.detach() > threshold) * apart).mean()


@DETECTION_LEARNERS.register("finetune")
class FineTune(DetectionLearner):
    """The losses of Faster R-CNN on the new classes, and nothing against forgetting ("standard training")."""


@DETECTION_LEARNERS.register("joint")
class Joint(DetectionLearner):
    """The losses of Faster R-CNN on all images and objects of all classes seen so far: an upper bound."""

    sees_all_data = True


@DETECTION_LEARNERS.register("ilod")
class Ilod(DetectionLearner):
    """The losses of Faster R-CNN + `logits` times the distance of centred logits + `boxes` times that of box deltas.

    Both are taken on `drawn` proposals of each image, by chance out of the `pool` ones in which the teacher sees least
    background (K. Shmelkov et al., ICCV 2017); see `centred_logit_distance` and `delta_distance`.

    Deviations: the paper has Fast R-CNN on EdgeBoxes proposals, here the proposals are those of the teacher's region
    proposal network, which therefore has no term of its own, and the student's region proposal network learns, too.
    Box deltas may be shared by all classes. The published code's commands use sigmoid outputs and raw logits; here, as
    in the paper, softmax and centred logits.
    """

    class Options(LearnerOptions):
        """Weights of the terms, and how proposals are drawn."""

        logits: NonNegativeFloat = 1.0
        boxes: NonNegativeFloat = 1.0
        drawn: PositiveInt = 64
        pool: PositiveInt = 128

    options: Options

    def memory_terms(self, look: Look, teacher: Detector, features: Tensor) -> dict[str, Tensor]:
        """Return distances to the teacher's logits and boxes."""
        options, old, sizes = self.options, self.old_classes, look.images.image_sizes
        with torch.no_grad():
            proposals, _ = teacher.propose(look.images, features)
            theirs = teacher.roi_outputs(features, proposals, sizes)
            background = theirs.logits[:, : 1 + old].softmax(dim=1)[:, 0]
            rois, places, start = [], [], 0
            for boxes in proposals:
                chosen = draw_lowest(background[start : start + len(boxes)], pool=options.pool, count=options.drawn)
                rois.append(boxes[chosen])
                places.append(start + chosen)
                start += len(boxes)
            drawn = torch.cat(places)
        ours = self.model.roi_outputs(look.features, rois, sizes)
        return {
            "old_logits": options.logits * centred_logit_distance(ours.logits, theirs.logits[drawn], old=old),
            "old_boxes": options.boxes * delta_distance(ours.deltas, theirs.deltas[drawn], old=old, smooth=True),
        }


@DETECTION_LEARNERS.register("faster-ilod")
class FasterIlod(DetectionLearner):
    """The losses of Faster R-CNN + `features`, `regions`, `logits` and `boxes` times four distances to the teacher.

    Logits and boxes are compared on `drawn` of the teacher's `pool` best proposals of each image, by chance (C. Peng et
    al., 2020). Deltas of an anchor count where the teacher's raw objectness is higher by more than `threshold`.

    Deviation: box deltas may be shared by all classes; the paper has deltas for each class.
    """

    class Options(Ilod.Options):
        """Weights of two more terms, and how anchors are chosen."""

        features: NonNegativeFloat = 1.0
        regions: NonNegativeFloat = 1.0
        threshold: NonNegativeFloat = 0.1

    options: Options

    def memory_terms(self, look: Look, teacher: Detector, features: Tensor) -> dict[str, Tensor]:
        """Return distances to the teacher's features, region proposals, logits and boxes."""
        options, old, sizes = self.options, self.old_classes, look.images.image_sizes
        with torch.no_grad():
            objectness, deltas = teacher.region_outputs(features)
            rois = [
                boxes[draw_lowest(-scores, pool=options.pool, count=options.drawn)]
                for boxes, scores in zip(*teacher.propose(look.images, features), strict=True)
            ]
            theirs = teacher.roi_outputs(features, rois, sizes)
        ours = self.model.roi_outputs(look.features, rois, sizes)
        regions = lost_regions(look.objectness, look.region_deltas, objectness, deltas, threshold=options.threshold)
        return {
            "old_features": options.features * lost_features(look.features, features),
            "old_regions": options.regions * regions,
            "old_logits": options.logits * centred_logit_distance(ours.logits, theirs.logits, old=old),
            "old_boxes": options.boxes * delta_distance(ours.deltas, theirs.deltas, old=old, smooth=False),
        }
