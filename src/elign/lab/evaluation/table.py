"""Tables of class-incremental results, for the terminal and for markdown pages.

Readings that know which test samples are old are marked in every table: they are no numbers that one could have in use.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from elign.lab.evaluation.catalogue import DEFAULT, READINGS
from elign.lab.evaluation.metrics import HEADLESS, METRICS, Summary
from elign.lab.evaluation.terms import DETECTED, terms_of

COLUMNS = {
    "average": "average",
    "last": "last",
    "old": "old",
    "new": "new",
    "among_old": "among old",
    "forgetting": "forgetting",
    "gate_accuracy": "gate",
}
"""Metrics that are shown, with their headings."""

_WIDE = {**COLUMNS, "average_incremental": "without the first task", "recovered": "recovered"}
"""The same with what a page has room for."""

HEAD = ("fc", *HEADLESS, "detector")
"""The classifiers of the main table: the model's own head, and what takes its place."""
NEAREST_MEAN = ("nearest-mean",)

_MARK = "†"


def summary_table(runs: Sequence[Sequence[Summary]], *, title: str = "", classifiers: Sequence[str] = HEAD) -> Table:
    """The readings as a table for the terminal.

    Args:
        runs: What `summarise` gives for each run (seed) of one experiment.
        title: Shown above.
        classifiers: Which classifiers' rows to show: `HEAD` or `NEAREST_MEAN`.
    """
    caption = f"{_terms(runs)}\n{_note(runs)}"
    table = Table(
        title=Text(title, style="bold") if title else None,
        caption=Text(caption),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    table.add_column("reading", no_wrap=True)
    for heading in COLUMNS.values():
        # Where the terminal is too narrow, a spread goes below its mean rather than being cut off.
        lines = heading.split()
        table.add_column("\n".join(lines), justify="right", min_width=max(map(len, lines)))
    for group, names in _groups(runs, classifiers):
        table.add_section()
        if group != names[0]:
            table.add_row(Text(group, style="italic"))
        for name in names:
            cells = [marked(name), *_cells(runs, name, classifiers)]
            table.add_row(
                *(Text(cell.replace("± ", "±")) for cell in cells),
                style="bold" if name == DEFAULT or name.startswith("eli/") else None,
            )
    return table


def summary_markdown(runs: Sequence[Sequence[Summary]], *, classifiers: Sequence[str] = HEAD) -> str:
    """The same as a markdown table with a column that says what uses test labels, and the formulas below it.

    Args:
        runs: What `summarise` gives for each run (seed) of one experiment.
        classifiers: Which classifiers' rows to show: `HEAD` or `NEAREST_MEAN`.

    Returns:
        Markdown that ends with a line break.
    """
    columns = ["", "reading", "uses test labels", *_WIDE.values()]
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join([' --- '] * 3 + [' ---: '] * len(_WIDE))}|"]
    for group, names in _groups(runs, classifiers):
        for number, name in enumerate(names):
            heading = group if number == 0 else ""
            label_free = READINGS[name].label_free
            cells = [
                heading,
                f"`{name}`",
                "" if label_free else f"yes {_MARK}",
                *_cells(runs, name, classifiers, _WIDE),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"{_terms(runs)}. {_note(runs)}.", ""]
    lines += [f"- {heading}: `{METRICS[name][0]}`: {METRICS[name][1]}." for name, heading in _WIDE.items()]
    return "\n".join(lines) + "\n"


def _groups(runs: Sequence[Sequence[Summary]], classifiers: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Headings with the readings that at least one run has, both in the order of the catalogue."""
    present = {summary.reading for run in runs for summary in run if summary.classifier in classifiers}
    groups: dict[str, list[str]] = {}
    for name, entry in READINGS.items():
        if name in present:
            groups.setdefault(entry.group, []).append(name)
    yield from groups.items()


def _cells(
    runs: Sequence[Sequence[Summary]], reading: str, classifiers: Sequence[str], columns: Iterable[str] = COLUMNS
) -> list[str]:
    found = [s for run in runs for s in run if s.reading == reading and s.classifier in classifiers]
    return [_cell([getattr(summary, name) for summary in found], runs=len(runs)) for name in columns]


def _cell(values: Sequence[float | None], *, runs: int) -> str:
    """Percent, with the sample standard deviation over several runs; a dash unless every run has a value."""
    known = [100 * value for value in values if value is not None]
    if len(known) != runs:
        return "–"
    mean = f"{statistics.fmean(known):.1f}"
    return f"{mean} ± {statistics.stdev(known):.1f}" if runs > 1 else mean


def marked(name: str) -> str:
    """The name of a reading, with a mark where it uses test labels."""
    return name if READINGS[name].label_free else f"{name} {_MARK}"


def _detects(runs: Sequence[Sequence[Summary]]) -> bool:
    return terms_of(summary.classifier for run in runs for summary in run) is DETECTED


def _note(runs: Sequence[Sequence[Summary]]) -> str:
    told = DETECTED.told if _detects(runs) else "of each test sample whether its class is old"
    return f"{_MARK} uses test labels: it knows {told}"


def _terms(runs: Sequence[Sequence[Summary]]) -> str:
    what = "accuracy is mean average precision over classes, in %" if _detects(runs) else "accuracy in %"
    if len(runs) == 1:
        return f"{what}; one run, so no spread can be given"
    return f"{what}; mean ± sample standard deviation over {len(runs)} runs"
