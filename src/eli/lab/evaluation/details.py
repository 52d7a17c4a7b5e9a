"""What lies behind a run's summary: every task, the accuracy matrix, drift. For the terminal; imported by commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from eli.lab.evaluation.catalogue import READINGS
from eli.lab.evaluation.metrics import METRICS, accuracy_matrix, curve, summarise
from eli.lab.evaluation.results import Results

_MATRICES = ("base", "eli/oracle", "eli/all")


def details(results: Results, *, classifier: str = "fc") -> Iterator[Table]:
    """Tables of one run: accuracy after each task, metrics that the summary leaves out, accuracy matrices, drift.

    Args:
        results: Of the run.
        classifier: `fc` or `nearest-mean`.
    """
    summaries = [s for s in summarise(results.rows) if s.classifier in (classifier, "prototypes")]
    tasks = max(row.task for row in results.rows)
    table = _table("accuracy after each task, in %", ["reading", *(str(task) for task in range(1, tasks + 1))])
    more = ("average_incremental", "backward_transfer", "recovered")
    other = _table("; ".join(f"{name}: {METRICS[name][0]}" for name in more), ["reading", *more])
    for summary in sorted(summaries, key=lambda s: list(READINGS).index(s.reading)):
        rows = curve(results.rows, summary.reading, summary.classifier)
        table.add_row(summary.reading, *(_percent(row.accuracy) for row in rows))
        other.add_row(summary.reading, *(_percent(getattr(summary, name)) for name in more))
    yield table
    yield other
    for name in _MATRICES:
        if any((s.reading, s.classifier) == (name, classifier) for s in summaries):
            yield _matrix(name, accuracy_matrix(curve(results.rows, name, classifier)))
    if any(task.get("drift") for task in results.tasks):
        yield _drift(results.tasks)


def _matrix(name: str, matrix: Sequence[Sequence[float]]) -> Table:
    headings = ["after task", *(f"of {number}" for number in range(1, len(matrix) + 1))]
    table = _table(f"{name}: accuracy on the test images of each task, in %", headings)
    for number, line in enumerate(matrix, start=1):
        table.add_row(str(number), *map(_percent, line), *[""] * (len(matrix) - len(line)))
    return table


def _drift(tasks: Sequence[Mapping[str, Any]]) -> Table:
    later = [task for task in tasks if task.get("drift")]
    headings = ["aligner", *(str(task["task"]) for task in later)]
    title = "mean distance of latents of old test images from the previous model's, after each task"
    table = _table(title, headings)
    for name in later[0]["drift"]:
        table.add_row(name, *(f"{task['drift'][name]['distance']:.3g}" for task in later))
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
