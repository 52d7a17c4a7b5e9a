"""ELI for models in the style of mammoth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from elign.integrations.task_alignment import AlignmentMixin


class ELIMixin(AlignmentMixin):
    """Fits ELI in `end_task`, and aligns latents in `forward`. To stand before the model it is mixed with.

    It learns from the task's training data as the loader augments them, without what a buffer added to them. Only a
    `forward` that asks the classifier is aligned; a model that answers by nearest means is left as it is.
    """

    net: nn.Module
    device: torch.device
    n_past_classes: int

    usual_head: ClassVar[str] = "classifier"

    def begin_task(self, dataset: Any) -> None:
        """Copy the network before anything changes it."""
        self.alignment.begin(self.net, self.n_past_classes)
        super().begin_task(dataset)  # type: ignore[misc]

    def end_task(self, dataset: Any) -> None:
        """Fit before the model itself ends the task, and perhaps changes the loader."""
        self.alignment.end(self.net, _NewClasses(dataset.train_loader, self.n_past_classes), device=self.device)
        super().end_task(dataset)  # type: ignore[misc]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own answer, with latents aligned if its network is in evaluation mode."""
        # For one call only: models copy their network at any time, and a copy must not align.
        with self.alignment.attached(self.net):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class _NewClasses:
    """The images of new classes among batches of (image, label, ...), as often as they are asked for."""

    def __init__(self, loader: Any, known: int) -> None:
        self._loader = loader
        self._known = known

    def __iter__(self) -> Iterator[Tensor]:
        for images, labels, *_ in self._loader:
            new = labels >= self._known
            if new.any():
                yield images[new]
