"""ELI as a plugin of Avalanche strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from elign.aligner import Aligner
from elign.gates import ByPrediction, Gate
from elign.heads import find_module
from elign.integrations.avalanche_means import move_means
from elign.integrations.errors import MissingLibraryError
from elign.integrations.task_alignment import TaskAlignment

try:
    from avalanche.core import SupervisedPlugin
except ModuleNotFoundError as error:
    raise MissingLibraryError(
        f"elign.integrations.avalanche needs Avalanche: pip install avalanche-lib==0.6.0 ({error})"
    ) from error


class ELIPlugin(SupervisedPlugin, supports_distributed=False):  # type: ignore[misc, call-arg]
    """Fits ELI after each experience, and aligns latents whenever the strategy evaluates.

    It learns from the experience's own data with its evaluation transforms, never from a replay buffer, and sees no
    label of an evaluation. An evaluation within an experience (`eval_every`) shows the model as it is.

    Args:
        head: The part of the strategy's model that reads latents in evaluation: "classifier" for Avalanche's own
            models, "eval_classifier" for `ICaRL`. For a head that grows (`IncrementalClassifier`), the whole of it.
        aligner: Learns anew after each experience; `EnergyAligner()` when not given.
        gate: Which latents are aligned: makes a gate from the indices of the old classes, or is one; see
            `TaskAlignment`.
        known: Classes that the model knew before the first experience.
        passes: How often to go through an experience's data.
    """

    def __init__(
        self,
        head: str,
        *,
        aligner: Aligner | None = None,
        gate: Gate | Callable[[Any], Gate] = ByPrediction,
        known: Iterable[int] = (),
        passes: int = 1,
    ) -> None:
        super().__init__()
        self.alignment = TaskAlignment(head, aligner=aligner, gate=gate, passes=passes)
        self.known = sorted(known)
        self._means: dict[int, Tensor] | None = None

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Keep a copy of the model: training has not changed it yet, though its head may have grown."""
        self.alignment.begin(strategy.model, self.known)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Fit on the experience's own data; what replay added is only in `strategy.adapted_dataset`."""
        experience = strategy.experience
        dataset = experience.dataset.eval()
        batches = DataLoader(dataset, batch_size=strategy.eval_mb_size, collate_fn=getattr(dataset, "collate_fn", None))
        self.alignment.end(strategy.model, batches, device=strategy.device)
        self.known = sorted({*self.known, *experience.classes_in_this_experience})

    def before_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Attach; only now, since Avalanche may give the model another head for this experience."""
        attachment = self.alignment.attach(strategy.model)
        if attachment is not None:
            self._means = move_means(strategy, attachment, self.alignment.known)

    def after_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Detach: between evaluations the model is as it was."""
        self.alignment.detach()
        if self._means is not None:
            head: Any = find_module(strategy.model, self.alignment.head)
            head.replace_class_means_dict(self._means)
            self._means = None
