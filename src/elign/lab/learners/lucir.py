"""LUCIR: cosine head, less-forget constraint on latents, margin ranking (S. Hou et al., CVPR 2019)."""

from __future__ import annotations

import math
from types import MappingProxyType

from torch import Tensor
from torch.nn import functional as F

from elign.lab.learners.learner import Learner, Loss
from elign.lab.learners.losses import less_forget, margin_ranking


class Lucir(Learner):
    """CE + `less_forget` sqrt(old / new) (1 - cos(z, z_teacher)) + `ranking` margin ranking loss.

    The ranking loss has `margin` and takes the `top_k` new classes of each old sample; see `losses.py`.
    """

    defaults = MappingProxyType({"less_forget": 5.0, "ranking": 1.0, "margin": 0.5, "top_k": 2})
    needs_cosine = True

    def forward(self, images: Tensor, labels: Tensor) -> Loss:
        """The loss of a batch."""
        latents = self.model.latents(images)
        logits = self.model.scores(latents)
        terms = {"classification": F.cross_entropy(logits, labels)}
        if self.teacher is not None:
            if self.options["less_forget"]:
                weight = self.options["less_forget"] * math.sqrt(self.known / (self.classes - self.known))
                terms["less-forget"] = weight * less_forget(latents, self._teach(images)[0])
            ranking = margin_ranking(
                logits / self._split_head().sigma,
                labels,
                old=self.known,
                margin=self.options["margin"],
                top_k=self.options["top_k"],
            )
            terms["ranking"] = self.options["ranking"] * ranking
        return Loss(terms, logits)
