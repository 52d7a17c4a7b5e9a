"""What a detection learner is: the surgery on its detector before a task, its loss, its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.detection.models.detector import Detector, Look, roi_losses
from elign.lab.learners.base import LearnerOptions, WithTeacher, distillation
from elign.lab.registry import Registry
from elign.utils.errors import OptionError


def draw_lowest(values: Tensor, *, pool: int, count: int) -> Tensor:
    """Draw places of `count` values from the `pool` lowest; of fewer values, as many as there are.

    ILOD draws 64 of the 128 proposals in which the teacher sees least background (K. Shmelkov et al., ICCV 2017),
    Faster ILOD 64 of the 128 with the highest objectness (C. Peng et al., 2020). The chance is torch's own, as in the
    choice of regions for training.
    """
    lowest = values.topk(min(pool, len(values)), largest=False).indices
    return lowest[torch.randperm(len(lowest))[:count].to(lowest.device)]


def centred_logit_distance(student: Tensor, teacher: Tensor, *, old: int) -> Tensor:
    """Return ILOD's term for logits: mean of (ȳ_T - ȳ_S)², where ȳ is a region's logits minus their mean.

    Over regions and the logits of background and old classes (K. Shmelkov et al., ICCV 2017; C. Peng et al., "Faster
    ILOD", 2020). The mean that is taken off is that of these logits, in the student too.
    Logits are (R, 1 + classes or more) of the student and (R, 1 + old or more) of the teacher.
    """
    ours, theirs = student[:, : 1 + old], teacher.detach()[:, : 1 + old]
    if len(ours) == 0:
        return student.sum() * 0
    return F.mse_loss(ours - ours.mean(dim=1, keepdim=True), theirs - theirs.mean(dim=1, keepdim=True))


def delta_distance(student: Tensor, teacher: Tensor, *, old: int, smooth: bool) -> Tensor:
    """Return the term for boxes: |t_T - t_S| of the old classes' box deltas, smooth L1 (ILOD) or squares (Faster ILOD).

    Summed over the four coordinates, mean over regions and old classes (K. Shmelkov et al., ICCV 2017, whose code takes
    smooth L1 unless told otherwise; C. Peng et al., 2020). Smooth L1 has its corner at 1. Deltas that all classes share
    count as those of one class: the papers have deltas for each class. Deltas are (R, 4) or (R, 1 + classes, 4).
    """
    ours, theirs = old_deltas(student, old=old), old_deltas(teacher.detach(), old=old)
    if len(ours) == 0:
        return student.sum() * 0
    distance = F.smooth_l1_loss if smooth else F.mse_loss
    return distance(ours, theirs, reduction="none").sum(dim=-1).mean()


def old_deltas(deltas: Tensor, *, old: int) -> Tensor:
    """Return the box deltas of old classes, (R, old, 4); of class-agnostic deltas all there are, (R, 1, 4)."""
    return deltas.unsqueeze(1) if deltas.ndim == 2 else deltas[:, 1 : 1 + old]


def lost_features(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Faster ILOD's term for feature maps: mean of max(0, F̄_T - F̄_S) (C. Peng et al., 2020).

    F̄ is the map of an image minus the mean over all its entries. Only activations that became weaker than the teacher's
    count: new ones are free to come. The published code takes the mean over the batch, which is one image there.
    """
    ours, theirs = student.flatten(1), teacher.detach().flatten(1)
    return F.relu(theirs - theirs.mean(dim=1, keepdim=True) - ours + ours.mean(dim=1, keepdim=True)).mean()


def lost_regions(
    objectness: Tensor, deltas: Tensor, teacher_objectness: Tensor, teacher_deltas: Tensor, *, threshold: float
) -> Tensor:
    """Return Faster ILOD's term for the region proposal network (C. Peng et al., 2020).

    mean of max(0, o_T - o_S)² + [o_T - o_S > `threshold`] ||r_T - r_S||² over all anchors, where o is the raw
    objectness (B, A, h, w) and r the four deltas of an anchor (B, 4A, h, w): the anchors of which the teacher is surer
    than the student.
    """
    gap = teacher_objectness.detach() - objectness
    batch, channels, height, width = deltas.shape
    apart = (teacher_deltas.detach() - deltas).reshape(batch, channels // 4, 4, height, width).square().sum(dim=2)
    return (F.relu(gap).square() + (gap.detach() > threshold) * apart).mean()


def softened_divergence(student: Tensor, teacher: Tensor, *, old: int, temperature: float) -> Tensor:
    """Return iOD's term for logits: T² KL(softmax(teacher / T) || softmax(student / T)), mean over regions.

    Over the logits of old classes alone, without background (K. J. Joseph et al., "Incremental Object Detection via
    Meta-Learning", TPAMI 2021). The published code sets the negative summands of the divergence to 0, one by one,
    which is not a divergence; here they count.
    """
    ours, theirs = student[:, 1 : 1 + old], teacher[:, 1 : 1 + old]
    return temperature**2 * distillation(ours, theirs, temperature=temperature)


Targets = list[dict[str, Tensor]]
Fetch = Callable[[Tensor], tuple[list[Tensor], Targets]]


@dataclass(frozen=True)
class Stage:
    """A part of learning a task.

    Attributes:
        name: "learn" or "fine-tune".
        data: The images of the task with the objects of its own classes; or the balanced store of images of all seen
            classes, with all objects of these.
        share: Of the task's iterations; the shares of a task add up to 1.
        rate: Of the learning rate.
    """

    name: Literal["learn", "fine-tune"]
    data: Literal["task", "balanced"]
    share: float = 1.0
    rate: float = 1.0


_LEARN = Stage("learn", "task")


class DetectionLearner(WithTeacher):
    """A class-incremental learner of a detector; `forward` is its loss on a batch.

    For every task: `grow` makes the detector ready for its classes, then for each of the task's `stages` the loop
    calls `start_stage` and minimises the loss over the parameters in `groups`, with `before_step` between the gradient
    and the optimiser's step and `after_step` behind it. Classes are counted from 0, their labels in targets from 1.

    Args:
        make_model: Makes a freshly drawn detector without classes.
        options: The learner's own options; those not given have their published values.
        seed: Of choices that are part of the learner's state.

    Raises:
        OptionError: There is no such option, or it cannot have this value.
    """

    sees_all_data: ClassVar[bool] = False
    """Whether the learner is given all images of all classes seen so far: an upper bound, not a continual learner."""

    plain_first_task: ClassVar[bool] = True
    """Whether the first task is learned by the plain losses alone, so that learners can share its detector."""
    needs_unknown: ClassVar[bool] = False
    """Whether the detector must have an output for objects of classes that it was not taught."""

    model: Detector
    teacher: Detector | None

    def __init__(
        self, make_model: Callable[[], Detector], *, options: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.options = self.check_options(options or {})
        self._make_model = make_model
        self.stage = _LEARN
        self.classes = 0
        self.old_classes = 0
        self.teacher = None

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Return the published values of the learner's options."""
        return cls.Options().model_dump()

    def grow(self, new: int) -> None:
        """Make the detector ready for a task of `new` classes; a copy of the detector becomes the teacher."""
        if new < 1:
            raise OptionError(f"a task must bring at least one class, not {new}")
        if self.classes == 0:
            self.model = self._make_model()
        else:
            self.teacher = deepcopy(self.model).requires_grad_(False)
        self.model.grow(new)
        self.old_classes, self.classes = self.classes, self.classes + new
        self.stage = _LEARN
        self.train(self.training)

    def stages(self, number: int) -> tuple[Stage, ...]:
        """Return how the task with this number, from 0, is learned."""
        return (_LEARN,)

    def start_stage(self, stage: Stage) -> None:
        """Start a stage, or an interrupted stage again, before its first batch."""
        self.stage = stage

    def groups(self) -> list[nn.Parameter]:
        """Return what the loop trains: all parameters of the detector that need a gradient."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def forward(self, images: list[Tensor], targets: Targets) -> dict[str, Tensor]:
        """Return the loss of a batch: named terms, whose sum is minimised. Labels in targets start at 1."""
        look = self.model.look(images, targets)
        terms = self.detection_terms(look)
        if self.teacher is not None and self.stage.name == "learn":
            terms |= self.memory_terms(look, self.teacher)
        return terms

    def detection_terms(self, look: Look) -> dict[str, Tensor]:
        """Return the terms that make it a detector: here the losses of Faster R-CNN with weights of 1."""
        return {**look.region_losses, **roi_losses(look)}

    def memory_terms(self, look: Look, teacher: Detector) -> dict[str, Tensor]:
        """Return the terms against forgetting, in the first stage of the tasks after the first; here none."""
        return {}

    def before_step(self) -> None:
        """Run when the gradients of a batch are there, before the optimiser's step."""

    def after_step(self, step: int, rows: Tensor, targets: Targets, fetch: Fetch, rate: float) -> None:
        """Run after the optimiser's step.

        Args:
            step: From 1 within the stage.
            rows: Where the images of the batch stand in the training set, (B,).
            targets: The objects on them.
            fetch: Gives images of the training set on the learner's device, and the objects on them that the learner
                may know of: those of all classes that it has seen.
            rate: The learning rate of the step.
        """


class FineTuned(DetectionLearner):
    """A learner whose tasks after the first end with fine-tuning on the balanced store, by the plain losses.

    Options: `fine_tune_share` of the task's iterations, with `fine_tune_rate` times the learning rate. Share 0 leaves
    it out.
    """

    class Options(LearnerOptions):
        """When and how the second stage is trained."""

        fine_tune_share: Annotated[float, Field(ge=0, le=0.95)] = 0.0
        fine_tune_rate: NonNegativeFloat = 1.0

    options: Options

    def stages(self, number: int) -> tuple[Stage, ...]:
        """Learn the first task in one stage, the others in two."""
        share = self.options.fine_tune_share
        if number == 0 or share == 0:
            return (_LEARN,)
        return Stage("learn", "task", 1 - share), Stage("fine-tune", "balanced", share, self.options.fine_tune_rate)


DETECTION_LEARNERS: Registry[type[DetectionLearner]] = Registry("elign.lab.detection.learners", "learner")
"""The learners of detectors, by name."""


@torch.no_grad()
def teacher_features(teacher: Detector, look: Look) -> Tensor:
    """Return the teacher's features of the images that the student sees, resized and normalised in the same way."""
    return teacher.features(look.images.tensors)


def make_detection_learner(
    name: str, make_model: Callable[[], Detector], options: Mapping[str, Any] | None = None, *, seed: int = 0
) -> DetectionLearner:
    """Make a learner, one of `DETECTION_LEARNERS`, that has learned nothing yet; see `DetectionLearner`.

    Raises:
        OptionError: There is no such learner, or it does not take these options.

    Example:
        >>> from elign.lab.detection.models import make_detector
        >>> learner = make_detection_learner("iod", lambda: make_detector("tiny-c4"))
        >>> learner.grow(2)
        >>> learner.grow(1)
        >>> learner.old_classes, learner.classes, [stage.name for stage in learner.stages(1)]
        (2, 3, ['learn', 'fine-tune'])
    """
    return DETECTION_LEARNERS[name](make_model, options=options, seed=seed)
