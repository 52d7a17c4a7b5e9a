"""Live progress on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def live_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A function (what, done, in all) that keeps one line up to date; without a terminal, a line for each new thing."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task("starting", total=None)
        last = ""

        def tell(what: str, done: int, of: int) -> None:
            nonlocal last
            if what != last:
                last = what
                progress.reset(line, total=of, description=what)
                if not console.is_terminal:
                    console.print(what)
            progress.update(line, completed=done)

        yield tell
