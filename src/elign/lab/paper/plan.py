"""Planned runs: what there is to do, what is on disk, and about how long the rest takes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from elign.lab.config.composition import ConfigError
from elign.lab.config.schema import flatten
from elign.lab.evaluation.metrics import Row
from elign.lab.paper.comparison import published_words
from elign.lab.paper.request import Grid, Request
from elign.lab.report.table import Table
from elign.lab.runs.experiment import BENCHMARKS, DETECTION, evaluated_by
from elign.lab.runs.launch import aligner_changes, find_start, reevaluate_run, resume_run, start_run
from elign.lab.runs.run_dir import RunDir, RunError
from elign.utils.errors import ElignError


@dataclass(frozen=True)
class Job:
    """Something to do once, whichever experiment needs it.

    Equal jobs have the same key; jobs of one group share a row of the plan. `work` does what is left, which takes about
    so many `seconds`; None if unknown.
    """

    key: str
    group: str
    done: bool
    seconds: float | None
    work: Callable[[Console], None]


@dataclass(frozen=True)
class Plan:
    """What an experiment needs.

    Args:
        jobs: What to do, in an order in which they can be done.
        tables: Makes the table once all jobs are done; further ones repeat parts of it for the terminal.
        request: The part of the request that concerns it.
        missing: What keeps it from starting, such as data that are not there.
    """

    name: str
    title: str
    jobs: tuple[Job, ...]
    tables: Callable[[], list[Table]]
    request: Request
    remarks: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def all_jobs(plans: Iterable[Plan]) -> list[Job]:
    """Return the jobs of several experiments, each once."""
    return list({job.key: job for plan in plans for job in plan.jobs}.values())


def run_plans(plans: Sequence[Plan], console: Console) -> None:
    """Do what is not done.

    Raises:
        ConfigError: Data are not there.
    """
    for plan in plans:
        if plan.missing and not all(job.done for job in plan.jobs):
            raise ConfigError(f"{plan.name} cannot start: {plan.missing[0]}.")
    for job in all_jobs(plans):
        if not job.done:
            job.work(console)


def plan_table(plans: Sequence[Plan]) -> Table:
    """Show what will be done, what is done already, and about how long the rest takes."""
    table = Table("Plan", ["what", "jobs", "done", "to do", "about"])
    seen: set[str] = set()
    for plan in plans:
        fresh = [job for job in plan.jobs if job.key not in seen]
        seen |= {job.key for job in fresh}
        shared = len(plan.jobs) - len(fresh)
        title = f"{plan.name}: {plan.title}{f' (shares {shared} with the above)' if shared else ''}"
        for group in dict.fromkeys(job.group for job in fresh):
            table.add(group, *_counts([job for job in fresh if job.group == group]), group=title)
        if not fresh:
            table.add("nothing else", *_counts([]), group=title)
    table.add("in all", *_counts(all_jobs(plans)), group="in all", style="mark")
    return table


def _counts(jobs: Sequence[Job]) -> tuple[str, ...]:
    left = [job for job in jobs if not job.done]
    return str(len(jobs)), str(len(jobs) - len(left)), str(len(left)), time_text([job.seconds for job in left])


def time_text(seconds: Sequence[float | None]) -> str:
    """Say about how long jobs take in all.

    Example:
        >>> time_text([]), time_text([None]), time_text([7.2]), time_text([340, None]), time_text([9000])
        ('-', 'unknown', '7 s', '6 min + unknown', '2.5 h')
    """
    if not seconds:
        return "-"
    told = [value for value in seconds if value is not None]
    if not told:
        return "unknown"
    total = sum(told)
    if total < 100:
        text = f"{total:.0f} s"
    else:
        text = f"{total / 60:.0f} min" if total < 5400 else f"{total / 3600:.{1 if total < 36000 else 0}f} h"
    return text if len(told) == len(seconds) else f"{text} + unknown"


@dataclass(frozen=True)
class PlannedRun:
    """A run to train once, with the aligner of its preset; equal configurations have equal digests.

    Learner and protocol are as typed (`aanet-implicit` is a setting of `aanet`); `words` is all that a user would type.
    """

    digest: str
    config: Any = field(compare=False)
    learner: str = field(compare=False)
    protocol: str = field(compare=False)
    words: tuple[str, ...] = field(compare=False, default=())

    @property
    def title(self) -> str:
        """In words, without the seed."""
        return f"{self.learner} on {self.config.data.name}, {self.protocol}"

    @property
    def first_task(self) -> str:
        """A text that is equal for runs whose models after the first task are equal."""
        name = self.config.protocol.name or ""
        first, plus, _ = name.partition("+")
        # The number of classes is not known here: protocols are compared by what they do with the first task.
        split = "half" if name.startswith("half-") else f"{first}{plus}"
        decisive = BENCHMARKS[self.config.benchmark].first_task(self.config)
        return json.dumps(decisive | {"protocol": split, "first": self.config.protocol.first}, sort_keys=True)


@dataclass(frozen=True)
class Evaluation:
    """A run evaluated with some aligner: `config` has its settings."""

    digest: str
    run: PlannedRun
    config: Any = field(compare=False)

    @property
    def is_own(self) -> bool:
        """Whether it is the run's own evaluation."""
        return self.digest == self.run.digest


