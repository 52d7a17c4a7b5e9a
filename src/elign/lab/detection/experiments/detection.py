"""Incremental detection as a kind of run."""

from __future__ import annotations

from elign.lab.data.memory import Memory
from elign.lab.detection.experiments.bench import DetectionBench, first_task, open_bench
from elign.lab.detection.experiments.config import TREE, compose, from_dict, with_aligner
from elign.lab.detection.experiments.reading import READINGS_EDITION, is_read, read_task
from elign.lab.detection.experiments.training import teach_task
from elign.lab.detection.learners import DetectionLearner
from elign.lab.experiments.kind import Kind
from elign.lab.experiments.kinds import DETECTION


def remember(bench: DetectionBench, learner: DetectionLearner, memory: Memory, number: int) -> None:
    """Keep images of the classes that a task brought."""
    bench.remember(memory, number)


KIND = Kind(
    name=DETECTION,
    command="elign detect run",
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
"""`elign detect run`."""
