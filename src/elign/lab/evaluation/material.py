"""What a reading may see of a task: everything but test labels.

This is the border that keeps readings honest: `evaluate.py` takes the test labels off the latents and builds a
`Material` of the rest; whatever is not an oracle works on that alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elign.aligners.base import Aligner
from elign.lab.evaluation.class_means import count_classes
from elign.lab.evaluation.latents import TaskLatents
from elign.lab.evaluation.spaces import Space
from elign.lab.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Material:
    """Rows of one task after the first, and the fitted aligners. There is no test label in it.

    Args:
        space: What rows are.
        known: Number of classes before the task.
        seen: Number of classes after it.
        test: Test rows, (N, ...).
        new: Rows of training images of the new classes.
        new_labels: Their (training) labels.
        memory: Rows of the exemplars of all classes, (K, ...); K may be 0.
        memory_labels: Their (training) labels, (K,).
        aligners: Fitted aligners by name.
        seed: Of the noise of aligners that use some.
    """

    space: Space
    known: int
    seen: int
    test: Tensor
    new: Tensor
    new_labels: Tensor
    memory: Tensor
    memory_labels: Tensor
    aligners: Mapping[str, Aligner]
    seed: int
    _moved: dict[tuple[str, str], Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, latents: TaskLatents, *, space: Space, aligners: Mapping[str, Aligner], seed: int) -> Material:
        """From the latents of a task; their test labels stay behind."""
        return cls(
            space=space,
            known=latents.known,
            seen=latents.seen,
            test=space.rows(latents.test),
            new=space.rows(latents.new),
            new_labels=latents.new_labels,
            memory=space.rows(latents.memory),
            memory_labels=latents.memory_labels,
            aligners=aligners,
            seed=seed,
        )

    @property
    def old_exemplars(self) -> Tensor | None:
        """Rows of the exemplars of old classes; None if there are none."""
        old = self.memory[self.memory_labels < self.known]
        return old if len(old) else None

    @property
    def has_all_exemplars(self) -> bool:
        """Is there an exemplar of every class seen so far?"""
        return count_classes(self.memory_labels) == self.seen

    @property
    def has_exemplars_of_both(self) -> bool:
        """Are there exemplars of old and of new classes?"""
        return bool((self.memory_labels < self.known).any() and (self.memory_labels >= self.known).any())

    def move_test(self, aligner: str, weights: Tensor) -> Tensor:
        """Test rows, each moved by its weight in [0, 1] of the way that the aligner moves it."""
        return self._move("test", self.test, aligner, weights)

    def move_memory(self, aligner: str, weights: Tensor) -> Tensor:
        """The same for exemplars."""
        return self._move("memory", self.memory, aligner, weights)

    def _move(self, which: str, rows: Tensor, aligner: str, weights: Tensor) -> Tensor:
        values = self.space.values(rows)
        # All rows once per aligner: many readings differ in their weights only.
        moved = self._moved.get((which, aligner))
        if moved is None:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, f"noise, {aligner}, {which}"))
            moved = self._moved[which, aligner] = self.aligners[aligner].align(values, generator=generator)
        # lerp is exact at both ends: weight 0 leaves a row as it is, bit for bit.
        return self.space.replaced(rows, torch.lerp(values, moved, weights.to(values.dtype).unsqueeze(1)))
