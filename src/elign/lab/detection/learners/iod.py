"""iOD: distillation, and a layer that is learned by meta-learning alone (K. J. Joseph et al., TPAMI 2021).

"Incremental Object Detection via Meta-Learning".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.detection.data import Targets
from elign.lab.detection.detector import Detector, Look, roi_losses
from elign.lab.detection.learners import DETECTION_LEARNERS, Fetch, FineTuned
from elign.lab.detection.learners.distillation import old_deltas
from elign.lab.environment import derive_seed
from elign.lab.learners.base import distillation


def softened_divergence(student: Tensor, teacher: Tensor, *, old: int, temperature: float) -> Tensor:
    """Return iOD's term for logits: T² KL(softmax(teacher / T) || softmax(student / T)), mean over regions.

    Over the logits of old classes alone, without background. The published code sets the negative summands of the
    divergence to 0, one by one, which is not a divergence; here they count.
    """
    ours, theirs = student[:, 1 : 1 + old], teacher[:, 1 : 1 + old]
    return temperature**2 * distillation(ours, theirs, temperature=temperature)


class ImageStore(nn.Module):
    """Row numbers of the last images of each class; an image counts for the class of one of its objects, by chance.

    All choices come from `seed` and a counter that is part of the state, so that a resumed learner repeats them.
    """

    rows: Tensor
    draws: Tensor

    def __init__(self, *, per_class: int, seed: int) -> None:
        super().__init__()
        self._seed = seed
        # Oldest first; -1 is an empty place. Row numbers, not images: the training set still has these.
        self.register_buffer("rows", torch.full((0, per_class), -1, dtype=torch.int64))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def grow(self, new: int) -> None:
        """Make room for `new` more classes."""
        self.rows = torch.cat([self.rows, self.rows.new_full((new, self.rows.shape[1]), -1)])

    def add(self, rows: Tensor, labels: list[Tensor]) -> None:
        """Keep images, given by their rows and labels (from 1); the oldest one of a class goes when it has too many."""
        for row, of_image in zip(rows.tolist(), labels, strict=True):
            if len(of_image):
                kept = self.rows[int(of_image[self._order(len(of_image))[0]]) - 1]
                kept.copy_(torch.cat([kept[1:], kept.new_tensor([row])]))

    def draw(self, count: int) -> Tensor:
        """Draw rows of at most `count` different images that are kept, in any class: `int64`, on the CPU."""
        kept = torch.tensor(sorted({row for row in self.rows.flatten().tolist() if row >= 0}), dtype=torch.int64)
        return kept[self._order(len(kept))[:count]]

    def _order(self, length: int) -> Tensor:
        number = int(self.draws)
        self.draws += 1
        generator = torch.Generator().manual_seed(derive_seed(self._seed, f"choice {number} of the image store"))
        return torch.randperm(length, generator=generator)


@DETECTION_LEARNERS.register("iod")
class Iod(FineTuned):
    """Distillation of features, logits and boxes; a warp layer that only warp steps move; fine-tuning on replay.

    With w = `distillation`, the tasks after the first minimise
    (1 - w) (classification + box) + RPN + `features` MSE(F_S, F_T) + w (T² KL + MSE(deltas)), on all sampled regions;
    T is `temperature`, and the KL is that of the old classes' logits (`softened_divergence`).

    The warp layer is the detector's `warp_parameters`. Steps of the task, in learning and in fine-tuning, do not move
    it. While tasks are learned, every `warp_every` steps it takes a step of plain SGD, and nothing else does, on the
    detection loss of at most `warp_images` images out of a store with the last `images_per_class` images of each
    class, of whose sampled regions the last `warp_regions` of each class (background is one) count.

    `teacher_reads="student"`: as in the published code, the teacher's head gets regions of the student's features; with
    "own" it gets regions of its own features.

    Deviations. The published code keeps the gradient of the last stored image only, moves all weights in its warp
    steps, and lets momentum and decay move the warp layer in those of the task; here the steps are as they were meant.
    It takes all stored images for a warp step; here a few are drawn. Its configurations for VOC learn the first task
    without warp steps (`warp_first_task=False`; the store is filled in any case), and its store begins empty with the
    second task, whereas the method has images of all classes. In its fine-tuning the warp layer trains along in these
    configurations, though the code can keep it. There the gradient also flows through the teacher's outputs on the
    student's features, here the teacher is a target and nothing more. The KL is not clamped.
    """

    plain_first_task = False  # it keeps images and takes warp steps from the beginning

    class Options(FineTuned.Options):
        """The published values; of fine-tuning those of 10+10: 18000 iterations at 0.005, then 5000 at 0.0001."""

        distillation: Annotated[float, Field(ge=0, le=1)] = 0.2
        temperature: Annotated[float, Field(ge=0.01, le=1e6)] = 6.0
        features: NonNegativeFloat = 1.0
        teacher_reads: Literal["student", "own"] = "student"
        warp_every: PositiveInt = 20
        warp_first_task: bool = True
        images_per_class: PositiveInt = 10
        warp_images: PositiveInt = 8
        warp_regions: PositiveInt = 100
        fine_tune_share: Annotated[float, Field(ge=0, le=0.95)] = 0.22
        fine_tune_rate: NonNegativeFloat = 0.02

    options: Options

    def grow(self, new: int) -> None:
        """Make the detector and the store ready for a task of `new` classes."""
        if self.classes == 0:
            self.store = ImageStore(per_class=self.options.images_per_class, seed=self.seed)
        super().grow(new)
        self.store.grow(new)

    @property
    def warps(self) -> bool:
        """Whether the warp layer is left to warp steps in this task."""
        return self.teacher is not None or self.options.warp_first_task

    def detection_terms(self, look: Look) -> dict[str, Tensor]:
        """Return the losses of Faster R-CNN; those of the head give way to distillation."""
        distils = self.teacher is not None and self.stage.name == "learn"
        weight = 1 - self.options.distillation if distils else 1.0
        return {**look.region_losses, **{name: weight * term for name, term in roi_losses(look).items()}}

    def memory_terms(self, look: Look, teacher: Detector, features: Tensor) -> dict[str, Tensor]:
        """Return distances to the teacher's features, logits and boxes."""
        with torch.no_grad():
            source = look.features if self.options.teacher_reads == "student" else features
            theirs = teacher.roi_outputs(source, look.rois, look.images.image_sizes)
        ours, old, weight = look.outputs, self.old_classes, self.options.distillation
        logits = softened_divergence(ours.logits, theirs.logits, old=old, temperature=self.options.temperature)
        boxes = F.mse_loss(old_deltas(ours.deltas, old=old), old_deltas(theirs.deltas, old=old))
        return {
            "old_features": self.options.features * F.mse_loss(look.features, features),
            "old_logits": weight * logits,
            "old_boxes": weight * boxes,
        }

    def before_step(self) -> None:
        """Leave the warp layer out of the step: without a gradient neither momentum nor decay moves it."""
        if self.warps:
            for parameter in self.model.warp_parameters():
                parameter.grad = None

    def after_step(self, step: int, rows: Tensor, targets: Targets, fetch: Fetch, rate: float) -> None:
        """Keep the images of the batch, and take a warp step now and then."""
        if self.stage.name != "learn":
            return
        self.store.add(rows, [target["labels"] for target in targets])
        if self.warps and step % self.options.warp_every == 0:
            drawn = self.store.draw(self.options.warp_images)
            if len(drawn):
                self.warp_step(*fetch(drawn), rate=rate)

    def warp_step(self, images: list[Tensor], targets: Targets, *, rate: float) -> None:
        """Take a step of plain SGD on the detection loss of these images, for the warp layer alone."""
        layers = [parameter for parameter in self.model.warp_parameters() if parameter.requires_grad]
        if not layers:
            return
        with torch.enable_grad():
            look = self.model.look(images, targets)
            terms = roi_losses(_narrowed(look, self.options.warp_regions))
        gradients = torch.autograd.grad(torch.stack([*terms.values()]).sum(), layers)
        with torch.no_grad():
            for layer, gradient in zip(layers, gradients, strict=True):
                layer.sub_(rate * gradient)


def _narrowed(look: Look, limit: int) -> Look:
    """Keep only the last `limit` regions of each label, as a queue for each class would."""
    labels = sorted(set(look.labels.tolist()))
    kept = torch.cat([(look.labels == label).nonzero().squeeze(1)[-limit:] for label in labels])
    # Only what the losses of the head are made of; the rest of the look stays whole.
    targets, outputs = look.regression_targets[kept], look.outputs.rows(kept)
    return replace(look, labels=look.labels[kept], regression_targets=targets, outputs=outputs)
