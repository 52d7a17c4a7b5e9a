"""The terms of the learners' losses, each a plain function of tensors.

In all of them column 0 of logits is background and column 1 + c is class c, and the teacher's part gets no gradient.
Learners import it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.lab.learners.losses import distillation


def draw_lowest(values: Tensor, *, pool: int, count: int) -> Tensor:
    """Places of `count` values, drawn by chance from the `pool` lowest; of fewer values, as many as there are.

    ILOD draws 64 of the 128 proposals in which the teacher sees least background (K. Shmelkov et al., ICCV 2017),
    Faster ILOD 64 of the 128 with the highest objectness (C. Peng et al., 2020). The chance is torch's own, as in the
    choice of regions for training.

    Args:
        values: One for each region, (R,).
        pool: How many of the lowest may be drawn.
        count: How many are drawn.

    Returns:
        Places in `values`: `int64`, (min(count, R),).
    """
    lowest = values.topk(min(pool, len(values)), largest=False).indices
    return lowest[torch.randperm(len(lowest))[:count].to(lowest.device)]


def centred_logit_distance(student: Tensor, teacher: Tensor, *, old: int) -> Tensor:
    """ILOD's term for logits: mean of (ȳ_T - ȳ_S)², where ȳ is a region's logits minus their mean.

    Over regions and the logits of background and old classes (K. Shmelkov et al., ICCV 2017; C. Peng et al., "Faster
    ILOD", 2020). The mean that is taken off is that of these logits, in the student too.

    Args:
        student: Logits of the model that learns, (R, 1 + classes or more).
        teacher: Of the model before the task, (R, 1 + old or more).
        old: Number of old classes.
    """
    ours, theirs = student[:, : 1 + old], teacher.detach()[:, : 1 + old]
    if len(ours) == 0:
        return student.sum() * 0
    return F.mse_loss(ours - ours.mean(dim=1, keepdim=True), theirs - theirs.mean(dim=1, keepdim=True))


def delta_distance(student: Tensor, teacher: Tensor, *, old: int, smooth: bool) -> Tensor:
    """The term for boxes of ILOD (smooth L1) and Faster ILOD (squares): |t_T - t_S| of the old classes' box deltas.

    Summed over the four coordinates, mean over regions and old classes (K. Shmelkov et al., ICCV 2017, whose code takes
    smooth L1 unless told otherwise; C. Peng et al., 2020). Smooth L1 has its corner at 1. Deltas that all classes share
    count as those of one class: the papers have deltas for each class.

    Args:
        student: Box deltas of the model that learns, (R, 4) or (R, 1 + classes, 4).
        teacher: Of the model before the task, (R, 4) or (R, 1 + old, 4).
        old: Number of old classes.
        smooth: Whether smooth L1 is taken instead of squares.
    """
    ours, theirs = old_deltas(student, old=old), old_deltas(teacher.detach(), old=old)
    if len(ours) == 0:
        return student.sum() * 0
    distance = F.smooth_l1_loss if smooth else F.mse_loss
    return distance(ours, theirs, reduction="none").sum(dim=-1).mean()


def old_deltas(deltas: Tensor, *, old: int) -> Tensor:
    """The box deltas of old classes, (R, old, 4); of class-agnostic deltas all there are, (R, 1, 4)."""
    return deltas.unsqueeze(1) if deltas.ndim == 2 else deltas[:, 1 : 1 + old]


def lost_features(student: Tensor, teacher: Tensor) -> Tensor:
    """Faster ILOD's term for feature maps: mean of max(0, F̄_T - F̄_S) (C. Peng et al., 2020).

    F̄ is the map of an image minus the mean over all its entries. Only activations that became weaker than the teacher's
    count: new ones are free to come. The published code takes the mean over the batch, which is one image there.

    Args:
        student: Features of the model that learns, (B, C, h, w).
        teacher: Of the model before the task, the same shape.
    """
    ours, theirs = student.flatten(1), teacher.detach().flatten(1)
    return F.relu(theirs - theirs.mean(dim=1, keepdim=True) - ours + ours.mean(dim=1, keepdim=True)).mean()


def lost_regions(
    objectness: Tensor, deltas: Tensor, teacher_objectness: Tensor, teacher_deltas: Tensor, *, threshold: float
) -> Tensor:
    """Faster ILOD's term for the region proposal network (C. Peng et al., 2020).

    mean of max(0, o_T - o_S)² + [o_T - o_S > `threshold`] ||r_T - r_S||² over all anchors, where o is the raw
    objectness and r the four deltas of an anchor: the anchors of which the teacher is surer than the student.

    Args:
        objectness: By the model that learns, (B, A, h, w).
        deltas: By the model that learns, (B, 4A, h, w), the four of an anchor next to each other.
        teacher_objectness: By the model before the task.
        teacher_deltas: By the model before the task.
        threshold: How much surer the teacher must be for the deltas to count.
    """
    gap = teacher_objectness.detach() - objectness
    batch, channels, height, width = deltas.shape
    apart = (teacher_deltas.detach() - deltas).reshape(batch, channels // 4, 4, height, width).square().sum(dim=2)
    return (F.relu(gap).square() + (gap.detach() > threshold) * apart).mean()


def softened_divergence(student: Tensor, teacher: Tensor, *, old: int, temperature: float) -> Tensor:
    """Of iOD, for logits: T² KL(softmax(teacher / T) || softmax(student / T)), summed over classes, mean over regions.

    Over the logits of old classes alone, without background (K. J. Joseph et al., "Incremental Object Detection via
    Meta-Learning", TPAMI 2021). The published code sets the negative summands of the divergence to 0, one by one,
    which makes it no divergence any more; here they count.

    Args:
        student: Logits of the model that learns, (R, 1 + classes or more).
        teacher: Of the model before the task, (R, 1 + old or more).
        old: Number of old classes.
        temperature: T.
    """
    ours, theirs = student[:, 1 : 1 + old], teacher[:, 1 : 1 + old]
    return temperature**2 * distillation(ours, theirs, temperature=temperature)
