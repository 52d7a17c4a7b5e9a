"""The losses of the learners, each a plain function of latents or scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def distillation(student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    """KL(softmax(teacher / T) || softmax(student / T)), summed over classes, mean over the batch.

    The published loss of iCaRL is beta T^2 times this, with T = 2 and beta = 1/4: exactly this.

    Args:
        student: Logits of the old classes by the model that learns, (N, old).
        teacher: The same by the model before the task, (N, old).
        temperature: T.
    """
    target = F.log_softmax(teacher.detach() / temperature, dim=1)
    return F.kl_div(F.log_softmax(student / temperature, dim=1), target, reduction="batchmean", log_target=True)


def less_forget(latents: Tensor, teacher: Tensor) -> Tensor:
    """LUCIR's less-forget constraint: mean of 1 - cos(z, z_teacher) (S. Hou et al., CVPR 2019, Eq. 6)."""
    return 1 - F.cosine_similarity(latents, teacher.detach(), dim=1).mean()


def margin_ranking(cosines: Tensor, labels: Tensor, *, old: int, margin: float, top_k: int) -> Tensor:
    """LUCIR's inter-class separation: mean of max(0, margin - s_y + s_k) (S. Hou et al., CVPR 2019, Eq. 8).

    Over the samples of old classes and, for each, the `top_k` new classes with the highest cosines s_k; s_y is the
    cosine with the sample's own class. Zero when the batch has no sample of an old class.

    Args:
        cosines: Cosines between latents and the prototypes of all classes, (N, classes).
        labels: Classes of the samples, (N,).
        old: Number of old classes.
        margin: The margin.
        top_k: How many new classes count; with fewer new classes than that, all of them.
    """
    hard = labels < old
    if not hard.any():
        return cosines.sum() * 0
    rows = cosines[hard]
    own = rows.gather(1, labels[hard].unsqueeze(1))
    others = rows[:, old:].topk(min(top_k, rows.shape[1] - old), dim=1).values
    return torch.clamp(margin - own + others, min=0).mean()
