"""ILOD: keep the old classes' logits and boxes on proposals (K. Shmelkov, C. Schmid, K. Alahari, ICCV 2017)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from elign.lab.detection.learners.learner import DetectionLearner, teacher_features
from elign.lab.detection.learners.losses import centred_logit_distance, delta_distance, draw_lowest
from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.passes import Look


class Ilod(DetectionLearner):
    """The losses of Faster R-CNN + `logits` times the distance of centred logits + `boxes` times that of box deltas.

    Both are taken on `drawn` proposals of each image, by chance out of the `pool` ones in which the teacher sees least
    background; see `losses.py`.

    Deviations: the paper has Fast R-CNN on EdgeBoxes proposals, here the proposals are those of the teacher's region
    proposal network, which therefore has no term of its own, and the network that proposes for the student goes on
    learning. Box deltas may be shared by all classes. The published code's commands use sigmoid outputs and raw logits;
    here, as in the paper, softmax and centred logits.
    """

    name = "ilod"
    defaults = MappingProxyType({"logits": 1.0, "boxes": 1.0, "drawn": 64, "pool": 128})

    def memory_terms(self, look: Look, teacher: Detector) -> dict[str, Tensor]:
        """Distances to the teacher's logits and boxes."""
        sizes = look.images.image_sizes
        with torch.no_grad():
            features = teacher_features(teacher, look)
            proposals, _ = teacher.propose(look.images, features)
            read = teacher.read(features, proposals, sizes)
            background = read.logits[:, : 1 + self.known].softmax(dim=1)[:, 0]
            rois, places, start = [], [], 0
            for boxes in proposals:
                chosen = self._draw(background[start : start + len(boxes)])
                rois.append(boxes[chosen])
                places.append(start + chosen)
                start += len(boxes)
            drawn = torch.cat(places)
        student = self.model.read(look.features, rois, sizes)
        logits = centred_logit_distance(student.logits, read.logits[drawn], old=self.known)
        boxes_apart = delta_distance(student.deltas, read.deltas[drawn], old=self.known, smooth=True)
        return {"old_logits": self.options["logits"] * logits, "old_boxes": self.options["boxes"] * boxes_apart}

    def _draw(self, values: Tensor) -> Tensor:
        return draw_lowest(values, pool=self.options["pool"], count=self.options["drawn"])
