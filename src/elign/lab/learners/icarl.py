"""iCaRL as the published comparisons run it: cosine head, cross entropy and distillation of the old classes' logits.

The original (S.-A. Rebuffi et al., CVPR 2017) trains with a sigmoid loss and classifies by the nearest mean of
exemplars; that classifier is a method that evaluates the same model (`nearest-mean`), not another learner.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from elign.lab.learners.base import LEARNERS, Learner, LearnerOptions, Loss, distillation


@LEARNERS.register("icarl")
class ICarl(Learner):
    """CE + `distillation` KL(softmax(teacher / T) || softmax(student_old / T)), with T the `temperature`."""

    class Options(LearnerOptions):
        """The published values; the weight is the published 0.25 times T^2."""

        temperature: PositiveFloat = 2.0
        distillation: NonNegativeFloat = 1.0

    default_freeze_old = True
    options: Options

    def forward(self, images: Tensor, labels: Tensor) -> Loss:
        """Return the loss of a batch."""
        logits = self.model(images)
        terms = {"classification": F.cross_entropy(logits, labels)}
        if self.teacher is not None:
            _, teacher = self._teacher_outputs(images)
            kept = distillation(logits[:, : self.old_classes], teacher, temperature=self.options.temperature)
            terms["distillation"] = self.options.distillation * kept
        return Loss(terms, logits)
