"""A plugin for the strategies of Avalanche."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from elign.aligners.base import Aligner
from elign.attachments import Attachment
from elign.gates import Gate, Head
from elign.integrations.task_repair import Repairing, TaskRepair
from elign.utils.errors import MissingLibraryError
from elign.utils.extraction import find_module

try:
    from avalanche.core import SupervisedPlugin
except ModuleNotFoundError as error:
    raise MissingLibraryError(
        f"elign.integrations.avalanche needs Avalanche: pip install avalanche-lib==0.6.0 ({error})"
    ) from error


class RepairPlugin(SupervisedPlugin, supports_distributed=False):  # type: ignore[misc, call-arg]
    """Repairs the model after each experience, whenever the strategy evaluates it.

    It learns from the experience's own data with evaluation transforms, never from a replay buffer. An evaluation
    within an experience (`eval_every`) shows the model without the repair.

    Args:
        head: The part of the strategy's model that classifies in evaluation: "classifier" for Avalanche's own models,
            "eval_classifier" for `ICaRL`. For a head that grows (`IncrementalClassifier`), the whole of it.
        what: A `Repair` (the default), another classifier, or an aligner; see `TaskRepair`.
        exemplars: Takes the strategy and returns batches of old training data, or None.
        options: `gate`, `statistics` and `old_classes` of `TaskRepair`.

    Attributes:
        task_repair: The `TaskRepair`, with the report and the statistics.
    """

    def __init__(
        self,
        head: str,
        what: Repairing | None = None,
        *,
        exemplars: Callable[[Any], Iterable[Any] | None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.task_repair = TaskRepair(head, what, **options)
        self.exemplars = exemplars
        self._means: dict[int, Tensor] | None = None

    def before_training(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Move behind iCaRL's own plugin, which computes the class means in `after_training_exp`."""
        # A new list: Avalanche goes through the present one just now. Not the last: that one evaluates.
        others = [plugin for plugin in strategy.plugins if plugin is not self]
        behind = [place + 1 for place, plugin in enumerate(others) if hasattr(plugin, "x_memory")]
        place = max([strategy.plugins.index(self), *behind])
        strategy.plugins = [*others[:place], self, *others[place:]]

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Keep a copy of the model; its head may have grown, but training has not changed it yet."""
        self.task_repair.begin(strategy.model)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Fit on the experience's own data; replay adds to `strategy.adapted_dataset` only."""
        dataset = strategy.experience.dataset.eval()
        batches = DataLoader(dataset, batch_size=strategy.eval_mb_size, collate_fn=getattr(dataset, "collate_fn", None))
        kept = None if self.exemplars is None else self.exemplars(strategy)
        self.task_repair.end(strategy.model, batches, exemplars=kept, device=strategy.device)
        learned = {*self.task_repair.learned_classes, *strategy.experience.classes_in_this_experience}
        self.task_repair.learned_classes = sorted(learned)

    def before_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Attach; not earlier, since Avalanche may give the model another head for this experience."""
        attachment = self.task_repair.attach(strategy.model)
        if attachment is not None and isinstance(attachment.what, Aligner):
            self._means = _align_means(strategy, attachment, attachment.what, self.task_repair.old_classes)

    def after_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Detach: between evaluations the model is unchanged."""
        self.task_repair.detach()
        if self._means is not None:
            head: Any = find_module(strategy.model, self.task_repair.head)
            head.replace_class_means_dict(self._means)
            self._means = None


class _AsksUnaligned(Gate):
    """A gate that asks the head with unaligned class means."""

    learns = False

    def __init__(self, gate: Gate, head: Head) -> None:
        super().__init__()
        self.gate, self.head = gate, head

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        weights: Tensor = self.gate(z, head=self.head, aligner=aligner)
        return weights


def _align_means(strategy: Any, attachment: Attachment, aligner: Aligner, old: list[int]) -> dict[int, Tensor] | None:
    """Align the class means of iCaRL's classifier, for old classes; return the means from before.

    Aligned latents of old classes are compared with means, which must be aligned, too. Returns None if the head has no
    means, or if there are no exemplars to compute them from.
    """
    head: Any = attachment.head
    before = getattr(head, "class_means_dict", None)
    with torch.no_grad():
        moved = {label: _mean(strategy, aligner, x) for label, x in _exemplars(strategy) if label in old}
    if not before or not moved:
        return None
    unaligned = type(head)(normalize=head.normalize)
    unaligned.replace_class_means_dict(before)
    if attachment.gate is not None:
        attachment.gate = _AsksUnaligned(attachment.gate, unaligned)
    head.replace_class_means_dict({**before, **moved})
    return dict(before)


def _exemplars(strategy: Any) -> Iterator[tuple[int, Tensor]]:
    """Yield each class with the exemplars that iCaRL's own plugin keeps."""
    for plugin in strategy.plugins:
        for labels, x in zip(getattr(plugin, "y_memory", ()), getattr(plugin, "x_memory", ()), strict=True):
            if len(labels):
                yield int(labels[0]), x.to(strategy.device)


def _mean(strategy: Any, aligner: Aligner, x: Tensor) -> Tensor:
    """Return the class mean as Avalanche computes it: of normalised latents of images and their mirror images."""
    views = [x, x.flip(3)] if x.ndim == 4 else [x]
    latents = [aligner.align(strategy.model.feature_extractor(view)) for view in views]
    return normalize(normalize(torch.cat(latents)).mean(dim=0), dim=0)
