"""Errors of the bench's data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class DataError(Exception):
    """Anything that keeps a dataset from being loaded."""


class FetchError(DataError):
    """Something could not be fetched.

    Args:
        what: What was wanted.
        reasons: One line for each place that was tried, with why it failed.
    """

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        # The arguments go to Exception as they are so that the error survives pickling between processes.
        super().__init__(what, reasons)
        self.what = what
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        return f"{self.what} could not be fetched ({'; '.join(self.reasons)})"


class DamagedFileError(DataError):
    """A file is there, but its content is not what it must be.

    Args:
        path: The file.
        problem: What is wrong with it.
        remedy: What the user can do about it.
    """

    def __init__(
        self,
        path: Path | str,
        problem: str,
        remedy: str = "replace it by a good copy, or remove it so that it is fetched again",
    ) -> None:
        super().__init__(path, problem, remedy)
        self.path = path
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.path} is damaged: {self.problem}. To go on, {self.remedy}."


class DatasetNotFoundError(DataError):
    """A dataset is neither on disk nor could it be fetched.

    Args:
        dataset: The dataset's name.
        folder: Where its files are expected.
        files: The names of the files that are missing.
        tries: One line for each place that was tried, with why it failed.
    """

    def __init__(self, dataset: str, folder: Path, files: Sequence[str], tries: Sequence[str]) -> None:
        super().__init__(dataset, folder, files, tries)
        self.dataset = dataset
        self.folder = folder
        self.files = tuple(files)
        self.tries = tuple(tries)

    def advice(self) -> str:
        """What to put where; the list of files follows. Kinds of datasets that come otherwise say it otherwise."""
        return f"Put these files, plain or with .gz added, into {self.folder}:"

    def __str__(self) -> str:
        wanted = "".join(f"\n  {name}" for name in self.files)
        tried = "".join(f"\n  - {line}" for line in self.tries)
        return (
            f"The dataset {self.dataset!r} was not found.\n"
            f"{self.advice()}{wanted}\n"
            "or name another folder with the variable ELIGN_DATA, --data-dir or, for elign run, data.data_dir=.\n"
            f"What was tried:{tried}"
        )
