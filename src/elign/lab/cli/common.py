"""What several commands share: output, types of options, and the check of a folder to write into."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from elign.utils.errors import ElignError

if TYPE_CHECKING:
    from rich.console import Console


class FolderError(ElignError):
    """A folder to write into holds something else."""


def say(console: Console, text: str) -> None:
    """Print a line that may be copied: neither wrapped nor read as markup."""
    console.print(text, soft_wrap=True, markup=False)


def check_folder(folder: Path, *own: str) -> None:
    """Refuse a folder that holds something else than what a command writes there.

    Args:
        folder: It need not exist.
        own: Patterns, at least one of which fits a file or folder that the command wrote there before.

    Raises:
        FolderError: It holds other things only, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; give a folder")
    entries = [entry for entry in folder.glob("*") if entry.name != ".lock"]
    if entries and not any(entry.match(pattern) for entry in entries for pattern in own):
        raise FolderError(f"{folder} holds something else ({entries[0].name}); give another folder, or an empty one")


def count(text: str) -> int:
    """Read a whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number >= 0, not {text!r}")
    return int(text)


def positive(text: str) -> int:
    """Read a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, not {text!r}")
    return int(text)


def share(text: str) -> float:
    """Read a number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number >= 0, not {text!r}")
    return value
