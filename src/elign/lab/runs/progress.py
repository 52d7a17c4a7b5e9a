"""Live progress on the terminal: epoch, loss, accuracy and the time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from elign.lab.runs.results import Results
from elign.lab.runs.tensorboard import TensorBoard
from elign.lab.training.trainer import TrainingProgress


class RunDisplay:
    """Shows a run: one line on a terminal; elsewhere, such as in a log file, a line for each epoch.

    Args:
        console: Where to write.
        tasks: How many tasks there are.
        progress: Of the terminal.
        board: Gets losses and results as well.
    """

    def __init__(self, console: Console, tasks: int, progress: Progress, board: TensorBoard | None = None) -> None:
        self._console, self._tasks, self._progress, self._board = console, tasks, progress, board
        self._line = progress.add_task("starting", total=None)

    def show(self, progress: TrainingProgress) -> None:
        """Show how far the training of a task is."""
        text = progress_text(progress, self._tasks)
        if self._console.is_terminal:
            done = progress.epoch * progress.steps + progress.step
            total = progress.epochs * progress.steps
            self._progress.update(self._line, description=text, completed=done, total=total)
        elif progress.step == progress.steps:
            self._console.print(text, soft_wrap=True)
        if self._board:
            self._board.show(progress)

    def say(self, text: str) -> None:
        """Say what starts."""
        self._progress.update(self._line, description=text, total=None)
        if not self._console.is_terminal:
            self._console.print(text, soft_wrap=True)

    def finished(self, results: Results) -> None:
        """Show the results of a task."""
        if self._board:
            self._board.finished(results)


@contextmanager
def show_run(console: Console, tasks: int, board: TensorBoard | None = None) -> Iterator[RunDisplay]:
    """Yield the display of a run."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield RunDisplay(console, tasks, progress, board)


def progress_text(progress: TrainingProgress, tasks: int) -> str:
    """Describe the progress of a training in one line.

    Example:
        >>> progress_text(TrainingProgress(0, 1, 4, 5, 10, 0.5, 0.75, 30.0), 6)
        'task 1/6  epoch 2/4  loss 0.500  accuracy 75.0 %  left in this task 0:00:50'
    """
    epochs = progress.epoch + progress.step / progress.steps
    done = (epochs - progress.first_epoch) / (progress.epochs - progress.first_epoch)
    left = timedelta(seconds=round(progress.seconds * (1 / done - 1)))
    accuracy = "" if progress.accuracy is None else f"accuracy {100 * progress.accuracy:.1f} %  "
    return (
        f"task {progress.task + 1}/{tasks}  epoch {progress.epoch + 1}/{progress.epochs}  loss {progress.loss:.3f}  "
        f"{accuracy}left in this task {left}"
    )
