"""Latents of a finished task, extracted once, and all readings of them.

`source` is the folder of the run, `target` where readings go: the same folder, or one below it for an evaluation of the
same models with other aligners.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from elign.lab.data.memory import Memory
from elign.lab.data.split import Split
from elign.lab.evaluation.evaluate import TaskEvaluation, evaluate_task
from elign.lab.evaluation.latents import TaskLatents
from elign.lab.evaluation.results import JSON_NAME, task_facts, write_results
from elign.lab.evaluation.settings import AlignerSettings
from elign.lab.experiments.bench import Bench
from elign.lab.experiments.editions import EDITION
from elign.lab.experiments.extract import latents_of, pairs_of
from elign.lab.experiments.run_config import AlignerConfig
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.run_sections import EnergyConfig
from elign.lab.learners import Learner
from elign.lab.seeds import derive_seed
from elign.lab.tensor_file import read_tensors, write_tensors

READINGS_EDITION = 1
"""See `Kind.edition`."""
LATENTS, PROTOTYPES = "latents.safetensors", "prototypes.safetensors"


def is_read(target: RunFolder, source: RunFolder, number: int) -> bool:
    """Whether all that `read_task` leaves is there."""
    here = (target.task(number) / name for name in (JSON_NAME, PROTOTYPES))
    return _latents_file(source, number).is_file() and all(file.is_file() for file in here)


def read_task(
    bench: Bench,
    learner: Learner,
    memory: Memory,
    number: int,
    *,
    source: RunFolder,
    target: RunFolder,
    settings: AlignerConfig,
    say: Callable[[str], None],
) -> None:
    """Fit the aligners of a task, take all readings and write them.

    Args:
        bench: What the run is.
        learner: After the task.
        memory: After the task.
        number: Of the task.
        source: The run.
        target: Where the readings go.
        settings: Of the aligners; the bench's own, or those of a later evaluation.
        say: Hears of each thing that begins.
    """
    start = time.perf_counter()
    say(f"task {number + 1}: extracting latents")
    current = _latents(bench, learner, memory, number, source)
    current = _with_pairs(bench, learner, current, number, target if target.path != source.path else None, settings)
    extracted = time.perf_counter() - start
    say(f"task {number + 1}: fitting aligners")
    previous = TaskLatents.load(_latents_file(source, number - 1)) if number else None
    evaluation = evaluate_task(
        current,
        learner.model.head.cpu(),
        previous=previous,
        previous_head=learner.teacher.head.cpu() if learner.teacher else None,
        prototypes=read_tensors(_prototypes_file(target, number - 1))[0] if number else {},
        task_sizes=bench.protocol.sizes[: number + 1],
        settings=aligner_settings(settings),
        seed=bench.config.seed,
    )
    bench.engine.place(learner)
    _write(evaluation, target, number, trained=source.load_model(number)[2]["seconds"], extracted=extracted)


def _write(evaluation: TaskEvaluation, target: RunFolder, number: int, *, trained: float, extracted: float) -> None:
    for name, fitted in evaluation.aligners.items():
        fitted.save(target.task(number) / "aligners" / f"{name}.safetensors")
    if evaluation.blend is not None:
        evaluation.blend.save(target.task(number) / "aligners" / "blend.safetensors")
    write_tensors(_prototypes_file(target, number), evaluation.prototypes)
    facts = task_facts(number + 1, evaluation) | {EDITION: READINGS_EDITION}
    facts["seconds"] |= {"train": trained, "extract": extracted}
    write_results(target.task(number), evaluation.rows, {}, tasks=[facts])


def _latents(bench: Bench, learner: Learner, memory: Memory, number: int, source: RunFolder) -> TaskLatents:
    """The latents of a task: read if they are there, else extracted and kept."""
    file = _latents_file(source, number)
    if file.is_file():
        return TaskLatents.load(file)
    data, model = bench.data, learner.model
    fresh, test = bench.new_rows(number), bench.test_rows(number)
    exemplars = memory.indices(bench.protocol.tasks[number].stop)

    def of(split: Split, rows: Tensor) -> Tensor:
        return latents_of(model, split, rows, engine=bench.engine, size=bench.config.train.eval_batch_size)

    none = torch.empty(0, model.backbone.latent_dim)
    pairs = _pairs(bench, learner, fresh, number, bench.config.aligner) if number else (none, none)
    latents = TaskLatents(
        test=of(data.test, test),
        test_labels=data.test.labels[test],
        new=of(data.train, fresh),
        new_labels=data.train.labels[fresh],
        memory=of(data.train, exemplars),
        memory_labels=data.train.labels[exemplars],
        pairs_previous=pairs[0],
        pairs_current=pairs[1],
    )
    latents.save(file)
    return latents


def _with_pairs(
    bench: Bench, learner: Learner, latents: TaskLatents, number: int, target: RunFolder | None, aligner: AlignerConfig
) -> TaskLatents:
    """The same latents with pairs of another augmentation, where the aligner's options ask for that."""
    asked = (aligner.passes, aligner.mixup)
    if not number or target is None or asked == (bench.config.aligner.passes, bench.config.aligner.mixup):
        return latents
    file = target.task(number) / "pairs.safetensors"
    if not file.is_file():
        previous, current = _pairs(bench, learner, bench.new_rows(number), number, aligner)
        write_tensors(file, {"previous": previous, "current": current})
    tensors, _ = read_tensors(file, expect=["previous", "current"])
    return dataclasses.replace(latents, pairs_previous=tensors["previous"], pairs_current=tensors["current"])


def _pairs(bench: Bench, learner: Learner, rows: Tensor, number: int, aligner: AlignerConfig) -> tuple[Tensor, Tensor]:
    assert learner.teacher is not None  # noqa: S101  (for the type checker: there is a task before)
    return pairs_of(
        learner.teacher,
        learner.model,
        bench.data.train,
        rows,
        engine=bench.engine,
        size=aligner.batch_size,
        passes=aligner.passes,
        mixup=aligner.mixup,
        seed=derive_seed(bench.config.seed, f"pairs of task {number}"),
    )


def aligner_settings(aligner: EnergyConfig) -> AlignerSettings:
    """What the evaluation needs to know of the configuration."""
    names = {field.name for field in dataclasses.fields(AlignerSettings)}
    return AlignerSettings(**{name: value for name, value in asdict(aligner).items() if name in names})


def _latents_file(folder: RunFolder, number: int) -> Path:
    return folder.task(number) / LATENTS


def _prototypes_file(folder: RunFolder, number: int) -> Path:
    return folder.task(number) / PROTOTYPES