def planned_run(request: Request, benchmark: str, learner: str, data: str, protocol: str, seed: int) -> PlannedRun:
    """Plan a run; at the published scale with the published settings of its protocol."""
    words = [f"learner={learner}", f"data={data}", f"protocol={protocol}", f"preset={request.preset}", f"seed={seed}"]
    words += request.settings
    if request.preset == "paper":
        words += published_words(benchmark, data, protocol, request.settings)
    config = BENCHMARKS[benchmark].compose(words)
    return PlannedRun(config.digest(), config, learner, protocol, tuple(words))


def planned_evaluation(run: PlannedRun, words: Sequence[str] = ()) -> Evaluation:
    """Plan to evaluate a run, perhaps with other settings of the aligner."""
    config = BENCHMARKS[run.config.benchmark].with_aligner(run.config, words) if words else run.config
    return Evaluation(config.digest(), run, config)


def over_seeds(
    request: Request, benchmark: str, learner: str, data: str, protocol: str, aligner: Sequence[str] = ()
) -> tuple[Evaluation, ...]:
    """Plan the same evaluation for each seed; settings of the experiment win over those of the user."""
    own = {text.partition("=")[0] for text in aligner}
    words = (*(text for text in request.aligner if text.partition("=")[0] not in own), *aligner)
    runs = (planned_run(request, benchmark, learner, data, protocol, seed) for seed in range(request.seeds))
    return tuple(planned_evaluation(run, words) for run in runs)


class Store:
    """The runs of one benchmark in the folder `runs` below `out`."""

    def __init__(self, out: Path, benchmark: str) -> None:
        self._runs, self._benchmark = out / "runs", BENCHMARKS[benchmark]
        self.stored: list[tuple[RunDir, Any]] = []
        self.refresh()

    def refresh(self) -> None:
        """Look for runs again. Runs that are damaged or from a newer elign are passed over."""
        self.stored = []
        for file in sorted(self._runs.glob("*/run.json")):
            try:
                metadata = RunDir(file.parent).metadata()
                if metadata["benchmark"] == self._benchmark.name:
                    self.stored.append((RunDir(file.parent), self._benchmark.from_dict(metadata["config"])))
            except ElignError:
                continue

    def folder(self, run: PlannedRun) -> RunDir:
        """Return the folder of a run, whatever its name, or the one that it will get.

        Raises:
            RunError: Something else has its name.
        """
        for folder, config in self.stored:
            if config.digest() == run.digest:
                return folder
        name = f"{run.learner}-{run.config.data.name}-{run.protocol}-seed{run.config.seed}-{run.digest[:8]}"
        folder = RunDir(self._runs / name)
        if folder.exists:
            raise RunError(f"{folder.path} holds another run, or is damaged: move it away to make the run again")
        return folder

    def evaluation_folder(self, planned: Evaluation) -> RunDir:
        """Return the folder of an evaluation, whatever its name, or the one that it will get."""
        folder = self.folder(planned.run)
        if planned.is_own:
            return folder
        for other in folder.evaluations():
            if self._benchmark.from_dict(other.metadata()["config"]).aligner == planned.config.aligner:
                return other
        return folder.evaluation("_".join(aligner_changes(planned.run.config, planned.config)))

    def is_done(self, planned: Evaluation) -> bool:
        """Return whether all tasks of an evaluation have results that compare with those of today."""
        folder = self.evaluation_folder(planned)
        if not is_finished(folder):
            return False
        return evaluated_by(folder.gather().tasks, self._benchmark) == "comparable"

    def rows(self, planned: Evaluation) -> list[Row]:
        """Return the rows of a finished evaluation."""
        return self.evaluation_folder(planned).gather().rows

    def run(self, planned: PlannedRun, console: Console) -> None:
        """Start a run, from the first task of another one where that is the same, or resume it."""
        self.refresh()
        folder = self.folder(planned)
        if folder.exists:
            resume_run(folder, console)
            return
        other = find_start(planned.config, [stored for stored, _ in self.stored])
        start_from = None if other is None else str(other.path.resolve())
        config = planned.config.replace(out=str(folder.path), start_from=start_from)
        start_run(config, console, overrides=planned.words)

    def evaluate(self, planned: Evaluation, console: Console) -> None:
        """Evaluate a run that is trained with another aligner."""
        self.refresh()
        name = self.evaluation_folder(planned).path.name
        reevaluate_run(self.folder(planned.run), planned.config, console, name=name)


def is_finished(folder: RunDir) -> bool:
    """Return whether all tasks of a run or an evaluation have results."""
    return folder.exists and folder.finished_tasks() == len(folder.metadata()["sizes"])


