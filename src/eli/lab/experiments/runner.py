"""The loop over tasks: learn, remember, extract latents, read. Everything that is finished is on disk at once.

    config -> dataset -> protocol -> tasks; for each task: learner, memory, latents, aligners, readings

Imported by the commands `run`, `resume` and `evaluate`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from torch import Tensor

from eli.lab.data.memory import Memory
from eli.lab.evaluation.results import Results
from eli.lab.experiments.bench import Bench
from eli.lab.experiments.extract import latents_of
from eli.lab.experiments.reading import read_task
from eli.lab.experiments.run_config import AlignerConfig
from eli.lab.experiments.run_folder import RunError, RunFolder
from eli.lab.experiments.training import Moment, teach
from eli.lab.learners import Learner
from eli.lab.tensor_file import DamagedRunError


def run(
    bench: Bench,
    folder: RunFolder,
    show: Callable[[Moment], None],
    say: Callable[[str], None],
    finished: Callable[[Results], None] = lambda results: None,
) -> None:
    """Do what is not done yet of all tasks.

    Args:
        bench: What to run.
        folder: Where finished work is kept.
        show: Hears where the training is.
        say: Hears of each other thing that begins.
        finished: Is given the results so far whenever a task was read.
    """
    learner, memory = bench.learner(), bench.memory()
    for number in range(len(bench.protocol.tasks)):
        bench.grow(learner, number)
        learned = folder.is_learned(number)
        bench.engine.wait()  # before the first process writes what the others look for
        if not learned:
            _learn(bench, folder, number, learner, memory, show, say)
            bench.engine.wait()
        _restore(folder, number, learner, memory)
        if bench.engine.is_main and folder.results(number) is None:
            settings = bench.config.aligner
            read_task(bench, learner, memory, number, source=folder, target=folder, settings=settings, say=say)
            finished(folder.collect())


def evaluate(
    bench: Bench, folder: RunFolder, target: RunFolder, settings: AlignerConfig, say: Callable[[str], None]
) -> None:
    """Read the learned tasks of a run with other aligners; nothing is trained again.

    Args:
        bench: What was run.
        folder: The run.
        target: Where the readings go.
        settings: Of the aligners.
        say: Hears of each thing that begins.
    """
    learner, memory = bench.learner(), bench.memory()
    for number in range(folder.tasks()):
        bench.grow(learner, number)
        _restore(folder, number, learner, memory)
        if target.results(number) is None:
            read_task(bench, learner, memory, number, source=folder, target=target, settings=settings, say=say)
            target.collect()


def _learn(
    bench: Bench,
    folder: RunFolder,
    number: int,
    learner: Learner,
    memory: Memory,
    show: Callable[[Moment], None],
    say: Callable[[str], None],
) -> None:
    """Teach a task, choose its exemplars, write both."""
    config, engine, split = bench.config, bench.engine, bench.data.train
    task = bench.task(number, memory, all_data=learner.sees_all_data)
    size = config.train.eval_batch_size
    watch = _Watch(folder, number, show, minutes=config.train.checkpoint_minutes, writes=engine.is_main)
    if number == 0 and config.start_from is not None:
        _start_from(RunFolder(config.start_from), bench, learner)
    else:
        if number and learner.imprints:
            start = latents_of(learner.model, split, task.new, engine=engine, size=size)
            learner.imprint(start, split.labels[task.new])
        resume = folder.progress(number)
        teach(learner, task, split, config.train, engine=engine, seed=config.seed, watch=watch, resume=resume)
    if not engine.is_main:
        return
    say(f"task {number + 1}: choosing exemplars")
    new = latents_of(learner.model, split, task.new, engine=engine, size=size)
    if memory.per_class_count(task.classes.stop):
        for label in task.classes:
            mine = split.labels[task.new] == label
            memory.add(label, task.new[mine], new[mine])
    folder.save_model(number, learner.model.state_dict(), memory, {"seconds": watch.seconds()})
    folder.drop_progress()


class _Watch:
    """Passes moments on, and keeps the state of a task now and then."""

    def __init__(
        self, folder: RunFolder, number: int, show: Callable[[Moment], None], *, minutes: float, writes: bool
    ) -> None:
        self._folder, self._number, self._show, self._every = folder, number, show, 60 * minutes
        self._writes = writes
        self._start = self._kept = time.monotonic()

    def moment(self, moment: Moment) -> None:
        self._show(moment)

    def keep(self, epoch: int, state: Callable[[], Mapping[str, Tensor]]) -> None:
        if self._writes and time.monotonic() - self._kept >= self._every:
            self._folder.save_progress(self._number, epoch, state())
            self._kept = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start


def _restore(folder: RunFolder, number: int, learner: Learner, memory: Memory) -> None:
    """Take over what was learned in a task: what is on disk counts, in every process and after every interruption."""
    state, ranked, _ = folder.load_model(number)
    _load_weights(folder, number, learner, state)
    memory.restore(ranked)


def _load_weights(folder: RunFolder, number: int, learner: Learner, state: Mapping[str, Tensor]) -> None:
    try:
        learner.model.load_state_dict(state)
    except RuntimeError as error:
        raise DamagedRunError(
            f"{folder.task(number)}/model.safetensors does not fit this run's model: {str(error).splitlines()[-1]}"
        ) from error
    learner.eval()


def _start_from(other: RunFolder, bench: Bench, learner: Learner) -> None:
    """Take the model of the first task from another run that begins in the same way."""
    facts = other.facts()
    if facts["first_task"] != bench.first_task:
        raise RunError(f"{other.path} has another first task: data, order, protocol, model, head, train or seed differ")
    if not other.is_learned(0):
        raise RunError(f"{other.path} has not finished its first task yet")
    state, _, _ = other.load_model(0)
    _load_weights(other, 0, learner, state)
