"""Latents of each task's training images under all earlier models of a run: what some trials align to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from elign.lab.experiments.bench import Bench
from elign.lab.experiments.extract import latents_of
from elign.lab.experiments.kinds import kind_of
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.speed import Speed
from elign.lab.models.classifier import Classifier
from elign.lab.tensor_file import read_tensors, write_tensors


def earlier_latents(run: Path) -> list[list[Tensor]]:
    """`[task][earlier task]` is (N, D): the task's own training images, not augmented, under the earlier model.

    Kept in the run's folder, since going through the images takes minutes.
    """
    file, folder = run / "trials" / "earlier-models.safetensors", RunFolder(run)
    names = [[f"{task}-{earlier}" for earlier in range(task)] for task in range(folder.tasks())]
    if not file.is_file():
        write_tensors(file, dict(_extracted(folder)))
    tensors, _ = read_tensors(file, expect=[name for row in names for name in row])
    return [[tensors[name] for name in row] for row in names]


def _extracted(folder: RunFolder) -> Iterator[tuple[str, Tensor]]:
    facts = folder.facts()
    kind = kind_of(facts)
    bench, _ = kind.open_bench(kind.from_dict(facts["config"]), Speed(**facts["speed"]))
    torch.set_num_threads(1)
    for earlier, model in enumerate(_models(bench, folder)):
        for task in range(earlier + 1, folder.tasks()):
            rows = bench.new_rows(task)
            yield f"{task}-{earlier}", latents_of(model, bench.data.train, rows, engine=bench.engine, size=500)


def _models(bench: Bench, folder: RunFolder) -> Iterator[Classifier]:
    learner = bench.learner()
    for number in range(folder.tasks()):
        bench.grow(learner, number)
        learner.load_state(folder.load_model(number)[0])
        learner.eval()
        yield learner.model
