"""How long planned runs will take, guessed from the finished ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from elign.lab.evaluation.results import JSON_NAME, read_results
from elign.lab.experiments.kinds import DETECTION
from elign.lab.experiments.run_config import flatten
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.run_sections import EnergyConfig
from elign.lab.reproduce.base_runs import BaseRun, Evaluation
from elign.lab.reproduce.store import Store, is_finished, tasks_read

_SCALE = (
    "data.name",
    "data.limit",
    "data.image_size",
    "data.scenes",
    "model.name",
    "model.min_size",
    "train.first_epochs",
    "train.epochs",
)


class Durations:
    """How long things took in the finished runs of a store, as a guess at how long they will take.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        finished = [stored for stored in store.stored() if is_finished(stored.folder)]
        self._known = [(stored.config, _seconds(stored.folder)) for stored in finished]

    def of_run(self, run: BaseRun, *, first_task: bool, done: int = 0) -> float | None:
        """Seconds that a run takes; None if no finished run is like it.

        Args:
            run: The run.
            first_task: Whether it trains its first task itself.
            done: How many of its tasks are finished.
        """
        alike = self._alike(run.config)
        if not alike:
            return None
        tasks = [len(seconds) for seconds in alike]
        share = max(0.0, 1 - done / statistics.median(tasks))
        rest = statistics.median(sum(_whole(task) for task in seconds[1:]) for seconds in alike)
        # Runs that took over their first task say nothing of how long it takes.
        first = max(seconds[0].get("train", 0.0) for seconds in alike) if first_task and not done else 0.0
        return share * rest + first

    def of_evaluation(self, planned: Evaluation) -> float | None:
        """Seconds that fitting and reading take, in proportion to iterations and steps; None if nothing tells."""
        alike = self._alike(planned.run.config)
        if not alike:
            return None
        fit = statistics.median(sum(task.get("fit", 0.0) for task in seconds) for seconds in alike)
        # The latents of pictures are not extracted again, but those of regions are. Pairs of another augmentation are,
        # too, which this guess leaves out.
        again = ("readings", "extract") if planned.run.kind == DETECTION else ("readings",)
        rest = statistics.median(sum(task.get(name, 0.0) for task in seconds for name in again) for seconds in alike)
        ours: EnergyConfig = planned.aligner
        theirs: EnergyConfig = planned.run.config.aligner
        return rest + fit * ours.iterations * (1 + ours.steps) / (theirs.iterations * (1 + theirs.steps))

    def _alike(self, config: Any) -> list[list[dict[str, float]]]:
        """Durations of runs of the same scale: with the same learner and protocol if there are any, else of others."""
        levels: Iterable[Callable[[Any], Any]] = (
            lambda one: (_scale(one), one.learner, one.protocol),
            lambda one: (_scale(one), one.protocol),
            _scale,
        )
        for level in levels:
            found = [seconds for other, seconds in self._known if level(other) == level(config)]
            if found:
                return found
        return []


def _scale(config: Any) -> Any:
    settings = flatten(config)
    return tuple(settings.get(key) for key in _SCALE)


def _seconds(folder: RunFolder) -> list[dict[str, float]]:
    """What each task took."""
    durations = []
    for number in range(tasks_read(folder)):
        tasks = read_results(folder.task(number) / JSON_NAME).tasks
        durations.append({name: float(value) for name, value in tasks[0]["seconds"].items()} if tasks else {})
    return durations


def _whole(seconds: dict[str, float]) -> float:
    return sum(seconds.values())
