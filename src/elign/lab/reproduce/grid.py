"""Experiments that are a grid of base runs, each read by one or more aligners: the jobs, and the table they end in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from elign.lab.data.catalogue import catalogue
from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.metrics import average_accuracy, curve
from elign.lab.evaluation.scoring import Row
from elign.lab.experiments.session import begin, go_on, read_again
from elign.lab.report.paper import NOTHING, Printed
from elign.lab.reproduce.base_runs import BaseRun, Evaluation, base_run, evaluation
from elign.lab.reproduce.comparison import Measured, comparison
from elign.lab.reproduce.durations import Durations
from elign.lab.reproduce.jobs import Experiment, Job
from elign.lab.reproduce.request import Request
from elign.lab.reproduce.scale import differences, scale_note
from elign.lab.reproduce.sheet import Sheet
from elign.lab.reproduce.store import Store, is_finished, tasks_read, with_way

ALIGNED = "eli/oracle"
CONTROLS = ("eli/by-prediction", "mean-shift/oracle", "ridge/oracle", "random-shift/oracle", "oracle-mask")
MARK = "† uses test labels: it knows of each test sample whether its class is old; so did the printed numbers of ELI"


@dataclass(frozen=True)
class Line:
    """A line of the table to be.

    Args:
        labels: What it is.
        readings: One evaluation for each seed.
        printed: What the paper has for it.
        printed_data: The data set that the printed number is of.
        task: Accuracy after this task, from 1; None: the average over tasks.
    """

    labels: tuple[str, ...]
    readings: tuple[Evaluation, ...]
    printed: Printed = NOTHING
    printed_data: str = "cifar100"
    task: int | None = None


def readings_over_seeds(
    request: Request, learner: str, data: str, protocol: str, aligner: Sequence[str] = ()
) -> tuple[Evaluation, ...]:
    """The same evaluation for each seed; the user's settings of the aligner come first, those of the experiment win."""
    own = {text.partition("=")[0] for text in aligner}
    overrides = (*(text for text in request.aligner if text.partition("=")[0] not in own), *aligner)
    return tuple(
        evaluation(
            base_run(learner, data, protocol, preset=request.preset, seed=seed, settings=request.settings), overrides
        )
        for seed in range(request.seeds)
    )


