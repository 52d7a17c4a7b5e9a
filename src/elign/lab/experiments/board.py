"""Loss, accuracy and readings as TensorBoard shows them; needs the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.evaluation.results import Results
from elign.lab.experiments.loop import Moment
from elign.lab.extras import MissingExtraError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Board:
    """Writes what a run tells.

    Args:
        writer: Where to.
    """

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def beside(self, show: Callable[[Moment], None]) -> Callable[[Moment], None]:
        """A function that tells `show` of each moment, and the board at the end of each epoch."""

        def both(moment: Moment) -> None:
            show(moment)
            if moment.step == moment.steps:
                name = f"task {moment.task + 1}"
                self._writer.add_scalar(f"loss/{name}", moment.loss, moment.epoch + 1)
                if moment.accuracy is not None:
                    self._writer.add_scalar(f"training accuracy/{name}", moment.accuracy, moment.epoch + 1)

        return both

    def results(self, results: Results) -> None:
        """The readings of the last task that was finished; the task is the step."""
        last = max(row.task for row in results.rows)
        for row in results.rows:
            if row.task == last:
                for part in ("accuracy", "old", "new"):
                    value = getattr(row, part)
                    if value is not None:
                        # A slash would make a group of its own.
                        name = f"{part} ({row.classifier})/{row.reading.replace('/', ' ')}"
                        self._writer.add_scalar(name, value, row.task)
        self._writer.flush()


@contextmanager
def open_board(folder: Path) -> Iterator[Board]:
    """A board that writes into a folder.

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
        yield Board(writer)
