"""The latents of a run's last task as a `Picture`: the same record that the two-task experiment leaves behind.

So the figures of `latent_figure.py` and `toy_figures.py` draw both. Everything is read from the run's files; only the
walk down the energy is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.aligners.energy import EnergyAligner
from elign.lab.evaluation.latents import TaskLatents
from elign.lab.evaluation.spaces import Space, make_space
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.toy_result import Picture
from elign.lab.models.heads import CosineHead, LinearHead, SplitCosineHead
from elign.lab.report.embedding import NEW_IMAGES, OLD_IMAGES, balanced_subset
from elign.lab.report.palette import CLASS_COLOURS
from elign.lab.report.runs import Run
from elign.lab.tensor_file import DamagedRunError, read_tensors

# Enough for means and histograms that look like those of all images, and a walk that fits into memory.
_HEAD = "model.head."
MEASURED_IMAGES = 2000


@dataclass(frozen=True, eq=False)
class RunPicture:
    """Latents of one run after its last finished task.

    Args:
        task: Number of the task, from 1.
        map: A few images of at most eight old classes, for the map of the latent space.
        measured: Images of all old classes, for means over images and energies.
        classes: How many old classes there are.
    """

    task: int
    map: Picture
    measured: Picture
    classes: int


def run_picture(run: Run) -> RunPicture:
    """Read the latents, heads and the energy model of a run's last task, and let latents descend the energy.

    Args:
        run: With at least two finished tasks.

    Raises:
        ElignError: A file is damaged.
        FileNotFoundError: A file was removed.
    """
    number = len(run.tasks) - 1
    walk = _Walk.of(run, number)
    labels = walk.current.test_labels.numpy()
    known = walk.current.known
    old, new = np.flatnonzero(labels < known), np.flatnonzero(labels >= known)
    # Colours repeat after eight classes: with more, these are spread evenly over the order of arrival.
    shown = np.unique(np.linspace(0, known - 1, min(known, CLASS_COLOURS)).round())
    few = old[np.isin(labels[old], shown)]
    return RunPicture(
        task=number + 1,
        map=walk.picture(_some(few, labels, OLD_IMAGES), _some(new, labels, NEW_IMAGES)),
        measured=walk.picture(_some(old, labels, MEASURED_IMAGES), new[:0]),
        classes=known,
    )


def _some(rows: NDArray[np.int64], labels: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = rows[balanced_subset(labels[rows], limit)]
    return chosen


@dataclass(frozen=True, eq=False)
class _Walk:
    """What a task's latents are read and moved with."""

    current: TaskLatents
    previous: TaskLatents
    pairs: tuple[Tensor, Tensor]
    space: Space
    aligner: EnergyAligner
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, run: Run, number: int) -> _Walk:
        source = run.source
        current = TaskLatents.load(source.task(number) / "latents.safetensors")
        previous = TaskLatents.load(source.task(number - 1) / "latents.safetensors")
        file = run.folder.task(number) / "aligners" / "eli.safetensors"
        aligner = Aligner.load(file)
        if not isinstance(aligner, EnergyAligner):
            raise DamagedRunError(f"{file} holds a {type(aligner).__name__}, not an energy aligner")
        config = run.facts["config"]["aligner"]
        head, previous_head = (_head(source, task) for task in (number, number - 1))
        space = make_space(config["space"], head, previous_head, known=current.known, seen=current.seen)
        names = tuple(str(name) for name in run.facts["classes"])
        return cls(current, previous, _pairs(run, number, current), space, aligner, names)

    def picture(self, old: NDArray[np.int64], new: NDArray[np.int64]) -> Picture:
        """The picture of some test images: `old` and `new` are rows of the test images."""
        labels = self.current.test_labels
        rows = self.space.rows(self.current.test[torch.from_numpy(old)])
        # Old test images come first after every task, so their rows are those of the task before.
        target = self.space.previous(self.previous.test[torch.from_numpy(old)])
        start = self.space.values(rows)
        with torch.no_grad():
            path = self.aligner.trajectory(start, generator=torch.Generator().manual_seed(0))
            right = [self.space.logits(self.space.replaced(rows, step)).argmax(1) == labels[old] for step in path]
            return Picture(
                old_labels=labels[old].numpy(),
                new_labels=labels[new].numpy(),
                old_previous=target.numpy(),
                old_trajectory=path.numpy(),
                new_current=self.space.values(self.space.rows(self.current.test[torch.from_numpy(new)])).numpy(),
                correct=torch.stack(right).numpy(),
                energy=self._energies(target, start, path[-1]),
                loss=np.zeros(0, np.float32),
                class_names=self.class_names,
            )

    def _energies(self, target: Tensor, start: Tensor, aligned: Tensor) -> Mapping[str, NDArray[np.float32]]:
        """Of old test images, and of the pairs from the new task that the energy model learned from."""
        assert self.aligner.energy is not None  # noqa: S101  (it was loaded fitted)
        before, now = (tensor[:MEASURED_IMAGES] for tensor in self.pairs)
        values = {
            "old, previous model": target,
            "old, current model": start,
            "old, aligned": aligned,
            "new, previous model": self.space.previous(before),
            "new, current model": self.space.values(self.space.rows(now)),
        }
        return {name: self.aligner.energy(z).numpy() for name, z in values.items()}


def _pairs(run: Run, number: int, current: TaskLatents) -> tuple[Tensor, Tensor]:
    """Pairs of the new task; an evaluation with another augmentation has its own."""
    own = run.folder.task(number) / "pairs.safetensors"
    if not own.is_file():
        return current.pairs_previous, current.pairs_current
    tensors, _ = read_tensors(own, expect=["previous", "current"])
    return tensors["previous"], tensors["current"]


def _head(folder: RunFolder, number: int) -> nn.Module:
    """The head after a task, made from its weights alone: the backbone and the data are not needed here."""
    state, _, _ = folder.load_model(number)
    weights = {name.removeprefix(_HEAD): tensor for name, tensor in state.items() if name.startswith(_HEAD)}
    names = set(weights)
    if names == {"weight", "bias"}:
        classes, dim = weights["weight"].shape
        head: nn.Module = LinearHead(dim, classes)
    elif names == {"weight", "sigma"}:
        classes, dim = weights["weight"].shape
        head = CosineHead(dim, classes)
    elif names == {"old", "new", "sigma"}:
        head = SplitCosineHead(weights["old"].shape[1], len(weights["old"]), len(weights["new"]))
    else:
        raise DamagedRunError(
            f"{folder.task(number)}/model.safetensors has an unknown head: {', '.join(sorted(names))}"
        )
    head.load_state_dict(weights)
    return head
