"""ELI for learners in the style of PyCIL and PILOT."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from elign.integrations.task_alignment import AlignmentMixin

_BATCH_SIZE = 128


class ELIMixin(AlignmentMixin):
    """Fits ELI in `incremental_train`, and aligns latents in `_eval_cnn`. To stand before the learner it is mixed with.

    It learns from the task's own training data with test transforms, without exemplars. Accuracies within training are
    those of the network as it is, and so are those by nearest means (`_eval_nme`): the means of exemplars lie in the
    current network's space.
    """

    _network: nn.Module
    _known_classes: int
    _total_classes: int
    _device: torch.device

    usual_head: ClassVar[str] = "fc"

    def incremental_train(self, data_manager: Any) -> None:
        """Learn a task; the network from before it is copied, since not every learner keeps one."""
        self.alignment.begin(self._network, self._known_classes)
        super().incremental_train(data_manager)  # type: ignore[misc]
        classes = np.arange(self._known_classes, self._total_classes)
        dataset = data_manager.get_dataset(classes, source="train", mode="test")
        batches: DataLoader[Any] = DataLoader(dataset, batch_size=_BATCH_SIZE)
        self.alignment.end(self._network, batches, inputs=_image, device=self._device)

    def _eval_cnn(self, loader: Any) -> Any:
        with self.alignment.attached(self._network):
            return super()._eval_cnn(loader)  # type: ignore[misc]


def _image(batch: Any) -> Any:
    """Batches are (index, image, label)."""
    return batch[1]
