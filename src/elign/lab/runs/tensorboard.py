"""Loss, accuracy and methods as TensorBoard shows them; needs the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.environment import MissingExtraError
from elign.lab.runs.results import Results
from elign.lab.training.trainer import TrainingProgress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Writes the progress and the results of a run.

    Args:
        writer: Of TensorBoard.
    """

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def show(self, progress: TrainingProgress) -> None:
        """Write loss and accuracy at the end of each epoch."""
        if progress.step == progress.steps:
            name = f"task {progress.task + 1}"
            self._writer.add_scalar(f"loss/{name}", progress.loss, progress.epoch + 1)
            if progress.accuracy is not None:
                self._writer.add_scalar(f"training accuracy/{name}", progress.accuracy, progress.epoch + 1)

    def finished(self, results: Results) -> None:
        """Write the methods of a task; the task is the step."""
        for row in results.rows:
            for part in ("accuracy", "old", "new"):
                value = getattr(row, part)
                if value is not None:
                    # A slash would make a group of its own.
                    name = f"{part} ({row.classifier})/{row.method.replace('/', ' ')}"
                    self._writer.add_scalar(name, value, row.task)
        self._writer.flush()


@contextmanager
def open_tensorboard(folder: Path) -> Iterator[TensorBoard]:
    """Open a writer into a folder.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError(
            "--tensorboard needs the package tensorboard: pip install 'elign[lab,tensorboard]'"
        ) from None
    with SummaryWriter(str(folder)) as writer:
        yield TensorBoard(writer)
