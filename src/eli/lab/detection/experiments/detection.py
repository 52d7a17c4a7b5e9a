"""Incremental detection as a kind of run. Imported by `eli.lab.experiments.kinds`, when it is asked for."""

from __future__ import annotations

from eli.lab.data.memory import Memory
from eli.lab.detection.experiments.bench import DetectionBench, first_task, open_bench
from eli.lab.detection.experiments.config import TREE, compose, from_dict, with_aligner
from eli.lab.detection.experiments.reading import READINGS_EDITION, is_read, read_task
from eli.lab.detection.experiments.training import teach_task
from eli.lab.detection.learners import DetectionLearner
from eli.lab.experiments.kind import Kind
from eli.lab.experiments.kinds import DETECTION


def remember(bench: DetectionBench, learner: DetectionLearner, memory: Memory, number: int) -> None:
    """Keep images of the classes that a task brought."""
    bench.remember(memory, number)


KIND = Kind(
    name=DETECTION,
    command="eli detect run",
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
"""`eli detect run`."""
