"""What a learner is: the surgery on its model before a task, and its loss on a batch. Nothing else.

The loop over epochs, the optimiser, the memory, devices, precision and checkpoints are in `elign.lab.experiments`, once
for all learners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.learners.with_teacher import WithTeacher
from elign.lab.models.blocks import Backbone
from elign.lab.models.classifier import Classifier
from elign.lab.models.heads import CosineHead, LinearHead, SplitCosineHead
from elign.lab.models.imprint import imprint
from elign.utils.errors import OptionError


class Loss(NamedTuple):
    """What a learner makes of a batch."""

    terms: dict[str, Tensor]
    """Named terms; their sum is minimised."""
    logits: Tensor
    """Of all classes seen so far, (N, classes)."""


class Learner(WithTeacher):
    """A class-incremental learner; `forward` is its loss on a batch.

    For every task: `grow` makes the model ready for its classes, `imprint` may start their prototypes at the mean
    directions of their latents, then the loop minimises the loss over the parameters in `groups`.

    Args:
        make_backbone: Makes a freshly drawn backbone.
        head: "cosine" or "linear".
        freeze_old: Whether the prototypes of old classes (cosine head) are kept as they are.
        imprint_new: Whether prototypes of new classes (cosine head) start at the mean directions of their latents.
        options: The learner's own numbers; see `defaults`.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    """The learner's own options and their published values."""
    needs_cosine: ClassVar[bool] = False
    sees_all_data: ClassVar[bool] = False
    """Whether the learner is given the images of all classes seen so far: an upper bound, not a continual learner."""

    model: Classifier
    teacher: Classifier | None

    def __init__(
        self,
        make_backbone: Callable[[], Backbone],
        *,
        head: str = "cosine",
        freeze_old: bool = True,
        imprint_new: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if head not in ("cosine", "linear"):
            raise OptionError(f"head must be cosine or linear, not {head!r}")
        if self.needs_cosine and head != "cosine":
            raise OptionError(f"learner {type(self).__name__.lower()} is defined for a cosine head, not for {head!r}")
        unknown = sorted(set(options or {}) - set(self.defaults))
        if unknown:
            raise OptionError(f"learner {type(self).__name__.lower()} has no option {', '.join(unknown)}")
        self._make_backbone = make_backbone
        self._head = head
        self._freeze_old = freeze_old
        self._imprint_new = imprint_new
        self.options: dict[str, Any] = {**self.defaults, **(options or {})}
        self.classes = 0
        self.known = 0
        self.teacher = None

    def grow(self, new: int) -> None:
        """Make the model ready for a task of `new` classes; the model as it was becomes the teacher."""
        if self.classes == 0:
            backbone = self._make_backbone()
            maker = CosineHead if self._head == "cosine" else LinearHead
            self.model = Classifier(backbone, maker(backbone.latent_dim, new))
        else:
            self.teacher = deepcopy(self.model).requires_grad_(False)
            self._grow_backbone()
            self._grow_head(new)
        self.known, self.classes = self.classes, self.classes + new
        self.train(self.training)

    def imprint(self, latents: Tensor, labels: Tensor) -> None:
        """Start the prototypes of the new classes from latents of their training images, where the method does so."""
        if self.imprints:
            imprint(self._split_head(), latents, labels)

    @property
    def imprints(self) -> bool:
        """Whether `imprint` would do anything."""
        return self._imprint_new and isinstance(getattr(self, "model", None) and self.model.head, SplitCosineHead)

    def groups(self) -> list[nn.Parameter]:
        """What the loop trains: here all parameters of the model that need a gradient."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def forward(self, images: Tensor, labels: Tensor) -> Loss:
        """The loss of a batch. Here cross entropy over all classes seen so far."""
        logits = self.model(images)
        return Loss({"classification": F.cross_entropy(logits, labels)}, logits)

    def end_epoch(self, balanced: Callable[[], Iterable[tuple[Tensor, Tensor]]], *, rate: float) -> None:
        """Called after each epoch of the tasks after the first; most learners do nothing here.

        Args:
            balanced: Gives batches of a set with equal shares of old and new classes, on the learner's device.
            rate: The learning rate as a share of its first value.
        """

    def _grow_backbone(self) -> None:
        """Surgery on the backbone before a task; most learners go on with the one they have."""

    def _grow_head(self, new: int) -> None:
        head = self.model.head
        if isinstance(head, LinearHead):
            head.grow(head.classes + new)
        elif isinstance(head, CosineHead | SplitCosineHead):
            split = SplitCosineHead.after(head, new)
            split.old.requires_grad_(not self._freeze_old)
            self.model.head = split

    def _split_head(self) -> SplitCosineHead:
        assert isinstance(self.model.head, SplitCosineHead)  # noqa: S101  (for the type checker)
        return self.model.head

    @torch.no_grad()
    def _teach(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Latents and logits of the model before the task."""
        assert self.teacher is not None  # noqa: S101  (for the type checker)
        latents = self.teacher.latents(images)
        return latents, self.teacher.scores(latents)
