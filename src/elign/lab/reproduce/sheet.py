"""A finished table in three forms: for the terminal, for a markdown page, for spreadsheets.

Knows nothing of what is in it; `comparison.py` and `compute.py` fill it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Value = str | int | float | None


@dataclass(frozen=True)
class Grid:
    """Texts in rows and columns.

    Args:
        columns: Their headings.
        rows: The texts.
        labels: How many of the first columns are labels; the others are numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int


@dataclass(frozen=True)
class Sheet:
    """A table with what must be said about it.

    Args:
        name: Of its files.
        title: Above it.
        notes: What a reader must know: differences of scale first.
        page: The table for a page, which has room for all columns.
        terminal: The same in narrower pieces.
        records: The same as plain values, for files.
        command: What makes it again.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    page: Grid
    terminal: tuple[Grid, ...]
    records: tuple[Mapping[str, Value], ...]
    command: str = ""


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Show a table on the terminal, its notes first."""
    console.print()
    console.print(Text(sheet.title, style="bold"))
    for note in sheet.notes:
        console.print(Text(f"- {note}"))
    for grid in sheet.terminal:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for number, heading in enumerate(grid.columns):
            lines = heading.split("\n")
            right = number >= grid.labels
            width = max(map(len, lines))
            # Never cut: labels are what tells rows apart.
            table.add_column(heading, justify="right" if right else "left", min_width=width, overflow="fold")
        for row in grid.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)


def sheet_markdown(sheet: Sheet) -> str:
    """The table as markdown, its notes first and the command last.

    Returns:
        Markdown that ends with a line break.
    """
    grid = sheet.page
    rules = [" --- "] * grid.labels + [" ---: "] * (len(grid.columns) - grid.labels)
    lines = [f"**{_cell(sheet.title)}**", "", *(f"- {_cell(note)}" for note in sheet.notes), ""]
    lines += [f"| {' | '.join(map(_cell, grid.columns))} |", f"|{'|'.join(rules)}|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in grid.rows]
    if sheet.command:
        lines += ["", f"Made by `{sheet.command}`."]
    return "\n".join(lines) + "\n"


def sheet_csv(sheet: Sheet) -> str:
    """The values as a flat table; what has no value is empty."""
    names = list(dict.fromkeys(name for record in sheet.records for name in record))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for record in sheet.records:
        writer.writerow(["" if record.get(name) is None else record[name] for name in names])
    return stream.getvalue()


def without_constant_labels(grid: Grid) -> tuple[Grid, tuple[str, ...]]:
    """Leave out label columns that say the same in every row, and hand over what they say."""
    if len(grid.rows) < 2:
        return grid, ()
    same = [number for number in range(grid.labels) if len({row[number] for row in grid.rows}) == 1]
    if len(same) == grid.labels:
        same.pop()
    kept = [number for number in range(len(grid.columns)) if number not in same]

    def pick(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(texts[number] for number in kept)

    said = tuple(grid.rows[0][number] for number in same)
    return Grid(pick(grid.columns), tuple(map(pick, grid.rows)), grid.labels - len(same)), said


def _cell(text: str) -> str:
    safe = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return safe.replace("<", "&lt;").replace(">", "&gt;")
