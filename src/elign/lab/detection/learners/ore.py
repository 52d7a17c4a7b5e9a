"""ORE: label the likeliest unknown objects while learning, then replay (K. J. Joseph et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from elign.lab.detection.detector import Look, roi_losses
from elign.lab.detection.learners import DETECTION_LEARNERS, FineTuned
from elign.utils.errors import OptionError


def label_unknown(labels: Tensor, objectness: Sequence[Tensor], *, unknown: int, top: int = 1) -> Tensor:
    """Label the `top` background regions of each image that look most like an object unknown (CVPR 2021, Section 4.2).

    Labels, of which 0 is background, are those of the regions of all images, (R,), objectness that of each image's.
    Where there is less background, fewer are labelled.
    """
    labels = labels.clone()
    for own, scores in zip(torch.split(labels, [*map(len, objectness)]), objectness, strict=True):
        background = (own == 0).nonzero().squeeze(1)
        own[background[scores[background].topk(min(top, len(background))).indices]] = unknown
    return labels


def sampled_objectness(look: Look) -> list[Tensor]:
    """Return the objectness of each image's sampled regions: that of the proposal which one is, 0 for other boxes."""
    triples = zip(look.rois, look.proposals, look.proposal_scores, strict=True)
    # Suppression leaves no proposal twice, so each row has at most one place.
    return [(rois[:, None] == boxes).all(dim=2).to(scores) @ scores for rois, boxes, scores in triples]


@DETECTION_LEARNERS.register("ore")
class Ore(FineTuned):
    """The losses of Faster R-CNN with an "unknown" class; after each task but the first, fine-tuning on replay.

    While the tasks after the first are learned, the `unknowns` background regions of each image with the highest
    objectness are labelled "unknown", so that old objects, whose annotations are gone, are not taught to be
    background. Not in the first task and not in fine-tuning, as in the published configurations for VOC. The detector
    must have been made with `unknown=True`.

    Deviations: contrastive clustering is off, as in these configurations. Identifying unknown objects by energy is a
    part of evaluation (`UnknownByEnergy`). Regions labelled "unknown" teach no box: they have no true one (in the
    published code they are drawn to the box of any annotated object, by oversight). An image without background regions
    gets no unknown one (there it would lose the label of an object).
    """

    plain_first_task = False  # its detector has one more output
    needs_unknown = True

    class Options(FineTuned.Options):
        """The published values; the share of fine-tuning is that of the 10+10 split: 8000 iterations, then 10000."""

        unknowns: PositiveInt = 1
        fine_tune_share: Annotated[float, Field(ge=0, le=0.95)] = 0.56

    options: Options

    def grow(self, new: int) -> None:
        """Make the detector, which needs an output for unknown objects, ready for a task of `new` classes."""
        super().grow(new)
        if self.model.unknown_label is None:
            raise OptionError("learner ore needs a detector with an output for unknown objects: set unknown to true")

    def detection_terms(self, look: Look) -> dict[str, Tensor]:
        """Return the losses of Faster R-CNN, with labels for unknown objects while a later task is learned."""
        labels, unknown, top = None, self.model.unknown_label, self.options.unknowns
        if self.teacher is not None and self.stage.name == "learn" and unknown is not None:
            labels = label_unknown(look.labels, sampled_objectness(look), unknown=unknown, top=top)
        return {**look.region_losses, **roi_losses(look, labels)}
