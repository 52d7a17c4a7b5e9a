"""Learning without Forgetting (Z. Li and D. Hoiem, ECCV 2016): the base of most corrections without exemplars."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from elign.lab.learners.base import LEARNERS, Learner, LearnerOptions, Loss, distillation


@LEARNERS.register("lwf")
class Lwf(Learner):
    """CE over the new classes + `distillation` KL(softmax(teacher / T) || softmax(student_old / T)).

    New images compete among the new classes only, as in the code that LDC, ADC and DPCR build on; the paper's own loss
    for a class-incremental model is over all classes. An exemplar of an old class, where there is one, competes among
    all classes. The head is linear.
    """

    class Options(LearnerOptions):
        """T and the weight as LDC, ADC and DPCR set them."""

        temperature: PositiveFloat = 2.0
        distillation: NonNegativeFloat = 10.0

    default_head = "linear"
    options: Options

    def forward(self, images: Tensor, labels: Tensor) -> Loss:
        """Return the loss of a batch."""
        logits = self.model(images)
        if self.teacher is None:
            return Loss({"classification": F.cross_entropy(logits, labels)}, logits)
        old = torch.arange(logits.shape[1], device=logits.device) < self.old_classes
        barred = old & (labels >= self.old_classes).unsqueeze(1)
        terms = {"classification": F.cross_entropy(logits.masked_fill(barred, -torch.inf), labels)}
        _, teacher = self._teacher_outputs(images)
        kept = distillation(logits[:, : self.old_classes], teacher, temperature=self.options.temperature)
        terms["distillation"] = self.options.distillation * kept
        return Loss(terms, logits)
