"""Where a training is, on the terminal: epoch, loss, accuracy and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from elign.lab.experiments.loop import Moment


@contextmanager
def watch_run(console: Console, tasks: int) -> Iterator[tuple[Callable[[Moment], None], Callable[[str], None]]]:
    """Two functions for the runner: one for moments of a training, one for a line about anything else.

    On a terminal one line is kept up to date; elsewhere, in a log file say, every finished epoch is a line.

    Args:
        console: Where to write.
        tasks: How many tasks there are.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task("starting", total=None)

        def show(moment: Moment) -> None:
            text = describe(moment, tasks)
            if console.is_terminal:
                done = moment.epoch * moment.steps + moment.step
                progress.update(line, description=text, completed=done, total=moment.epochs * moment.steps)
            elif moment.step == moment.steps:
                console.print(text, soft_wrap=True)

        def say(text: str) -> None:
            progress.update(line, description=text, total=None)
            if not console.is_terminal:
                console.print(text, soft_wrap=True)

        yield show, say


def describe(moment: Moment, tasks: int) -> str:
    """One line about a moment.

    Example:
        >>> describe(Moment(0, 1, 4, 5, 10, 0.5, 0.75, 30.0), 6)
        'task 1/6  epoch 2/4  loss 0.500  accuracy 75.0 %  left in this task 0:00:50'
    """
    done = (moment.epoch + moment.step / moment.steps - moment.first_epoch) / (moment.epochs - moment.first_epoch)
    left = timedelta(seconds=round(moment.seconds * (1 / done - 1)))
    accuracy = "" if moment.accuracy is None else f"accuracy {100 * moment.accuracy:.1f} %  "
    return (
        f"task {moment.task + 1}/{tasks}  epoch {moment.epoch + 1}/{moment.epochs}  loss {moment.loss:.3f}  "
        f"{accuracy}left in this task {left}"
    )
