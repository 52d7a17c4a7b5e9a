"""A piece of work of a plan, and plans as they are shown before they start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from elign.lab.reproduce.request import Request
    from elign.lab.reproduce.sheet import Sheet


@dataclass(frozen=True)
class Job:
    """Something to do once, whoever needs it.

    Args:
        key: Tells it from all others; jobs with equal keys are one job.
        group: What it is, but for its seed: jobs of one group share a line of the plan.
        done: Whether its result is on disk already.
        seconds: About how long what is left of it takes; None if nothing tells.
        work: Does it, or what is left of it.
    """

    key: str
    group: str
    done: bool
    seconds: float | None
    work: Callable[[Console], None]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Args:
        name: As typed.
        title: In words.
        jobs: What must be done for it, in an order in which it can be done.
        sheet: Makes its table once all jobs are done.
        request: The part of the request that concerns it.
        remarks: Said with the plan.
        missing: What keeps it from starting, data that is not there say.
    """

    name: str
    title: str
    jobs: tuple[Job, ...]
    sheet: Callable[[], Sheet]
    request: Request
    remarks: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def all_jobs(experiments: Iterable[Experiment]) -> list[Job]:
    """The jobs of several experiments, each once."""
    return list(
        {job.key: job for experiment in reversed(list(experiments)) for job in reversed(experiment.jobs)}.values()
    )[::-1]


def plan_table(experiments: Sequence[Experiment]) -> Table:
    """What will be done, what is done already, and about how long it takes."""
    table = Table(
        title=Text("Plan", style="bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("what", overflow="fold")
    for heading in ("jobs", "done", "to do", "about"):
        table.add_column(heading, justify="right", no_wrap=True)
    seen: set[str] = set()
    for experiment in experiments:
        fresh = [job for job in experiment.jobs if job.key not in seen]
        shared = len(experiment.jobs) - len(fresh)
        seen |= {job.key for job in fresh}
        heading = f"{experiment.name}: {experiment.title}"
        table.add_row(Text(heading + (f" (shares {shared} with the above)" if shared else ""), style="bold"))
        for group in dict.fromkeys(job.group for job in fresh):
            mine = [job for job in fresh if job.group == group]
            table.add_row(Text(f"  {group}"), *_counts(mine))
    everything = all_jobs(experiments)
    table.add_row(Text("in all", style="bold"), *_counts(everything))
    return table


def _counts(jobs: Sequence[Job]) -> list[str]:
    left = [job for job in jobs if not job.done]
    return [str(len(jobs)), str(len(jobs) - len(left)), str(len(left)), time_text(left)]


def time_text(left: Sequence[Job]) -> str:
    """About how long jobs take: `-` if there are none, and what is unknown is said to be."""
    if not left:
        return "-"
    known = [job.seconds for job in left if job.seconds is not None]
    if not known:
        return "unknown"
    text = duration_text(sum(known))
    return text if len(known) == len(left) else f"{text} + unknown"


def duration_text(seconds: float) -> str:
    """A duration as one says it.

    Example:
        >>> [duration_text(value) for value in (7.2, 340, 9000, 180_000)]
        ['7 s', '6 min', '2.5 h', '50 h']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"
