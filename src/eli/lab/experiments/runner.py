"""The loop over tasks: learn, remember, extract latents, read. Everything that is finished is on disk at once.

    config -> dataset -> protocol -> tasks; for each task: learner, memory, latents, aligners, readings

Imported by the commands `run`, `resume` and `evaluate`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from torch import Tensor

from eli.lab.data.memory import Memory
from eli.lab.evaluation.results import Results
from eli.lab.experiments.bench import Bench
from eli.lab.experiments.extract import latents_of
from eli.lab.experiments.loop import Moment, Place
from eli.lab.experiments.reading import read_task
from eli.lab.experiments.run_config import AlignerConfig
from eli.lab.experiments.run_folder import RunFolder
from eli.lab.experiments.training import teach
from eli.lab.learners import Learner
from eli.lab.tensor_file import MAKE_AGAIN, DamagedRunError


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
        _restore(bench, folder, number, learner, memory)
        if bench.engine.is_main and not folder.is_read(number, folder):
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
        _restore(bench, folder, number, learner, memory)
        if not target.is_read(number, folder):
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
    watch = _Watch(bench, folder, number, show)
    if number == 0 and config.start_from is not None:
        watch.before = _start_from(RunFolder(config.start_from), bench, learner)
    else:
        if number and learner.imprints:
            start = latents_of(learner.model, split, task.new, engine=engine, size=size)
            learner.imprint(start, split.labels[task.new])
        resume = watch.resume()
        teach(learner, task, split, config.train, engine=engine, seed=config.seed, watch=watch, resume=resume)
    if not engine.is_main:
        return
    say(f"task {number + 1}: choosing exemplars")
    new = latents_of(learner.model, split, task.new, engine=engine, size=size)
    if memory.per_class_count(task.classes.stop):
        for label in task.classes:
            mine = split.labels[task.new] == label
            memory.add(label, task.new[mine], new[mine])
    facts = {"run": config.training_digest(), "seconds": watch.seconds()}
    folder.save_model(number, learner.model.state_dict(), memory, facts)
    folder.drop_progress()


class _Watch:
    """Passes moments on, keeps the state of a task now and then, and knows how long it took so far."""

    def __init__(self, bench: Bench, folder: RunFolder, number: int, show: Callable[[Moment], None]) -> None:
        self._folder, self._number, self._show = folder, number, show
        self._run = bench.config.training_digest()
        self._every = 60 * bench.config.train.checkpoint_minutes if bench.engine.is_main else math.inf
        self._start = self._kept = time.monotonic()
        self.before = 0.0

    def resume(self) -> tuple[Place, dict[str, Tensor]] | None:
        """What was kept of this task, if anything."""
        kept = self._folder.progress(self._number)
        if kept is None or kept[1]["run"] != self._run:
            return None
        state, facts = kept
        self.before = facts["seconds"]
        return Place(facts["epoch"], facts["step"]), state

    def moment(self, moment: Moment) -> None:
        self._show(moment)

    def keep(self, place: Place, state: Callable[[], Mapping[str, Tensor]]) -> None:
        if time.monotonic() - self._kept >= self._every:
            facts = {"run": self._run, "seconds": self.seconds(), **place._asdict()}
            self._folder.save_progress(self._number, state(), facts)
            self._kept = time.monotonic()

    def seconds(self) -> float:
        return self.before + time.monotonic() - self._start


def _restore(bench: Bench, folder: RunFolder, number: int, learner: Learner, memory: Memory) -> None:
    """Take over what was learned in a task: what is on disk counts, in every process and after every interruption."""
    state, ranked, facts = folder.load_model(number)
    if facts.get("run", bench.config.training_digest()) != bench.config.training_digest():
        raise DamagedRunError(f"{folder.task(number)}/model.safetensors is of another run. {MAKE_AGAIN}")
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


def _start_from(other: RunFolder, bench: Bench, learner: Learner) -> float:
    """Take the model of the first task from another run; returns how long it was trained."""
    state, _, facts = other.load_model(0)
    _load_weights(other, 0, learner, state)
    return float(facts["seconds"])
