"""Fine-tuning, joint training, ILOD and Faster ILOD."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from elign.lab.detection.learners.base import (
    DETECTION_LEARNERS,
    DetectionLearner,
    centred_logit_distance,
    delta_distance,
    draw_lowest,
    lost_features,
    lost_regions,
    teacher_features,
)
from elign.lab.detection.models.detector import Detector, Look
from elign.lab.learners.base import LearnerOptions


@DETECTION_LEARNERS.register("finetune")
class FineTune(DetectionLearner):
    """The losses of Faster R-CNN on the new classes, and nothing against forgetting ("standard training")."""


@DETECTION_LEARNERS.register("joint")
class Joint(DetectionLearner):
    """The losses of Faster R-CNN on all images and objects of all classes seen so far: an upper bound.

    It continues from the detector of the task before, with all data.
    """

    sees_all_data = True


@DETECTION_LEARNERS.register("ilod")
class Ilod(DetectionLearner):
    """The losses of Faster R-CNN + `logits` times the distance of centred logits + `boxes` times that of box deltas.

    Both are taken on `drawn` proposals of each image, by chance out of the `pool` ones in which the teacher sees least
    background; see `centred_logit_distance` and `delta_distance`.

    Deviations: the paper has Fast R-CNN on EdgeBoxes proposals, here the proposals are those of the teacher's region
    proposal network, which therefore has no term of its own, and the student's region proposal network learns, too.
    Box deltas may be shared by all classes. The published code's commands use sigmoid outputs and raw logits; here, as
    in the paper, softmax and centred logits.
    """

    class Options(LearnerOptions):
        """Weights of the two terms, and how proposals are drawn."""

        logits: NonNegativeFloat = 1.0
        boxes: NonNegativeFloat = 1.0
        drawn: PositiveInt = 64
        pool: PositiveInt = 128

    options: Options

    def memory_terms(self, look: Look, teacher: Detector) -> dict[str, Tensor]:
        """Return distances to the teacher's logits and boxes."""
        options, old, sizes = self.options, self.old_classes, look.images.image_sizes
        with torch.no_grad():
            features = teacher_features(teacher, look)
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

    Logits and boxes are compared on `drawn` of the teacher's `pool` best proposals of each image, by chance. Deltas of
    an anchor count where the teacher's raw objectness is higher by more than `threshold`.

    Deviation: box deltas may be shared by all classes; the paper has deltas for each class.
    """

    class Options(LearnerOptions):
        """Weights of the four terms, and how proposals and anchors are chosen."""

        features: NonNegativeFloat = 1.0
        regions: NonNegativeFloat = 1.0
        logits: NonNegativeFloat = 1.0
        boxes: NonNegativeFloat = 1.0
        threshold: NonNegativeFloat = 0.1
        drawn: PositiveInt = 64
        pool: PositiveInt = 128

    options: Options

    def memory_terms(self, look: Look, teacher: Detector) -> dict[str, Tensor]:
        """Return distances to the teacher's features, region proposals, logits and boxes."""
        options, old, sizes = self.options, self.old_classes, look.images.image_sizes
        with torch.no_grad():
            features = teacher_features(teacher, look)
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
