"""A callback for `transformers.Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from elign.integrations.task_repair import Repairing, RepairingCallback, load_repaired
from elign.utils.errors import MissingLibraryError, OptionError

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise MissingLibraryError(
        f"elign.integrations.transformers needs transformers: pip install transformers accelerate ({error})"
    ) from error

__all__ = ["RepairCallback", "load_repaired"]


class RepairCallback(RepairingCallback, TrainerCallback):  # type: ignore[misc]
    """Repairs the model at the end of each `trainer.train()`, and saves the repair beside it. One call is one task.

    Use the same callback for all tasks, or hand the statistics of the previous one on:
    `RepairCallback("classifier", statistics=ClassStatistics.load(folder / "statistics.safetensors"))`.

    The repair stays attached after training, so that `trainer.evaluate` and `trainer.predict` use it; an evaluation
    within training does not. The files `repair.safetensors` and `statistics.safetensors` are in `args.output_dir` and
    in the checkpoint with the same weights, if there is one. `load_repaired(model, folder)` attaches the repair again.

    Args:
        head: The head of the model: "classifier" for most models of transformers.
        what: A `Repair` (the default), another classifier, or an aligner; see `TaskRepair`.
        previous: The model from before the task; by default a copy of the trainer's model when training begins. Give
            it if you resume from a checkpoint and the trainer was not made with the model from before the task.
        options: The other arguments of `RepairingCallback`.
    """

    def __init__(
        self, head: str, what: Repairing | None = None, *, previous: nn.Module | None = None, **options: Any
    ) -> None:
        super().__init__(head, what, **options)
        self.previous = previous

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep a copy of the model: training may begin with the weights of a checkpoint."""
        self.task_repair.begin(self.previous or kwargs["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep a copy of the model, if it has learned nothing of this task yet."""
        if state.global_step == 0 or self.previous is not None:
            self.task_repair.begin(self.previous or kwargs["model"])
        elif self.task_repair.learned_classes and self.task_repair.previous is None:
            raise OptionError("training is resumed, and the model from before the task is not known: give previous=...")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Fit, save and attach."""
        model = kwargs["model"]
        self.fit_repair(model, kwargs["train_dataloader"], args.device)
        self.previous = None
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            # Each process has seen its share: all of them go on with what the first one has learned.
            states = [self.task_repair.state_dict()]
            torch.distributed.broadcast_object_list(states)
            self.task_repair.load_state_dict(states[0])
        if state.is_world_process_zero:
            self._save(args, state)
        self.task_repair.attach(model)

    def _save(self, args: Any, state: Any) -> None:
        """Write the repair into the output folder, and beside the checkpoint that holds the model's weights."""
        output = Path(args.output_dir)
        output.mkdir(parents=True, exist_ok=True)
        self.task_repair.save(output)
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        checkpoint = Path(best) if best is not None else output / f"checkpoint-{state.global_step}"
        if checkpoint.is_dir():
            self.task_repair.save(checkpoint)
