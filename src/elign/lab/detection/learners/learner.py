"""What a detection learner is: the surgery on its detector before a task, and its loss on a batch. Nothing else.

The loop over batches, the optimiser, the images, devices and checkpoints are elsewhere, once for all learners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from elign.lab.detection.learners.options import checked_options
from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.passes import Look, roi_losses
from elign.lab.learners.with_teacher import WithTeacher
from elign.utils.errors import OptionError

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
    calls `begin_stage` and minimises the loss over the parameters in `groups`, with `before_step` between the gradient
    and the optimiser's step and `after_step` behind it. Classes are counted from 0, their labels in targets from 1.

    Args:
        make_model: Makes a freshly drawn detector without classes.
        options: The learner's own numbers; see `defaults`.

    Raises:
        OptionError: There is no such option, or it cannot have this value.
    """

    name: ClassVar[str] = "detection"
    """What the learner is called in `LEARNERS` and in messages."""
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The learner's own options and their published values."""
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({})
    """The least and the greatest value of options, where it is not what `checked_options` says."""
    words: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """The values of options that are words."""
    sees_all_data: ClassVar[bool] = False
    """Whether the learner is given all images of all classes seen so far: an upper bound, not a continual learner."""

    plain_first_task: ClassVar[bool] = True
    """Whether the first task is learned by the plain losses alone, so that learners can share its detector."""
    needs_unknown: ClassVar[bool] = False
    """Whether the detector must have an output for objects of no known class."""

    model: Detector
    teacher: Detector | None

    def __init__(self, make_model: Callable[[], Detector], *, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.options = checked_options(self.name, self.defaults, options or {}, ranges=self.ranges, words=self.words)
        self._make_model = make_model
        self.stage = _LEARN
        self.classes = 0
        self.known = 0
        self.teacher = None

    def grow(self, new: int) -> None:
        """Make the detector ready for a task of `new` classes; the detector as it was becomes the teacher."""
        if new < 1:
            raise OptionError(f"a task must bring at least one class, not {new}")
        if self.classes == 0:
            self.model = self._make_model()
        else:
            self.teacher = deepcopy(self.model).requires_grad_(False)
        self.model.grow(new)
        self.known, self.classes = self.classes, self.classes + new
        self.stage = _LEARN
        self.train(self.training)

    def stages(self, number: int) -> tuple[Stage, ...]:
        """How the task with this number, from 0, is learned."""
        return (_LEARN,)

    def begin_stage(self, stage: Stage) -> None:
        """Called before the first batch of a stage, and again when an interrupted stage goes on."""
        self.stage = stage

    def groups(self) -> list[nn.Parameter]:
        """What the loop trains: all parameters of the detector that need a gradient."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def forward(self, images: list[Tensor], targets: Targets) -> dict[str, Tensor]:
        """The loss of a batch: named terms, whose sum is minimised.

        Args:
            images: Each (3, H, W).
            targets: Boxes of the objects of each, and their labels, from 1.
        """
        look = self.model.look(images, targets)
        terms = self.detection_terms(look)
        if self.teacher is not None and self.stage.name == "learn":
            terms |= self.memory_terms(look, self.teacher)
        return terms

    def detection_terms(self, look: Look) -> dict[str, Tensor]:
        """What makes it a detector: here the losses of Faster R-CNN with weights of 1."""
        return {**look.region_losses, **roi_losses(look)}

    def memory_terms(self, look: Look, teacher: Detector) -> dict[str, Tensor]:
        """What works against forgetting, in the first stage of the tasks after the first; here nothing."""
        return {}

    def before_step(self) -> None:
        """Called after the gradients of a batch are known, before the optimiser's step."""

    def after_step(self, step: int, rows: Tensor, targets: Targets, fetch: Fetch, rate: float) -> None:
        """Called after the optimiser's step.

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

    defaults = MappingProxyType({"fine_tune_share": 0.0, "fine_tune_rate": 1.0})
    ranges = MappingProxyType({"fine_tune_share": (0.0, 0.95)})

    def stages(self, number: int) -> tuple[Stage, ...]:
        """The first task in one stage, the others in two."""
        share = float(self.options["fine_tune_share"])
        if number == 0 or share == 0:
            return (_LEARN,)
        rate = float(self.options["fine_tune_rate"])
        return Stage("learn", "task", 1 - share), Stage("fine-tune", "balanced", share, rate)


@torch.no_grad()
def teacher_features(teacher: Detector, look: Look) -> Tensor:
    """The teacher's features of the images that the student looks at, resized and normalised as they are."""
    return teacher.features(look.images.tensors)
