"""What a learner is: its options, the surgery on its model before a task, and its loss on a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab import registry
from elign.lab.models.classifier import Backbone, Classifier, CosineHead, LinearHead, SplitCosineHead, imprint
from elign.lab.registry import Registry
from elign.utils.errors import OptionError

Head = Literal["cosine", "linear"]
_RESERVED = {"name", "head", "freeze_old", "imprint"}


class LearnerOptions(BaseModel):
    """Options of a learner: names, published values and ranges, declared as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


class WithTeacher(nn.Module):
    """A learner of any model: it declares options; its `teacher` stays in evaluation mode and is not saved."""

    class Options(LearnerOptions):
        """The learner's own options; here none."""

    options: LearnerOptions
    teacher: nn.Module | None

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> LearnerOptions:
        """Return the options with those not given at their published values; raise `OptionError` for wrong ones."""
        try:
            return cls.Options(**options)
        except ValidationError as error:
            problem = error.errors()[0]
            name = ".".join(map(str, problem["loc"]))
            if problem["type"] == "extra_forbidden":
                has = ", ".join(cls.Options.model_fields) or "none"
                raise OptionError(f"learner {cls.__name__.lower()} has no option {name}; it has: {has}") from None
            wanted = problem["msg"].replace("Input should be", "must be")
            raise OptionError(f"learner.{name} {wanted}, not {problem['input']!r}") from None

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; the teacher always stays in evaluation mode."""
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def state(self) -> dict[str, Tensor]:
        """Return what changes while a task is learned: everything but the teacher."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("teacher.")}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` gave into a learner that has grown in the same way."""
        missing, unexpected = self.load_state_dict(state, strict=False)
        missing = [name for name in missing if not name.startswith("teacher.")]
        if missing or unexpected:
            raise OptionError(f"a state that does not fit: lacks {missing[:3]}, has {unexpected[:3]} too many")


def distillation(student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    """Return KL(softmax(teacher / T) || softmax(student / T)), summed over classes, mean over the batch.

    The published loss of iCaRL is beta T^2 times this, with T = 2 and beta = 1/4: exactly this. Logits are (N, old).
    """
    target = F.log_softmax(teacher.detach() / temperature, dim=1)
    return F.kl_div(F.log_softmax(student / temperature, dim=1), target, reduction="batchmean", log_target=True)


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

    A subclass declares its options in a nested class `Options`, and is registered with `LEARNERS`.

    Args:
        make_backbone: Makes a freshly drawn backbone.
        head: The kind of head; default: the learner's `default_head`, and so on.
        freeze_old: Whether the prototypes of old classes (cosine head) do not train.
        imprint_new: Whether prototypes of new classes (cosine head) start at the mean directions of their latents.
        options: The learner's own options; those not given have their published values.

    Raises:
        OptionError: The learner does not take these options.
    """

    default_head: ClassVar[Head] = "cosine"
    default_freeze_old: ClassVar[bool] = False
    default_imprint: ClassVar[bool] = True
    needs_cosine: ClassVar[bool] = False
    sees_all_data: ClassVar[bool] = False
    """Whether the learner is given the images of all classes seen so far: an upper bound, not a continual learner."""

    model: Classifier
    teacher: Classifier | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = sorted(_RESERVED & cls.Options.model_fields.keys())
        if taken:
            raise OptionError(f"The bench itself has a setting {taken[0]!r}: give the learner's option another name.")

    def __init__(
        self,
        make_backbone: Callable[[], Backbone],
        *,
        head: Head | None = None,
        freeze_old: bool | None = None,
        imprint_new: bool | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._make_backbone = make_backbone
        self._head = self.default_head if head is None else head
        if self._head not in ("cosine", "linear"):
            raise OptionError(f"head must be cosine or linear, not {head!r}")
        if self.needs_cosine and self._head != "cosine":
            raise OptionError(f"learner {type(self).__name__.lower()} is defined for a cosine head, not for {head!r}")
        self._freeze_old = self.default_freeze_old if freeze_old is None else freeze_old
        self._imprint_new = self.default_imprint if imprint_new is None else imprint_new
        self.options = self.check_options(options or {})
        self.classes = 0
        self.old_classes = 0
        self.teacher = None

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Return the default of every setting of the learner: those of the bench, then its own options."""
        bench = {"head": cls.default_head, "freeze_old": cls.default_freeze_old, "imprint": cls.default_imprint}
        return bench | cls.Options().model_dump()

    def grow(self, new: int) -> None:
        """Make the model ready for a task of `new` classes; a copy of the model becomes the teacher."""
        if self.classes == 0:
            backbone = self._make_backbone()
            maker = CosineHead if self._head == "cosine" else LinearHead
            self.model = Classifier(backbone, maker(backbone.latent_dim, new))
        else:
            self.teacher = deepcopy(self.model).requires_grad_(False)
            self._grow_backbone()
            self._grow_head(new)
        self.old_classes, self.classes = self.classes, self.classes + new
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
        """Return what the loop trains: here all parameters of the model that need a gradient."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def forward(self, images: Tensor, labels: Tensor) -> Loss:
        """Return the loss of a batch: here cross entropy over all classes seen so far."""
        logits = self.model(images)
        return Loss({"classification": F.cross_entropy(logits, labels)}, logits)

    def end_epoch(self, balanced: Callable[[], Iterable[tuple[Tensor, Tensor]]], *, rate: float) -> None:
        """Run after each epoch of the tasks after the first; most learners do nothing here.

        `balanced` gives batches with equal shares of old and new classes, `rate` is the learning rate as a share of its
        first value.
        """

    def _grow_backbone(self) -> None:
        """Change the backbone before a task; most learners keep the one they have."""

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
    def _teacher_outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents and logits of the model before the task."""
        assert self.teacher is not None  # noqa: S101  (for the type checker)
        latents = self.teacher.latents(images)
        return latents, self.teacher.scores(latents)


LEARNERS: Registry[type[Learner]] = registry.LEARNERS
"""The learners of the bench, by name."""


def make_learner(name: str, make_backbone: Callable[[], Backbone], **settings: Any) -> Learner:
    """Make a learner that has learned nothing yet; see `Learner` for the settings.

    Example:
        >>> from elign.lab.models import make_backbone
        >>> learner = make_learner("icarl", lambda: make_backbone("conv", image_shape=(1, 8, 8)))
        >>> learner.grow(5)
        >>> learner.grow(1)
        >>> learner.old_classes, learner.classes
        (5, 6)
    """
    return LEARNERS[name](make_backbone, **settings)
