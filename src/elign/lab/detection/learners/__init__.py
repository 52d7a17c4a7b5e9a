"""Class-incremental learners of detectors: the surgery on a detector before a task, its loss, its options.

Each other file of this package registers learners with `DETECTION_LEARNERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from elign.lab.detection.data import Targets
from elign.lab.detection.detector import Detector, Look, roi_losses
from elign.lab.learners.base import LearnerOptions, WithTeacher
from elign.lab.registry import Registry

Fetch = Callable[[Tensor], tuple[list[Tensor], Targets]]


@dataclass(frozen=True)
class Stage:
    """A part of learning a task."""

    name: Literal["learn", "fine-tune"]
    data: Literal["task", "balanced"]
    """The images of the task with the objects of its own classes; or the balanced store of images of all seen classes,
    with all objects of these."""
    share: float = 1.0  # of the task's iterations; the shares of a task add up to 1
    rate: float = 1.0  # of the learning rate


_LEARN = Stage("learn", "task")


class DetectionLearner(WithTeacher):
    """A class-incremental learner of a detector; `forward` is its loss on a batch.

    For every task: `grow` makes the detector ready for its classes, then for each of the task's `stages` the loop
    calls `start_stage` and minimises the loss over the parameters in `groups`. Labels in targets start at 1.

    Args:
        make_model: Makes a freshly drawn detector without classes.
        options: The learner's own options; those not given have their published values.
        seed: Of choices that are part of the learner's state.

    Example:
        >>> from elign.lab.detection.detector import make_detector
        >>> learner = DETECTION_LEARNERS["iod"](lambda: make_detector("tiny-c4"))
        >>> learner.grow(2)
        >>> learner.grow(1)
        >>> learner.old_classes, learner.classes, [stage.name for stage in learner.stages(1)]
        (2, 3, ['learn', 'fine-tune'])
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
        self._make_model, self.seed = make_model, seed
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
        """Return the loss of a batch: named terms, whose sum is minimised."""
        look = self.model.look(images, targets)
        terms = self.detection_terms(look)
        if self.teacher is not None and self.stage.name == "learn":
            with torch.no_grad():
                features = self.teacher.features(look.images.tensors)
            terms |= self.memory_terms(look, self.teacher, features)
        return terms

    def detection_terms(self, look: Look) -> dict[str, Tensor]:
        """Return the terms that make it a detector: here the losses of Faster R-CNN with weights of 1."""
        return {**look.region_losses, **roi_losses(look)}

    def memory_terms(self, look: Look, teacher: Detector, features: Tensor) -> dict[str, Tensor]:
        """Return the terms against forgetting, in the first stage of the tasks after the first; here none.

        The look is the student's; the features are the teacher's, of the same images.
        """
        return {}

    def before_step(self) -> None:
        """Run when the gradients of a batch are there, before the optimiser's step."""

    def after_step(self, step: int, rows: Tensor, targets: Targets, fetch: Fetch, rate: float) -> None:
        """Run after the optimiser's step.

        Args:
            step: From 1 within the stage.
            rows: Where the images of the batch stand in the training set, (B,).
            targets: The objects on them.
            fetch: Gives images of the training set, and the objects on them of all classes that were seen.
            rate: The learning rate of the step.
        """


class FineTuned(DetectionLearner):
    """A learner whose tasks after the first end with fine-tuning on the balanced store, by the plain losses."""

    class Options(LearnerOptions):
        """When and how the second stage is trained."""

        fine_tune_share: Annotated[float, Field(ge=0, le=0.95)] = 0.0
        """Of the task's iterations; 0 leaves fine-tuning out."""
        fine_tune_rate: NonNegativeFloat = 1.0
        """Times the learning rate."""

    options: Options

    def stages(self, number: int) -> tuple[Stage, ...]:
        """Learn the first task in one stage, the others in two."""
        share = self.options.fine_tune_share
        if number == 0 or share == 0:
            return (_LEARN,)
        return Stage("learn", "task", 1 - share), Stage("fine-tune", "balanced", share, self.options.fine_tune_rate)


DETECTION_LEARNERS: Registry[type[DetectionLearner]] = Registry("elign.lab.detection.learners", "learner")
"""The learners of detectors, by name."""
