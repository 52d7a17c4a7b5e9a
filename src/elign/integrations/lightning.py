"""A callback for Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elign.integrations.task_repair import RepairingCallback
from elign.utils.errors import MissingLibraryError

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise MissingLibraryError(
        f"elign.integrations.lightning needs Lightning: pip install lightning ({error})"
    ) from error


class RepairCallback(RepairingCallback, Callback):  # type: ignore[misc]
    """Repairs the model at the end of each `trainer.fit`, for `validate`, `test` and `predict`. One fit is one task.

    Use the same callback for all tasks: it keeps the statistics of the classes. Its state is in checkpoints. It holds
    the model from before the task, so that a fit that is resumed does not take a half-trained model for it. A
    checkpoint that is written after the fit (`trainer.save_checkpoint`) holds the repair; one from within the fit does
    not. Validation within a fit shows the model without the repair.

    The arguments are those of `RepairingCallback`.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep a copy of the module, or make the one that a checkpoint holds; its state was loaded before this."""
        self.task_repair.begin(pl_module, resumed=trainer.ckpt_path is not None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit; with several processes all of them go on with what the first one has learned from its share."""
        self.fit_repair(pl_module, trainer.train_dataloader, pl_module.device)
        if trainer.world_size > 1:
            self.load_state_dict(trainer.strategy.broadcast(self.state_dict()))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self.task_repair.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.task_repair.load_state_dict(state_dict)

    def _attach(self, trainer: Any, pl_module: Any) -> None:
        self.task_repair.attach(pl_module)

    def _detach(self, trainer: Any, pl_module: Any, *error: BaseException) -> None:
        self.task_repair.detach()

    on_validation_start = on_test_start = on_predict_start = _attach
    on_validation_end = on_test_end = on_predict_end = on_exception = _detach
