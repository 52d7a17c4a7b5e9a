"""A mixin for models in the style of mammoth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from elign.integrations.task_repair import RepairingLearner


class RepairMixin(RepairingLearner):
    """Repairs the network in `end_task`, for `forward`. Put it before the model that it is mixed with.

    It learns from the task's training data as the loader augments them, without the samples that a buffer adds. Only a
    `forward` that asks the classifier is repaired; a model that classifies by nearest means stays unchanged.
    """

    net: nn.Module
    device: torch.device
    n_past_classes: int

    usual_head: ClassVar[str] = "classifier"

    def begin_task(self, dataset: Any) -> None:
        """Copy the network before anything changes it."""
        self.task_repair.begin(self.net, self.n_past_classes)
        super().begin_task(dataset)  # type: ignore[misc]

    def end_task(self, dataset: Any) -> None:
        """Fit before the model itself ends the task, and perhaps changes the loader."""
        batches = _of_new_classes(dataset.train_loader, self.n_past_classes)
        self.task_repair.end(self.net, batches, exemplars=self.repair_exemplars(dataset), device=self.device)
        super().end_task(dataset)  # type: ignore[misc]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output, repaired if its network is in evaluation mode."""
        # For one call only: models copy their network at any time, and the copy must not have the repair.
        with self.task_repair.attached(self.net):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


def _of_new_classes(loader: Any, old_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the samples of new classes in batches of (image, label, ...)."""
    for images, labels, *_ in loader:
        new = labels >= old_classes
        if new.any():
            yield images[new], labels[new]
