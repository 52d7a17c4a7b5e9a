"""How far the runs of a sweep are, as a table that is kept up to date.

What is shown is read off the runs' folders, which workers on other machines write to as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elign.lab.experiments.run_folder import RunFolder
from elign.lab.reproduce.store import tasks_read
from elign.lab.sweep.plan import Cell
from elign.utils.errors import ElignError


@dataclass
class _Line:
    """A run and what is known of it.

    Args:
        cell: The run.
        state: In a word.
        before: How often it had been begun before this sweep.
        starts: How often in this sweep.
    """

    cell: Cell
    state: str
    before: int
    starts: int = 0


class Lines:
    """The runs of a sweep, line by line.

    Args:
        cells: The runs.
        say: Is told of everything that changes.
    """

    def __init__(self, cells: Sequence[Cell], say: Callable[[str], None]) -> None:
        self._say = say
        self._lines = {
            cell.run.digest: _Line(cell, "done before" if cell.job.done else "waiting", cell.folder.starts())
            for cell in cells
        }
        self.failed: dict[str, str] = {}

    def look(self) -> None:
        """Find out which runs were begun since, or begun again."""
        for line in self._lines.values():
            if line.state in ("waiting", "running"):
                self._count(line)

    def _count(self, line: _Line) -> None:
        # Counted by the folder: between two looks a run may be begun, die and be begun again.
        for number in range(line.starts + 1, line.cell.folder.starts() - line.before + 1):
            line.starts, line.state = number, "running"
            self._say(f"{line.cell.label}: {'started' if number == 1 else f'started, time {number}'}")

    def ended(self, cell: Cell, problem: str | None) -> None:
        """A run ended: well, or with a problem."""
        line = self._lines[cell.run.digest]
        self._count(line)
        line.state = "finished" if problem is None else "failed"
        if problem is not None:
            self.failed[cell.label] = problem
        self._say(f"{cell.label}: {line.state}{f' ({problem})' if problem else ''}")

    def table(self) -> Table:
        """All runs."""
        counts = Counter(line.state for line in self._lines.values())
        title = Text(", ".join(f"{count} {state}" for state, count in counts.items()))
        table = Table("run", "state", "tasks", "starts", title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for line in self._lines.values():
            table.add_row(Text(line.cell.label), line.state, _tasks(line.cell.folder), str(line.starts or "–"))
        return table


@contextmanager
def live_table(cells: Sequence[Cell], console: Console) -> Iterator[tuple[Lines, Callable[[], None]]]:
    """The runs, and a function that brings what is shown up to date; without a terminal, a line for each change."""

    def say(text: str) -> None:
        if not console.is_terminal:
            console.print(text, soft_wrap=True, markup=False)

    lines = Lines(cells, say)
    if not console.is_terminal:
        yield lines, lines.look
        return
    with Live(lines.table(), console=console, transient=True, auto_refresh=False) as live:

        def look() -> None:
            lines.look()
            live.update(lines.table(), refresh=True)

        yield lines, look


def _tasks(folder: RunFolder) -> str:
    try:
        return f"{tasks_read(folder)}/{len(folder.facts()['sizes'])}" if folder.exists else "–"
    except ElignError:
        return "–"  # what is wrong with the folder, its run will say
