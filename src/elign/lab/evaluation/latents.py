"""The latents of one task: all that the readings need, extracted once and kept in one file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from torch import Tensor

from elign.lab.tensor_file import read_tensors, write_tensors


@dataclass(frozen=True, eq=False)
class TaskLatents:
    """Latents after a task was learned; `known` classes came before it. Labels are numbered in the order of arrival.

    Args:
        test: Test images of all classes seen so far, under the current model, (N, D).
        test_labels: Their labels, (N,).
        new: Training images of the task's own classes, not augmented, under the current model, (M, D).
        new_labels: Their labels, (M,).
        memory: Exemplars of all classes seen so far, not augmented, under the current model, (K, D); K may be 0.
        memory_labels: Their labels, (K,).
        pairs_previous: Augmented training images of the task's own classes under the previous model, (P, D); P is 0
            for the first task.
        pairs_current: The same augmented images under the current model, (P, D).
    """

    test: Tensor
    test_labels: Tensor
    new: Tensor
    new_labels: Tensor
    memory: Tensor
    memory_labels: Tensor
    pairs_previous: Tensor
    pairs_current: Tensor

    @property
    def known(self) -> int:
        """Number of classes that came before this task."""
        return int(self.new_labels.min())

    @property
    def seen(self) -> int:
        """Number of classes seen so far."""
        return int(self.new_labels.max()) + 1

    def save(self, path: Path) -> None:
        """Write all of it to one file."""
        write_tensors(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> TaskLatents:
        """Read what `save` wrote.

        Raises:
            DamagedRunError: The file is damaged or is something else.
        """
        tensors, _ = read_tensors(path, expect=[field.name for field in fields(cls)])
        return cls(**tensors)