def grid_experiment(
    name: str,
    title: str,
    headings: Sequence[str],
    lines: Sequence[Line],
    request: Request,
    *,
    varied: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Experiment:
    """An experiment from the lines of its table.

    Args:
        name: As typed.
        title: In words.
        headings: Of the labels.
        lines: The table to be.
        request: What the user asked for.
        varied: Settings of the aligner that the experiment varies.
        notes: What else must be said about the table.
    """
    store = Store(request.out)
    planned = list(dict.fromkeys(reading for line in lines for reading in line.readings))

    def sheet() -> Sheet:
        pairs = [(reading, line.printed_data) for line in lines for reading in line.readings]
        found = differences(pairs, seeds=request.seeds, varied=varied)
        measured = [_measure(line, store) for line in lines]
        return comparison(
            name,
            title,
            headings,
            measured,
            aligned=f"{ALIGNED} †",
            notes=(scale_note(request.preset, found), *notes, MARK),
            command=command(name, request),
        )

    runs = list(dict.fromkeys(reading.run for reading in planned))
    return Experiment(
        name,
        title,
        jobs_of(planned, store),
        sheet,
        request,
        shared_first_tasks(name, runs),
        missing_data(runs, request),
    )


def command(name: str, request: Request) -> str:
    """What makes a table again."""
    parts = ["elign reproduce", name, f"preset={request.preset}", f"seeds={request.seeds}", request.restrictions]
    return " ".join(part for part in parts if part)


def shared_first_tasks(name: str, runs: Sequence[BaseRun]) -> tuple[str, ...]:
    """A remark on how many first tasks are trained for some runs, if that is fewer than the runs."""
    first = len({run.first_task for run in runs})
    return (
        (f"{name}: {len(runs)} runs share {first} first task{'s' if first > 1 else ''}",) if first < len(runs) else ()
    )


def missing_data(runs: Sequence[BaseRun], request: Request) -> tuple[str, ...]:
    """What to say of data sets that some runs need and that are not there."""
    entries = {entry.name: entry for entry in catalogue(request.value("data.data_dir"))}
    wanted = (entries[name] for name in dict.fromkeys(run.config.data.name for run in runs))
    return tuple(
        f"the data set {entry.name} is not in {' or '.join(map(str, entry.places))}: put it there, or restrict the "
        "experiment with data=NAME"
        for entry in wanted
        if entry.status == "missing" and request.value("data.path") is None
    )


def jobs_of(planned: Sequence[Evaluation], store: Store) -> tuple[Job, ...]:
    """Base runs of one kind in their order, each followed by its evaluations.

    Args:
        planned: What will be read.
        store: Where the runs of this kind are.
    """
    durations = Durations(store)
    begun: set[str] = {stored.first_task for stored in store.stored() if stored.folder.is_learned(0)}
    jobs: list[Job] = []
    for run in dict.fromkeys(reading.run for reading in planned):
        jobs.append(_training(run, store, durations, first_task=run.first_task not in begun))
        begun.add(run.first_task)
        mine = [reading for reading in planned if reading.run == run and reading.overrides]
        jobs += [_reading(reading, store, durations) for reading in mine]
    return tuple(jobs)


def _training(run: BaseRun, store: Store, durations: Durations, *, first_task: bool) -> Job:
    folder = store.folder(run)
    done = store.is_read(evaluation(run))
    # What another edition has read needs no training, but to be read anew.
    again = not done and is_finished(folder)
    left = durations.of_run(run, first_task=first_task, done=tasks_read(folder))
    if again:
        left = durations.of_evaluation(evaluation(run))

    def work(console: Console) -> None:
        folder = store.folder(run)
        verb = "reading" if again else "training"
        console.print(f"{verb} {run.title}, seed {run.config.seed}", soft_wrap=True, markup=False)
        if folder.exists:
            go_on(folder, console)
            return
        overrides = [*run.overrides, f"out={folder.path}"]
        donor = store.donor(run)
        if donor is not None:
            overrides = [*with_way(overrides, donor, run.config.train), f"start_from={donor.folder.path}"]
        begin(overrides, console, kind=run.kind)

    return Job(f"run {folder.path}", f"{'read' if again else 'train'} {run.title}", done, left, work)


def _reading(planned: Evaluation, store: Store, durations: Durations) -> Job:
    target = store.evaluation_folder(planned)

    def work(console: Console) -> None:
        console.print(f"reading {planned.run.title} with {planned.name}", soft_wrap=True, markup=False)
        read_again(store.folder(planned.run), planned.overrides, console, name=planned.name)

    seconds = durations.of_evaluation(planned)
    group = f"read {planned.run.title} with other aligners"
    return Job(f"evaluation {target.path}", group, store.is_read(planned), seconds, work)


def _measure(line: Line, store: Store) -> Measured:
    rows = [store.results(reading).rows for reading in line.readings]

    def over_seeds(reading: str) -> tuple[float, ...]:
        return tuple(accuracy(found, reading, line.task) for found in rows)

    present = {row.reading for found in rows for row in found if row.classifier == "fc"}
    controls = {
        name if READINGS[name].label_free else f"{name} †": over_seeds(name) for name in CONTROLS if name in present
    }
    return Measured(line.labels, over_seeds("base"), over_seeds(ALIGNED), controls, line.printed)


def accuracy(rows: Sequence[Row], reading: str, task: int | None) -> float:
    """Accuracy in percent of a reading by the model's own head: after a task, or on average over tasks."""
    found = curve(rows, reading, "fc")
    return 100 * (average_accuracy(found) if task is None else found[task - 1].accuracy)
