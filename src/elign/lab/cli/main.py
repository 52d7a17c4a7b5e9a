"""The command `elign`: runs the command that was asked for, and turns errors into one clear line.

Nothing here imports torch or another package before a command runs, so that help is there at once. Below: what several
commands share.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elign import __version__
from elign.utils.errors import ElignError

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = (
    *("remember", "repair", "doctor"),
    *("run", "resume", "evaluate", "list", "show", "report", "archive", "reproduce", "sweep", "detect"),
    *("export", "data", "toy"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 if all went well, 1 for an error in the input or the data (2 from `remember` and `repair`), 2 for a wrong
        command line, 130 when interrupted.
    """
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1, cutoff=0)
        _complain(f"there is no command {arguments[0]!r}; did you mean '{near[0]}'? See 'elign --help'.")
        return 2
    args = _parse(arguments)
    try:
        from rich.console import Console

        _command(args.command).run(args, Console(highlight=False))
    except KeyboardInterrupt:
        _complain("interrupted; finished work is kept, and the same command resumes it")
        return 130
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing == "elign":
            raise
        _complain(f"this command needs the extra 'lab' ({missing} is missing): pip install 'elign[lab]'")
        return 1
    except (ElignError, OSError) as error:
        _complain(_full_disk(error) or str(error))
        # Commands of version 0.1 return 1 for bad input, which scripts may rely on.
        return 1 if _full_disk(error) else getattr(_command(args.command), "BAD_INPUT", 1)
    return 0


def _complain(text: str) -> None:
    print(f"elign: {text}", file=sys.stderr)


def _command(name: str) -> Any:
    return importlib.import_module(f"elign.lab.cli.{name}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="elign", description="Repair models that forgot, and the bench.")
    parser.add_argument("--version", action="version", version=f"elign {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    # Only the help of all commands needs all of them.
    for name in arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS:
        add_command(commands, name, _command(name))
    args, rest = parser.parse_known_args(arguments)
    # argparse takes the settings that stand before an option, but not those that stand after it.
    if rest and not (hasattr(args, "overrides") and all("=" in text and text[0] != "-" for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides += rest
    return args


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: Any) -> None:
    """Add a parser for the command of a module, whose docstring is the help."""
    # `python -OO` drops docstrings.
    first, _, rest = (module.__doc__ or f"See the documentation of elign {name}.").partition("\n\n")
    raw = argparse.RawDescriptionHelpFormatter
    module.add_options(commands.add_parser(name, help=first, description=first, epilog=rest, formatter_class=raw))


def _full_disk(error: Exception) -> str:
    if not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
        return ""
    return f"the disk is full ({error}); finished work is kept: make room, then the same command resumes it"


class FolderError(ElignError):
    """A folder to write into holds something else."""


def say(console: Console, text: str) -> None:
    """Print a line that may be copied: neither wrapped nor read as markup."""
    console.print(text, soft_wrap=True, markup=False)


def check_folder(folder: Path, *own: str) -> None:
    """Refuse a folder that holds something else than what a command writes there; it need not exist.

    Args:
        folder: The folder.
        own: Patterns, at least one of which fits a file or folder that the command wrote there before.

    Raises:
        FolderError: It holds other things only, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; give a folder")
    entries = [entry for entry in folder.glob("*") if entry.name != ".lock"]
    if entries and not any(entry.match(pattern) for entry in entries for pattern in own):
        raise FolderError(f"{folder} holds something else ({entries[0].name}); give another folder, or an empty one")


def at_least(least: int, kind: type[int] | type[float] = int) -> Callable[[str], Any]:
    """Return a parser of numbers that refuses those below `least`."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"must be a {whole}number >= {least}, not {text!r}")
        return value

    return read
