"""ELI as a Lightning callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from elign.aligner import Aligner
from elign.gates import ByPrediction, Gate
from elign.integrations.errors import MissingLibraryError
from elign.integrations.task_alignment import Known, TaskAlignment

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    raise MissingLibraryError(
        f"elign.integrations.lightning needs Lightning: pip install lightning ({error})"
    ) from error


class ELICallback(Callback):  # type: ignore[misc]
    """One `trainer.fit` is one task: fits ELI at its end, and aligns latents in `validate`, `test` and `predict`.

    The model from before the task is a part of the callback's state, so that a fit that goes on from a checkpoint
    does not take a half-trained model for it. Validation within a fit shows the model as it is. A checkpoint that is
    written after the fit (`trainer.save_checkpoint`) holds the aligner, and `trainer.test(ckpt_path=...)` uses it; one
    from within the fit holds none, and its weights are tested as they are.

    Args:
        head: The part of the `LightningModule` that reads latents: a name as in `named_modules()`.
        known: Old classes: how many of the head's first outputs, or which; 0 for the first task. With the same callback
            for several tasks, set `callback.known` before each fit.
        aligner: Learns anew at the end of each fit; `EnergyAligner()` when not given.
        gate: Which latents are aligned: makes a gate from `known`, or is one; see `TaskAlignment`.
        data: Batches of the task's own data; the trainer's training data when not given. Give it if that holds samples
            of earlier tasks, too.
        inputs: Takes the input of the module's `forward` out of a batch, when it is not simply the first entry.
        passes: How often to go through the data.
    """

    def __init__(
        self,
        head: str,
        *,
        known: Known = 0,
        aligner: Aligner | None = None,
        gate: Gate | Callable[[Any], Gate] = ByPrediction,
        data: Iterable[Any] | None = None,
        inputs: Callable[[Any], Any] | None = None,
        passes: int = 1,
    ) -> None:
        super().__init__()
        self.alignment = TaskAlignment(head, aligner=aligner, gate=gate, passes=passes)
        self.known = known
        self.data = data
        self.inputs = inputs

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Keep a copy of the module, or make the one that a checkpoint holds; its state was loaded before this."""
        self.alignment.begin(pl_module, self.known, resumed=trainer.ckpt_path is not None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit; with several processes all of them then go on with what the first one learned, from its share."""
        data = self.data if self.data is not None else trainer.train_dataloader
        self.alignment.end(pl_module, data, inputs=self.inputs, device=pl_module.device)
        self.load_state_dict(trainer.strategy.broadcast(self.state_dict()))

    def state_dict(self) -> dict[str, Any]:
        """Goes into checkpoints."""
        return self.alignment.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Comes out of them."""
        self.alignment.load_state_dict(state_dict)

    def _attach(self, trainer: Any, pl_module: Any) -> None:
        self.alignment.attach(pl_module)

    def _detach(self, trainer: Any, pl_module: Any, *error: BaseException) -> None:
        self.alignment.detach()

    on_validation_start = on_test_start = on_predict_start = _attach
    on_validation_end = on_test_end = on_predict_end = on_exception = _detach
