"""A mixin for learners in the style of PyCIL and PILOT."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from elign.integrations.task_repair import RepairingLearner

_BATCH_SIZE = 128


class RepairMixin(RepairingLearner):
    """Repairs the network in `incremental_train`, for `_eval_cnn`. Put it before the learner that it is mixed with.

    It learns from the task's own training data with test transforms, without exemplars. Accuracies that are logged
    while training, and those of nearest means (`_eval_nme`), are the network's own.
    """

    _network: nn.Module
    _known_classes: int
    _total_classes: int
    _device: torch.device

    usual_head: ClassVar[str] = "fc"

    def incremental_train(self, data_manager: Any) -> None:
        """Learn a task and fit; the network is copied before, since not every learner keeps the previous one."""
        self.task_repair.begin(self._network, self._known_classes)
        super().incremental_train(data_manager)  # type: ignore[misc]
        classes = np.arange(self._known_classes, self._total_classes)
        dataset = data_manager.get_dataset(classes, source="train", mode="test")
        batches: DataLoader[Any] = DataLoader(dataset, batch_size=_BATCH_SIZE)
        kept = self.repair_exemplars(data_manager)
        # Batches are (index, image, label).
        entries = {"inputs": itemgetter(1), "labels": itemgetter(2)}
        self.task_repair.end(self._network, batches, exemplars=kept, device=self._device, **entries)

    def _eval_cnn(self, loader: Any) -> Any:
        with self.task_repair.attached(self._network):
            return super()._eval_cnn(loader)  # type: ignore[misc]
