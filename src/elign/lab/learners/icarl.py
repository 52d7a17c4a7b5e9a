"""iCaRL as the ELI paper runs it: cosine head, cross entropy and distillation of the old classes' logits.

The original (S.-A. Rebuffi et al., CVPR 2017) trains with a sigmoid loss and classifies by the nearest mean of
exemplars; that classifier is a reading of the same model (`nearest-mean`), not another learner.
"""

from __future__ import annotations

from types import MappingProxyType

from torch import Tensor
from torch.nn import functional as F

from elign.lab.learners.learner import Learner, Loss
from elign.lab.learners.losses import distillation


class ICarl(Learner):
    """CE + `distillation` KL(softmax(teacher / T) || softmax(student_old / T)), with T the `temperature`."""

    defaults = MappingProxyType({"temperature": 2.0, "distillation": 1.0})

    def forward(self, images: Tensor, labels: Tensor) -> Loss:
        """The loss of a batch."""
        logits = self.model(images)
        terms = {"classification": F.cross_entropy(logits, labels)}
        if self.teacher is not None:
            _, teacher = self._teach(images)
            kept = distillation(logits[:, : self.known], teacher, temperature=self.options["temperature"])
            terms["distillation"] = self.options["distillation"] * kept
        return Loss(terms, logits)
