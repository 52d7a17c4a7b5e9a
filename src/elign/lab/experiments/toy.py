"""The two-task experiment of the paper's Section 3.3: learn classes 0-4, then 5-9, forget, align, remember.

Task identity is known at test time: old images are read by the old head, in every row of the result alike. What differs
between the rows is only what happens to the latents.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import elign
from elign.lab.data import ImageData
from elign.lab.data.errors import DataError
from elign.lab.experiments.toy_config import ToyConfig
from elign.lab.experiments.toy_result import Picture, SeedResult
from elign.lab.seeds import derive_seed

Tell = Callable[[str, int, int], None]
"""Called with what is going on, how much of it is done, and how much there is."""

_PICTURE_ROWS = 400


@dataclass(frozen=True)
class Task:
    """Half of the classes: images as rows of numbers in [0, 1], labels from 0."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    first_class: int


class ToyModel(nn.Module):
    """One linear layer to the latent, and for each task a head: ReLU and one linear layer."""

    def __init__(self, inputs: int, latent_dim: int, classes: tuple[int, int]) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, latent_dim)
        self.heads = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Linear(latent_dim, count)) for count in classes)

    def forward(self, x: Tensor, task: int) -> Tensor:
        """Logits of one task's head."""
        logits: Tensor = self.heads[task](self.base(x))
        return logits


def split_in_two(data: ImageData) -> tuple[Task, Task]:
    """The first half of the classes and the second one."""
    count = len(data.classes)
    if count < 2:
        raise DataError(f"{data.name} has {count} class(es); two tasks need at least 2")

    def task(first: int, last: int) -> Task:
        def part(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            mine = (labels >= first) & (labels < last)
            return images[mine].flatten(1).float() / 255, labels[mine] - first

        return Task(*part(data.train_images, data.train_labels), *part(data.test_images, data.test_labels), first)

    return task(0, count // 2), task(count // 2, count)


def run_seed(config: ToyConfig, data: ImageData, seed: int, tell: Tell) -> tuple[SeedResult, Picture]:
    """Train both tasks, fit all aligners on data of task 2, read task 1's test images with each."""
    old, new = split_in_two(data)
    start = time.perf_counter()
    previous, current = _train_both(config, (old, new), seed, tell)
    seconds_train = time.perf_counter() - start

    with torch.no_grad():
        z_prev, z_cur = previous.base(new.train_x), current.base(new.train_x)
        z_old_prev, z_old = previous.base(old.test_x), current.base(old.test_x)
        z_new_prev, z_new = previous.base(new.test_x), current.base(new.test_x)
    aligner = elign.EnergyAligner(
        hidden=config.hidden,
        iterations=config.iterations,
        steps=config.steps,
        step_size=config.step_size,
        ema_decay=config.ema_decay,
        seed=derive_seed(seed, "energy model"),
    )
    start = time.perf_counter()
    aligner.fit_latents(z_prev, z_cur, progress=lambda done, of, loss: tell("energy model", done, of))
    seconds_fit = time.perf_counter() - start

    walk = aligner.trajectory(z_old)
    aligned = walk[-1]
    moved = (aligned - z_old).norm(dim=1).mean().item()
    controls = {
        "ridge": elign.Ridge(penalty=0.1),
        "mean-shift": elign.MeanShift(),
        "random-shift": elign.RandomShift(norm=moved, seed=derive_seed(seed, "random shift")),
    }
    head = current.heads[0]
    readings = {
        "previous model": _accuracy(previous.heads[0], z_old_prev, old.test_y),
        "base": _accuracy(head, z_old, old.test_y),
        "eli": _accuracy(head, aligned, old.test_y),
        **{
            name: _accuracy(head, control.fit_latents(z_prev, z_cur).align(z_old), old.test_y)
            for name, control in controls.items()
        },
    }
    result = SeedResult(
        seed=seed,
        readings=readings,
        new_task=_accuracy(current.heads[1], z_new, new.test_y),
        new_task_aligned=_accuracy(current.heads[1], aligner.align(z_new), new.test_y),
        drift_before=_distance(z_old, z_old_prev),
        drift_after=_distance(aligned, z_old_prev),
        seconds_train=seconds_train,
        seconds_fit=seconds_fit,
    )
    energy = aligner.energy
    assert energy is not None and aligner.report is not None  # noqa: S101, PT018  (it is fitted)
    some_old, some_new = _some(len(z_old)), _some(len(z_new))
    with torch.no_grad():
        picture = Picture(
            old_labels=(old.test_y[some_old] + old.first_class).numpy(),
            new_labels=(new.test_y[some_new] + new.first_class).numpy(),
            old_previous=z_old_prev[some_old].numpy(),
            old_trajectory=walk[:, some_old].numpy(),
            new_current=z_new[some_new].numpy(),
            correct=(head(walk[:, some_old]).argmax(dim=-1) == old.test_y[some_old]).numpy(),
            energy={
                "old, previous model": energy(z_old_prev).numpy(),
                "old, current model": energy(z_old).numpy(),
                "old, aligned": energy(aligned).numpy(),
                "new, previous model": energy(z_new_prev).numpy(),
                "new, current model": energy(z_new).numpy(),
            },
            loss=aligner.report.loss.numpy(),
            class_names=data.classes,
        )
    return result, picture


def _train_both(config: ToyConfig, tasks: tuple[Task, Task], seed: int, tell: Tell) -> tuple[ToyModel, ToyModel]:
    """The model after task 1, and the same one after task 2."""
    counts = tuple(int(task.train_y.max()) + 1 for task in tasks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "model"))
        model = ToyModel(tasks[0].train_x.shape[1], config.latent_dim, (counts[0], counts[1]))
        optimizer = _optimizer(config, model, 0)
        _train(config, model, optimizer, tasks[0], 0, tell)
        previous = deepcopy(model).eval()
        if config.heads == "trained":
            optimizer = _optimizer(config, model, 1)
        _train(config, model, optimizer, tasks[1], 1, tell)
    return previous, model.eval()


def _optimizer(config: ToyConfig, model: ToyModel, task: int) -> torch.optim.SGD:
    parameters = [*model.base.parameters(), *model.heads[task].parameters()]
    return torch.optim.SGD(parameters, lr=config.learning_rate, momentum=0.9)


def _train(config: ToyConfig, model: ToyModel, optimizer: torch.optim.SGD, task: Task, number: int, tell: Tell) -> None:
    rows = len(task.train_x)
    size = min(config.batch_size, rows)
    for epoch in range(config.epochs):
        order = torch.randperm(rows)[: rows // size * size]
        for batch in order.view(-1, size):
            loss = F.cross_entropy(model(task.train_x[batch], number), task.train_y[batch])
            # Zeros, not None: in the paper's variant the old head's momentum must run out as it did there.
            optimizer.zero_grad(set_to_none=False)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        tell(f"task {number + 1}", epoch + 1, config.epochs)


def _accuracy(head: nn.Module, z: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((head(z).argmax(dim=-1) == labels).double().mean()) * 100


def _distance(z: Tensor, target: Tensor) -> float:
    return float((z - target).norm(dim=1).mean())


def _some(rows: int) -> Tensor:
    """Rows for the figures: evenly spread, so that they do not depend on chance."""
    return torch.from_numpy(np.linspace(0, rows - 1, min(rows, _PICTURE_ROWS)).astype(np.int64))
