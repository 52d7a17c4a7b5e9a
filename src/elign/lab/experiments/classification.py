"""Class-incremental classification as a kind of run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from elign.lab.data.memory import Memory
from elign.lab.experiments.bench import Bench, first_task, open_bench
from elign.lab.experiments.extract import latents_of
from elign.lab.experiments.kind import Kind
from elign.lab.experiments.kinds import CLASSIFICATION
from elign.lab.experiments.loop import Place, Watch
from elign.lab.experiments.reading import READINGS_EDITION, is_read, read_task
from elign.lab.experiments.run_config import TREE, compose, from_dict, with_aligner
from elign.lab.experiments.training import teach
from elign.lab.learners import Learner


def teach_task(
    bench: Bench,
    learner: Learner,
    memory: Memory,
    number: int,
    *,
    watch: Watch,
    resume: tuple[Place, Mapping[str, Tensor]] | None,
) -> None:
    """Imprint the new classes where the learner does so, then train."""
    config, split = bench.config, bench.data.train
    task = bench.task(number, memory, all_data=learner.sees_all_data)
    if number and learner.imprints:
        start = _latents(bench, learner, task.new)
        learner.imprint(start, split.labels[task.new])
    teach(learner, task, split, config.train, engine=bench.engine, seed=config.seed, watch=watch, resume=resume)


def remember(bench: Bench, learner: Learner, memory: Memory, number: int) -> None:
    """Choose the exemplars of the classes that a task brought."""
    classes, rows = bench.protocol.tasks[number], bench.new_rows(number)
    if not memory.per_class_count(classes.stop):
        return
    new, labels = _latents(bench, learner, rows), bench.data.train.labels[rows]
    for label in classes:
        mine = labels == label
        memory.add(label, rows[mine], new[mine])


def _latents(bench: Bench, learner: Learner, rows: Tensor) -> Tensor:
    size = bench.config.train.eval_batch_size
    return latents_of(learner.model, bench.data.train, rows, engine=bench.engine, size=size)


KIND = Kind(
    name=CLASSIFICATION,
    command="elign run",
    tree=TREE,
    compose=compose,
    from_dict=from_dict,
    with_aligner=with_aligner,
    open_bench=open_bench,
    first_task=first_task,
    teach=teach_task,
    remember=remember,
    read=read_task,
    is_read=is_read,
    edition=READINGS_EDITION,
)
"""`elign run`."""
