"""What a method may see of a task: everything but test labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.lab.config.schema import AlignerConfig
from elign.lab.environment import derive_seed
from elign.lab.evaluation.features import TaskLatents
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.errors import ElignError
from elign.utils.extraction import evaluating, logits_of

T = TypeVar("T")
BIRTH = "birth"
"""Name of the statistics after the first task, which no method has transported yet."""
UNIT_BIRTH = f"{BIRTH} of directions"
"""The same of latents that were scaled to length 1."""


class EvaluationError(ElignError, ValueError):
    """What is to be evaluated does not fit together; the message says what does not."""


def read_head(head: nn.Module, latents: Tensor, *, classes: int) -> Tensor:
    """Return the logits (N, classes) of latents (N, D): in evaluation mode, without gradients, on the latents' device.

    A head may have outputs for classes that come later; they are left out.

    Raises:
        EvaluationError: The head has fewer outputs than there are classes.
    """
    weight = next(head.parameters(), None)
    there = latents if weight is None else latents.to(weight.device, weight.dtype)
    with evaluating(head), torch.no_grad():
        logits = logits_of(head(there)).to(latents.device)
    if logits.shape[1] < classes:
        raise EvaluationError(
            f"the head has {logits.shape[1]} outputs, but {classes} classes were seen: another task's?"
        )
    return logits[:, :classes]


class AlignTarget:
    """What aligners move: latents, or the logits of old classes (the paper's "logit aligner").

    Rows are what a method classifies, values the part of them that an aligner moves. For latents both are the latents.
    No code of the logit aligner was released. The definition used here: rows are the current head's logits of all
    classes, values those of the old ones, and previous values are the previous head's logits.

    Args:
        space: `latent` or `logits`.
        head: The current model's.
        previous_head: The previous model's; None at the first task, where nothing is aligned.
        old_classes: Number of classes before the task.
        classes: Number of classes after it.
    """

    def __init__(
        self, space: str, head: nn.Module, previous_head: nn.Module | None, *, old_classes: int, classes: int
    ) -> None:
        self.has_latents = space == "latent"
        self.head, self.previous_head, self.old_classes, self.classes = head, previous_head, old_classes, classes

    def rows(self, latents: Tensor) -> Tensor:
        """Return rows of the current model from its latents."""
        return latents if self.has_latents else read_head(self.head, latents, classes=self.classes)

    def logits(self, rows: Tensor) -> Tensor:
        """Return one logit for each class so far."""
        return read_head(self.head, rows, classes=self.classes) if self.has_latents else rows

    def previous_logits(self, latents: Tensor) -> Tensor:
        """Return the previous head's logits from the previous model's latents."""
        assert self.previous_head is not None  # noqa: S101  (there is a task before)
        return read_head(self.previous_head, latents, classes=self.old_classes)

    def previous(self, latents: Tensor) -> Tensor:
        """Return the values that rows should have had, from the previous model's latents."""
        return latents if self.has_latents else self.previous_logits(latents)

    def values(self, rows: Tensor) -> Tensor:
        """Return the part of rows that an aligner moves."""
        return rows if self.has_latents else rows[:, : self.old_classes]

    def replaced(self, rows: Tensor, values: Tensor) -> Tensor:
        """Return rows with other values."""
        return values if self.has_latents else torch.cat([values, rows[:, self.old_classes :]], dim=1)


@dataclass(frozen=True, eq=False)
class EvalInputs:
    """What label-free methods may see of one task. Nothing in it was made from a test label.

    Args:
        target: What rows are: latents or logits.
        task_sizes: How many classes each task brought so far.
        test: Rows of test images; this and the next eight as in `TaskLatents`, the first, second and fourth as rows.
        settings: How aligners are fitted.
        seed: Of everything random in this task.
        aligners: Fitted aligners to the previous model's space, by name.
        forward: Fitted aligners to the current model's space, by name.
        prototypes: Class means from birth, moved to the current space, by the name of the forward aligner.
        previous_prototypes: The same before this task.
        statistics: Statistics of the old classes in the previous space, by the method that transports them.
    """

    target: AlignTarget
    task_sizes: tuple[int, ...]
    test: Tensor
    new: Tensor
    new_labels: Tensor
    memory: Tensor
    memory_labels: Tensor
    pairs_previous: Tensor
    pairs_current: Tensor
    new_previous: Tensor
    memory_previous: Tensor
    settings: AlignerConfig
    seed: int
    aligners: Mapping[str, Aligner] = field(default_factory=dict)
    forward: Mapping[str, Aligner] = field(default_factory=dict)
    prototypes: Mapping[str, Tensor] = field(default_factory=dict)
    previous_prototypes: Mapping[str, Tensor] = field(default_factory=dict)
    statistics: Mapping[str, ClassStatistics] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, latents: TaskLatents, target: AlignTarget, **others: Any) -> EvalInputs:
        """Make them from the latents of a task; its test labels are left behind."""
        given: dict[str, Any] = {each.name: getattr(latents, each.name) for each in fields(latents)}
        del given["test_labels"]
        given |= {name: target.rows(given[name]) for name in ("test", "new", "memory")}
        # Copies: tensors that were read from one file may share their memory, and the labels are in that file.
        return cls(target=target, **{name: tensor.clone() for name, tensor in given.items()}, **others)

    @property
    def old_classes(self) -> int:
        """Number of classes before the task."""
        return sum(self.task_sizes[:-1])

    @property
    def classes(self) -> int:
        """Number of classes so far."""
        return sum(self.task_sizes)

    @property
    def task_boundaries(self) -> list[int]:
        """Number of classes after each task before this one."""
        return list(accumulate(self.task_sizes[:-1]))

    @property
    def old_memory(self) -> Tensor:
        """Which exemplars are of old classes, (K,) bool."""
        return self.memory_labels < self.old_classes

    @property
    def old_exemplars(self) -> Tensor | None:
        """Rows of the exemplars of old classes; None if there are none."""
        return self.memory[self.old_memory] if bool(self.old_memory.any()) else None

    def statistics_of(self, method: str) -> ClassStatistics | None:
        """Return the statistics of old classes that a method has transported so far; None if there are none."""
        return self.statistics.get(BIRTH if len(self.task_sizes) == 2 else method)

    def has(self, need: str, method: str = "") -> bool:
        """Whether there is what a method needs; names as in `NEEDS`."""
        return NEEDS[need](self, method)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Return what `make` makes; several methods that need the same share it by a key."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    def generator(self, purpose: str) -> torch.Generator:
        """Return random numbers for one purpose."""
        return torch.Generator().manual_seed(derive_seed(self.seed, purpose))

    def move_test(self, aligner: str, weights: Tensor) -> Tensor:
        """Return test rows, each moved by its weight in [0, 1] of the way that the aligner moves it."""
        return self._move("test", self.test, aligner, weights)

    def move_memory(self, aligner: str, weights: Tensor) -> Tensor:
        """Do the same for exemplars."""
        return self._move("memory", self.memory, aligner, weights)

    def _move(self, which: str, rows: Tensor, aligner: str, weights: Tensor) -> Tensor:
        values = self.target.values(rows)
        generator = self.generator(f"noise, {aligner}, {which}")
        # All rows once per aligner: many methods differ in their weights only.
        moved = self.once((which, aligner), lambda: self.aligners[aligner].align(values, generator=generator))
        # lerp is exact at both ends: weight 0 leaves a row bit for bit.
        return self.target.replaced(rows, torch.lerp(values, moved, weights.to(values.dtype).unsqueeze(1)))


def count_classes(labels: Tensor) -> int:
    """Return the number of different labels."""
    return int((torch.bincount(labels) > 0).sum())


NEEDS: Mapping[str, Callable[[EvalInputs, str], bool]] = {
    "latents": lambda inputs, method: inputs.target.has_latents,
    "exemplars": lambda inputs, method: count_classes(inputs.memory_labels) == inputs.classes,
    "old-exemplars": lambda inputs, method: bool(inputs.old_memory.any()),
    "exemplars-of-both": lambda inputs, method: bool(inputs.old_memory.any() and (~inputs.old_memory).any()),
    "labelled-pairs": lambda inputs, method: inputs.target.has_latents and len(inputs.new_previous) > 0,
    "statistics": lambda inputs, method: inputs.statistics_of(method) is not None,
    "rivals": lambda inputs, method: inputs.settings.rivals and inputs.target.has_latents,
    "linear-head": lambda inputs, method: isinstance(inputs.target.head, nn.Linear),
}
"""What methods can need, by name: rows that are latents; an exemplar of every class, of some old class, of some old and
some new class; latents of labelled new images under both models; statistics that the method has carried along; the
setting `aligner.rivals`; a head that is one linear layer."""
