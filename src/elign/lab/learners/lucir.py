"""LUCIR: cosine head, less-forget constraint on latents, margin ranking (S. Hou et al., CVPR 2019)."""

from __future__ import annotations

import math

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from elign.lab.learners.base import LEARNERS, Learner, LearnerOptions, Loss


def less_forget(latents: Tensor, teacher: Tensor) -> Tensor:
    """Return the less-forget constraint: mean of 1 - cos(z, z_teacher) (Eq. 6)."""
    return 1 - F.cosine_similarity(latents, teacher.detach(), dim=1).mean()


def margin_ranking(cosines: Tensor, labels: Tensor, *, old: int, margin: float, top_k: int) -> Tensor:
    """Return the inter-class separation: mean of max(0, margin - s_y + s_k) (Eq. 8).

    Over the samples of old classes and, for each, the `top_k` new classes (or all, if they are fewer) with the highest
    cosines s_k, (N, classes); s_y is the cosine with the sample's own class. Zero without a sample of an old class.
    """
    hard = labels < old
    if not hard.any():
        return cosines.sum() * 0
    rows = cosines[hard]
    own = rows.gather(1, labels[hard].unsqueeze(1))
    others = rows[:, old:].topk(min(top_k, rows.shape[1] - old), dim=1).values
    return torch.clamp(margin - own + others, min=0).mean()


@LEARNERS.register("lucir")
class Lucir(Learner):
    """CE + `less_forget` sqrt(old / new) (1 - cos(z, z_teacher)) + `ranking` margin ranking loss.

    The ranking loss has `margin` and takes the `top_k` new classes of each old sample.
    """

    class Options(LearnerOptions):
        """The published values."""

        less_forget: NonNegativeFloat = 5.0
        margin: NonNegativeFloat = 0.5
        top_k: PositiveInt = 2
        ranking: NonNegativeFloat = 1.0

    default_freeze_old = True
    needs_cosine = True
    options: Options

    def forward(self, images: Tensor, labels: Tensor) -> Loss:
        """Return the loss of a batch."""
        latents = self.model.latents(images)
        logits = self.model.scores(latents)
        terms = {"classification": F.cross_entropy(logits, labels)}
        if self.teacher is not None:
            if self.options.less_forget:
                weight = self.options.less_forget * math.sqrt(self.old_classes / (self.classes - self.old_classes))
                terms["less-forget"] = weight * less_forget(latents, self._teacher_outputs(images)[0])
            ranking = margin_ranking(
                logits / self._split_head().sigma,
                labels,
                old=self.old_classes,
                margin=self.options.margin,
                top_k=self.options.top_k,
            )
            terms["ranking"] = self.options.ranking * ranking
        return Loss(terms, logits)
