"""What lies behind a run's summary: every task, the accuracy matrix, drift. For the terminal; imported by commands.

What only detectors have is in `class_details.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.metrics import HEADLESS, METRICS, accuracy_matrix, curve, summarise
from elign.lab.evaluation.results import Results
from elign.lab.evaluation.terms import Terms, terms_of

_MATRICES = ("base", "eli/oracle", "eli/all")


def details(results: Results, *, classifier: str = "fc") -> Iterator[Table]:
    """Tables of one run: accuracy after each task, metrics that the summary leaves out, accuracy matrices, drift.

    Args:
        results: Of the run.
        classifier: `fc`, `nearest-mean` or `detector`.
    """
    terms = terms_of([classifier])
    summaries = [s for s in summarise(results.rows) if s.classifier in (classifier, *HEADLESS)]
    tasks = max(row.task for row in results.rows)
    table = plain_table(
        f"{terms.measure} after each task, in %", ["reading", *(str(task) for task in range(1, tasks + 1))]
    )
    more = ("average_incremental", "backward_transfer", "recovered")
    other = plain_table("; ".join(f"{name}: {METRICS[name][0]}" for name in more), ["reading", *more])
    for summary in sorted(summaries, key=lambda s: list(READINGS).index(s.reading)):
        rows = curve(results.rows, summary.reading, summary.classifier)
        table.add_row(summary.reading, *(percent(row.accuracy) for row in rows))
        other.add_row(summary.reading, *(percent(getattr(summary, name)) for name in more))
    yield table
    yield other
    for name in _MATRICES:
        if any((s.reading, s.classifier) == (name, classifier) for s in summaries):
            yield _matrix(name, terms, accuracy_matrix(curve(results.rows, name, classifier)))
    if any(task.get("drift") for task in results.tasks):
        yield _drift(results.tasks)


def _matrix(name: str, terms: Terms, matrix: Sequence[Sequence[float]]) -> Table:
    headings = ["after task", *(f"of {number}" for number in range(1, len(matrix) + 1))]
    table = plain_table(f"{name}: {terms.measure} on the {terms.of_task} of each task, in %", headings)
    for number, line in enumerate(matrix, start=1):
        table.add_row(str(number), *map(percent, line), *[""] * (len(matrix) - len(line)))
    return table


def _drift(tasks: Sequence[Mapping[str, Any]]) -> Table:
    later = [task for task in tasks if task.get("drift")]
    headings = ["aligner", *(str(task["task"]) for task in later)]
    title = "mean distance of latents of old test images from the previous model's, after each task"
    table = plain_table(title, headings)
    for name in later[0]["drift"]:
        table.add_row(name, *(f"{task['drift'][name]['distance']:.3g}" for task in later))
    return table


def plain_table(title: str, headings: Sequence[str]) -> Table:
    """A table with its title above and the first column on the left, the others being numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
    return table


def percent(value: float | None) -> str:
    """A fraction in percent, a dash for none."""
    return "–" if value is None else f"{100 * value:.1f}"
