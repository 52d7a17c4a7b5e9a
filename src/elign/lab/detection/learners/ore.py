"""ORE: label the likeliest unknown objects while learning, then replay (K. J. Joseph et al., CVPR 2021)."""

from __future__ import annotations

from types import MappingProxyType

from torch import Tensor

from elign.lab.detection.learners.learner import FineTuned
from elign.lab.detection.learners.unknown import label_unknown
from elign.lab.detection.models.passes import Look, roi_losses
from elign.utils.errors import OptionError


class Ore(FineTuned):
    """The losses of Faster R-CNN with an "unknown" class; after each task but the first, fine-tuning on replay.

    While the tasks after the first are learned, the `unknowns` background regions of each image with the highest
    objectness are labelled "unknown", so that old objects, whose annotations are gone, are not taught to be
    background. Not in the first task and not in fine-tuning, as in the published configurations for VOC. The detector
    must have been made with `unknown=True`.

    Deviations: contrastive clustering is off, as in these configurations. Identifying unknown objects by energy is no
    part of learning; an evaluation may do it with `UnknownByEnergy`. Regions labelled "unknown" teach no box: they have
    no true one (in the published code they are drawn to the box of any annotated object, by oversight). An image
    without background regions gets no unknown one (there it would lose the label of an object).

    `fine_tune_share` is that of the 10+10 split: 8000 iterations of learning, 10000 of fine-tuning.
    """

    name = "ore"
    plain_first_task = False  # its detector has one more output
    needs_unknown = True
    defaults = MappingProxyType({"unknowns": 1, "fine_tune_share": 0.56, "fine_tune_rate": 1.0})

    def grow(self, new: int) -> None:
        """As every learner; the detector needs an output for unknown objects."""
        super().grow(new)
        if self.model.unknown_label is None:
            raise OptionError("learner ore needs a detector with an output for unknown objects: set unknown to true")

    def detection_terms(self, look: Look) -> dict[str, Tensor]:
        """The losses of Faster R-CNN, with labels for unknown objects where they are given."""
        labels, unknown = None, self.model.unknown_label
        if self.teacher is not None and self.stage.name == "learn" and unknown is not None:
            labels = label_unknown(
                look.labels,
                look.roi_objectness,
                [len(rois) for rois in look.rois],
                unknown=unknown,
                top=self.options["unknowns"],
            )
        return {**look.region_losses, **roi_losses(look, labels)}
