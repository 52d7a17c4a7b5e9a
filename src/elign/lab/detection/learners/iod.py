"""iOD: distillation, and a layer that is learned by meta-learning alone (K. J. Joseph et al., TPAMI 2021).

"Incremental Object Detection via Meta-Learning".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.lab.detection.learners.image_store import ImageStore
from elign.lab.detection.learners.learner import Fetch, FineTuned, Targets, teacher_features
from elign.lab.detection.learners.losses import old_deltas, softened_divergence
from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.passes import Look, RoiOutputs, roi_losses


class Iod(FineTuned):
    """Distillation of features, logits and boxes; a warp layer that only warp steps move; fine-tuning on replay.

    With w = `distillation`, the tasks after the first minimise
    (1 - w) (classification + box) + RPN + `features` MSE(F_S, F_T) + w (T² KL + MSE(deltas)), on all sampled regions;
    T is `temperature`, and the KL is that of the old classes' logits (`losses.py`).

    The warp layer is the detector's `warp_parameters`. Steps of the task, in learning and in fine-tuning, do not move
    it. While tasks are learned, every `warp_every` steps it takes a step of plain SGD, and nothing else does, on the
    detection loss of at most `warp_images` images out of a store with the last `images_per_class` images of each
    class, of whose sampled regions the last `warp_regions` of each class (background is one) count.

    `teacher_reads="student"`: as in the published code, the teacher's head reads regions of the student's features;
    "own" lets it read regions of its own ones.

    Deviations. The published code keeps the gradient of the last stored image only, moves all weights in its warp
    steps, and lets momentum and decay move the warp layer in those of the task; here the steps are as they were meant.
    It takes all stored images for a warp step; here a few are drawn. Its configurations for VOC learn the first task
    without warp steps (`warp_first_task=False`; the store is filled in any case), and its store begins empty with the
    second task, whereas the method has images of all classes. In its fine-tuning the warp layer trains along in these
    configurations, though the code can keep it. There the gradient also flows through the teacher's reading of the
    student's features, here the teacher is a target and nothing more. The KL is not clamped.

    `fine_tune_share` and `fine_tune_rate` are those of the 10+10 split: 18000 iterations at 0.005, then 5000 at 0.0001.
    """

    name = "iod"
    plain_first_task = False  # it keeps images and takes warp steps from the beginning
    defaults = MappingProxyType(
        {
            "distillation": 0.2,
            "temperature": 6.0,
            "features": 1.0,
            "teacher_reads": "student",
            "warp_every": 20,
            "warp_first_task": True,
            "images_per_class": 10,
            "warp_images": 8,
            "warp_regions": 100,
            "seed": 0,
            "fine_tune_share": 0.22,
            "fine_tune_rate": 0.02,
        }
    )
    ranges = MappingProxyType(
        {**FineTuned.ranges, "distillation": (0.0, 1.0), "temperature": (0.01, 1e6), "seed": (0, 2**63 - 1)}
    )
    words = MappingProxyType({"teacher_reads": ("student", "own")})

    def __init__(self, make_model: Callable[[], Detector], *, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(make_model, options=options)
        self.store = ImageStore(per_class=self.options["images_per_class"], seed=self.options["seed"])

    def grow(self, new: int) -> None:
        """As every learner; the store makes room for the new classes too."""
        super().grow(new)
        self.store.grow(new)

    @property
    def warps(self) -> bool:
        """Whether the warp layer is left to warp steps in this task."""
        return self.teacher is not None or bool(self.options["warp_first_task"])

    def detection_terms(self, look: Look) -> dict[str, Tensor]:
        """The losses of Faster R-CNN; those of the head give way to distillation."""
        distils = self.teacher is not None and self.stage.name == "learn"
        weight = 1 - self.options["distillation"] if distils else 1.0
        return {**look.region_losses, **{name: weight * term for name, term in roi_losses(look).items()}}

    def memory_terms(self, look: Look, teacher: Detector) -> dict[str, Tensor]:
        """Distances to the teacher's features, logits and boxes."""
        with torch.no_grad():
            features = teacher_features(teacher, look)
            source = look.features if self.options["teacher_reads"] == "student" else features
            read = teacher.read(source, look.rois, look.images.image_sizes)
        old, weight = self.known, self.options["distillation"]
        logits = softened_divergence(look.outputs.logits, read.logits, old=old, temperature=self.options["temperature"])
        boxes = F.mse_loss(old_deltas(look.outputs.deltas, old=old), old_deltas(read.deltas, old=old))
        return {
            "old_features": self.options["features"] * F.mse_loss(look.features, features),
            "old_logits": weight * logits,
            "old_boxes": weight * boxes,
        }

    def before_step(self) -> None:
        """Leave the warp layer out of the step: without a gradient neither momentum nor decay moves it."""
        if self.warps:
            for parameter in self.model.warp_parameters():
                parameter.grad = None

    def after_step(self, step: int, rows: Tensor, targets: Targets, fetch: Fetch, rate: float) -> None:
        """Keep the images of the batch; now and then a warp step."""
        if self.stage.name != "learn":
            return
        self.store.add(rows, [target["labels"] for target in targets])
        if self.warps and step % self.options["warp_every"] == 0:
            drawn = self.store.draw(self.options["warp_images"])
            if len(drawn):
                self.warp_step(*fetch(drawn), rate=rate)

    def warp_step(self, images: list[Tensor], targets: Targets, *, rate: float) -> None:
        """A step of plain SGD on the detection loss of these images, for the warp layer alone."""
        layers = [parameter for parameter in self.model.warp_parameters() if parameter.requires_grad]
        if not layers:
            return
        with torch.enable_grad():
            look = self.model.look(images, targets)
            terms = roi_losses(_narrowed(look, self.options["warp_regions"]))
        gradients = torch.autograd.grad(torch.stack([*terms.values()]).sum(), layers)
        with torch.no_grad():
            for layer, gradient in zip(layers, gradients, strict=True):
                layer.sub_(rate * gradient)


def _narrowed(look: Look, limit: int) -> Look:
    """The same with only the last `limit` regions of each label, as a queue for each class would keep them."""
    labels = sorted(set(look.labels.tolist()))
    kept = torch.cat([(look.labels == label).nonzero().squeeze(1)[-limit:] for label in labels])
    outputs = RoiOutputs(look.outputs.latents[kept], look.outputs.logits[kept], look.outputs.deltas[kept])
    # Only what the losses of the head are made of; the rest of the look stays whole.
    return replace(look, labels=look.labels[kept], regression_targets=look.regression_targets[kept], outputs=outputs)
