"""Faster ILOD: keep features, region proposals, logits and boxes (C. Peng, K. Zhao, B. Lovell, 2020)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from elign.lab.detection.learners.learner import DetectionLearner, teacher_features
from elign.lab.detection.learners.losses import (
    centred_logit_distance,
    delta_distance,
    draw_lowest,
    lost_features,
    lost_regions,
)
from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.passes import Look


class FasterIlod(DetectionLearner):
    """The losses of Faster R-CNN + `features`, `regions`, `logits` and `boxes` times the four terms in `losses.py`.

    Logits and boxes are compared on `drawn` of the teacher's `pool` best proposals of each image, by chance. Deltas of
    an anchor count where the teacher's raw objectness is higher by more than `threshold`.

    Deviation: box deltas may be shared by all classes; the paper has deltas for each class.
    """

    name = "faster-ilod"
    defaults = MappingProxyType(
        {"features": 1.0, "regions": 1.0, "logits": 1.0, "boxes": 1.0, "threshold": 0.1, "drawn": 64, "pool": 128}
    )

    def memory_terms(self, look: Look, teacher: Detector) -> dict[str, Tensor]:
        """Distances to the teacher's features, region proposals, logits and boxes."""
        sizes = look.images.image_sizes
        with torch.no_grad():
            features = teacher_features(teacher, look)
            objectness, deltas = teacher.region_outputs(features)
            rois = [
                boxes[draw_lowest(-scores, pool=self.options["pool"], count=self.options["drawn"])]
                for boxes, scores in zip(*teacher.propose(look.images, features), strict=True)
            ]
            read = teacher.read(features, rois, sizes)
        student = self.model.read(look.features, rois, sizes)
        terms = {
            "features": lost_features(look.features, features),
            "regions": lost_regions(
                look.objectness, look.region_deltas, objectness, deltas, threshold=self.options["threshold"]
            ),
            "logits": centred_logit_distance(student.logits, read.logits, old=self.known),
            "boxes": delta_distance(student.deltas, read.deltas, old=self.known, smooth=False),
        }
        return {f"old_{name}": self.options[name] * term for name, term in terms.items()}