def training_plan(
    name: str,
    grid: Grid,
    request: Request,
    benchmark: str,
    planned: Sequence[Evaluation],
    tables: Callable[[Store], list[Table]],
) -> Plan:
    """Plan an experiment that trains the runs of one benchmark, then evaluates them; `tables` reads what is stored."""
    store = Store(request.out, benchmark)
    runs = dict.fromkeys(each.run for each in planned)
    first = len({run.first_task for run in runs})
    shared = f"{name}: {len(runs)} runs share {first} first task{'s' if first > 1 else ''}"
    configs = {each.config.data.name: each.config for each in planned}
    missing = (BENCHMARKS[benchmark].missing_data(config) for config in configs.values())

    def refreshed() -> list[Table]:
        store.refresh()
        return tables(store)

    return Plan(
        name,
        grid.title,
        jobs=_jobs(planned, store),
        tables=refreshed,
        request=request,
        remarks=(shared,) if first < len(runs) else (),
        missing=tuple(filter(None, missing)),
    )


def _jobs(planned: Sequence[Evaluation], store: Store) -> tuple[Job, ...]:
    """Return each run, then its evaluations."""
    durations = Durations(store)
    stored = (PlannedRun("", config, "", "") for folder, config in store.stored if folder.is_learned(0))
    started = {run.first_task for run in stored}
    jobs: list[Job] = []
    for run in dict.fromkeys(each.run for each in planned):
        jobs.append(_training(run, store, durations, first_task=run.first_task not in started))
        started.add(run.first_task)
        jobs += [_evaluation(each, store, durations) for each in planned if each.run == run and not each.is_own]
    return tuple({job.key: job for job in jobs}.values())


def _training(run: PlannedRun, store: Store, durations: Durations, *, first_task: bool) -> Job:
    folder, own = store.folder(run), planned_evaluation(run)
    done = store.is_done(own)
    # A run that an older elign evaluated is evaluated again and not trained.
    again = not done and is_finished(folder)
    verb = "evaluate" if again else "train"
    seconds = durations.of_evaluation(own) if again else durations.of_run(folder, run.config, first_task=first_task)

    def work(console: Console) -> None:
        console.print(f"{verb} {run.title}, seed {run.config.seed}", soft_wrap=True, markup=False)
        store.run(run, console)

    return Job(f"run {folder.path}", f"{verb} {run.title}", done, seconds, work)


def _evaluation(planned: Evaluation, store: Store, durations: Durations) -> Job:
    target, what = store.evaluation_folder(planned), f"evaluate {planned.run.title} with"

    def work(console: Console) -> None:
        console.print(f"{what} {target.path.name}", soft_wrap=True, markup=False)
        store.evaluate(planned, console)

    done, seconds = store.is_done(planned), durations.of_evaluation(planned)
    return Job(f"evaluation {target.path}", f"{what} other aligners", done, seconds, work)


_SCALE = (
    *("data.name", "data.limit", "data.image_size", "data.scenes"),
    *("model.name", "model.min_size", "train.first_epochs", "train.epochs"),
)


class Durations:
    """How long the finished runs of a store took, as an estimate of how long others will take."""

    def __init__(self, store: Store) -> None:
        self._finished = [
            (config, [task["seconds"] for task in folder.gather().tasks])
            for folder, config in store.stored
            if is_finished(folder)
        ]

    def of_run(self, folder: RunDir, config: Any, *, first_task: bool) -> float | None:
        """Estimate the seconds left of a run that may train its first task itself; None if no run is like it."""
        if not (alike := self._alike(config)):
            return None
        done = folder.finished_tasks()
        share = max(0.0, 1 - done / statistics.median(map(len, alike)))
        rest = statistics.median(sum(sum(task.values()) for task in seconds[1:]) for seconds in alike)
        # Runs that took over their first task do not say how long it takes.
        first = max(seconds[0].get("train", 0.0) for seconds in alike) if first_task and not done else 0.0
        return float(share * rest + first)

    def of_evaluation(self, planned: Evaluation) -> float | None:
        """Estimate the seconds of an evaluation, in proportion to iterations and steps; None if unknown."""
        if not (alike := self._alike(planned.config)):
            return None
        # Latents of images are kept, those of regions are extracted again.
        again = ("methods", "extract") if planned.config.benchmark == DETECTION else ("methods",)
        rest = statistics.median(sum(task.get(name, 0.0) for task in seconds for name in again) for seconds in alike)
        fit = statistics.median(sum(task.get("fit", 0.0) for task in seconds) for seconds in alike)
        ours, theirs = planned.config.aligner, planned.run.config.aligner
        return float(rest + fit * ours.iterations * (1 + ours.steps) / (theirs.iterations * (1 + theirs.steps)))

    def _alike(self, config: Any) -> list[list[dict[str, float]]]:
        """Return the seconds of runs of the same scale: of the same learner and protocol if there are any."""
        found = [(other, seconds) for other, seconds in self._finished if _scale(other) == _scale(config)]
        same = [each for each in found if each[0].protocol == config.protocol]
        learner = [each for each in same if each[0].learner == config.learner]
        return [seconds for _, seconds in learner or same or found]


def _scale(config: Any) -> list[Any]:
    return [flatten(config, whole=True).get(key) for key in _SCALE]
