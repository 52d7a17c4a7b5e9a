"""The progress of a run: live on the terminal and, with the extra `tensorboard`, for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from elign.lab.environment import MissingExtraError
from elign.lab.runs.results import Results
from elign.lab.training.trainer import TrainingProgress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class RunDisplay:
    """Shows a run: one line on a terminal; elsewhere, such as in a log file, a line for each epoch.

    Args:
        console: Where to write.
        tasks: How many tasks there are.
        progress: Of the terminal.
        board: TensorBoard's writer; it gets losses and results as well.
    """

    def __init__(self, console: Console, tasks: int, progress: Progress, board: SummaryWriter | None = None) -> None:
        self._console, self._tasks, self._progress, self._board = console, tasks, progress, board
        self._line = progress.add_task("starting", total=None)

    def show(self, progress: TrainingProgress) -> None:
        """Show how far the training of a task is."""
        text = progress_text(progress, self._tasks)
        ends_epoch = progress.step == progress.steps
        if self._console.is_terminal:
            done = progress.epoch * progress.steps + progress.step
            total = progress.epochs * progress.steps
            self._progress.update(self._line, description=text, completed=done, total=total)
        elif ends_epoch:
            self._console.print(text, soft_wrap=True)
        if self._board and ends_epoch:
            name, epoch = f"task {progress.task + 1}", progress.epoch + 1
            self._board.add_scalar(f"loss/{name}", progress.loss, epoch)
            if progress.accuracy is not None:
                self._board.add_scalar(f"training accuracy/{name}", progress.accuracy, epoch)

    def say(self, text: str) -> None:
        """Say what starts."""
        self._progress.update(self._line, description=text, total=None)
        if not self._console.is_terminal:
            self._console.print(text, soft_wrap=True)

    def finished(self, results: Results) -> None:
        """Write the methods of a task to TensorBoard; the task is the step."""
        if self._board is None:
            return
        for row in results.rows:
            for part in ("accuracy", "old", "new"):
                value = getattr(row, part)
                if value is not None:
                    # A slash would make a group of its own.
                    name = f"{part} ({row.classifier})/{row.method.replace('/', ' ')}"
                    self._board.add_scalar(name, value, row.task)
        self._board.flush()


@contextmanager
def show_run(console: Console, tasks: int, board: Path | None = None) -> Iterator[RunDisplay]:
    """Yield the display of a run; `board` is a folder for TensorBoard.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with _board(board) if board else nullcontext() as writer, bar as progress:
        yield RunDisplay(console, tasks, progress, writer)


def _board(folder: Path) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError(
            "--tensorboard needs the package tensorboard: pip install 'elign[lab,tensorboard]'"
        ) from None
    return SummaryWriter(str(folder))


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
