"""The loop over tasks: learn, remember, read. Everything that is finished is on disk at once.

    config -> dataset -> protocol -> tasks; for each task: learner, memory, latents, aligners, readings

One loop for all kinds of runs; how a task is taught and read is the kind's own. Several processes go through it side by
side: the first one alone looks at the folder and writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from elign.lab.data.memory import Memory
from elign.lab.experiments.crew import Crew
from elign.lab.experiments.editions import of_edition, refuse_newer
from elign.lab.experiments.kind import Finished, Kind, Say, Show
from elign.lab.experiments.loop import Moment, Place
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.tensor_file import MAKE_AGAIN, DamagedRunError
from elign.utils.errors import OptionError


def run(
    kind: Kind,
    bench: Any,
    folder: RunFolder,
    show: Show,
    say: Say,
    finished: Finished = lambda results: None,
) -> None:
    """Do what is not done yet of all tasks.

    Args:
        kind: The kind of the run.
        bench: What to run.
        folder: Where finished work is kept.
        show: Hears where the training is.
        say: Hears of each other thing that begins.
        finished: Is given the results so far whenever a task was read.
    """
    engine = bench.engine
    learner, memory = bench.learner(), bench.memory()
    with engine.together():
        for number in range(len(bench.protocol.tasks)):
            bench.grow(learner, number)
            if not engine.of_first(partial(folder.is_learned, number)):
                _learn(kind, bench, folder, number, learner, memory, show, say)
            _restore(bench, folder, number, learner, memory)
            crew = Crew(engine, bench.common(learner))
            if not engine.is_main:
                crew.follow()
                continue
            with crew.led():
                if not _is_read(kind, folder, folder, number):
                    settings = bench.config.aligner
                    kind.read(bench, learner, memory, number, source=folder, target=folder, settings=settings, say=say)
                    finished(folder.collect())


def evaluate(kind: Kind, bench: Any, folder: RunFolder, target: RunFolder, settings: Any, say: Say) -> None:
    """Read the learned tasks of a run with other aligners; nothing is trained again.

    Args:
        kind: The kind of the run.
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
        if not _is_read(kind, target, folder, number):
            kind.read(bench, learner, memory, number, source=folder, target=target, settings=settings, say=say)
            target.collect()


def _is_read(kind: Kind, target: RunFolder, source: RunFolder, number: int) -> bool:
    """Whether the readings of a task are there, and mean what they mean today."""
    if not kind.is_read(target, source, number):
        return False
    results = target.results(number)
    if results is None:
        return False
    refuse_newer(target, results.tasks, kind.edition)
    return of_edition(results.tasks, kind.edition)


def _learn(
    kind: Kind,
    bench: Any,
    folder: RunFolder,
    number: int,
    learner: Any,
    memory: Memory,
    show: Show,
    say: Say,
) -> None:
    """Teach a task, choose its exemplars, write both."""
    config = bench.config
    watch = _Watch(bench, folder, number, show)
    if number == 0 and config.start_from is not None:
        watch.before = _start_from(bench, RunFolder(config.start_from), learner)
    else:
        kind.teach(bench, learner, memory, number, watch=watch, resume=bench.engine.of_first(watch.resume))
    say(f"task {number + 1}: choosing exemplars")
    kind.remember(bench, learner, memory, number)
    if bench.engine.is_main:
        facts = {"run": config.training_digest(), "seconds": watch.seconds(), "processes": bench.engine.processes}
        folder.save_model(number, learner.state(), memory.ranked, facts)
        folder.drop_progress()


class _Watch:
    """Passes moments on, keeps the state of a task now and then, and knows how long it took so far."""

    def __init__(self, bench: Any, folder: RunFolder, number: int, show: Show) -> None:
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


def _restore(bench: Any, folder: RunFolder, number: int, learner: Any, memory: Memory) -> None:
    """Take over what was learned in a task: what is on disk counts, in every process and after every interruption."""
    state, ranked, facts = bench.engine.of_first(partial(folder.load_model, number))
    if facts.get("run", bench.config.training_digest()) != bench.config.training_digest():
        raise DamagedRunError(f"{folder.task(number)}/model.safetensors is of another run. {MAKE_AGAIN}")
    _load_weights(folder, number, learner, state)
    memory.restore(ranked)


def _load_weights(folder: RunFolder, number: int, learner: Any, state: Mapping[str, Tensor]) -> None:
    try:
        learner.load_state(state)
    except (RuntimeError, OptionError) as error:
        raise DamagedRunError(
            f"{folder.task(number)}/model.safetensors does not fit this run's model: {str(error).splitlines()[-1]}"
        ) from error
    learner.eval()


def _start_from(bench: Any, other: RunFolder, learner: Any) -> float:
    """Take the model of the first task from another run; returns how long it was trained."""
    state, _, facts = bench.engine.of_first(partial(other.load_model, 0))
    _load_weights(other, 0, learner, state)
    return float(facts["seconds"])
