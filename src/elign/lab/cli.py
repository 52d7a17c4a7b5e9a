"""The command `elign`: finds the command that was asked for, runs it, and turns errors into one clear line."""

from __future__ import annotations

import argparse
import difflib
import errno
import sys
from collections.abc import Sequence
from types import ModuleType

from rich.console import Console

import elign
from elign.lab.commands import (
    archive,
    data,
    detect,
    evaluate,
    export,
    list,
    report,
    reproduce,
    resume,
    run,
    show,
    sweep,
    toy,
)
from elign.lab.data.errors import DataError
from elign.lab.pages import PageError

_COMMANDS: dict[str, ModuleType] = {
    "toy": toy,
    "run": run,
    "resume": resume,
    "evaluate": evaluate,
    "list": list,
    "show": show,
    "report": report,
    "archive": archive,
    "reproduce": reproduce,
    "sweep": sweep,
    "detect": detect,
    "export": export,
    "data": data,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 if all went well, 1 for an error in the input or the data, 2 for a wrong command line, 130 when interrupted.
    """
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    errors = Console(stderr=True, highlight=False)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        near = difflib.get_close_matches(arguments[0], _COMMANDS, n=1, cutoff=0)
        errors.print(
            f"elign: there is no command {arguments[0]!r}; did you mean '{near[0]}'? See 'elign --help'.", markup=False
        )
        return 2
    args = _parse(arguments)
    try:
        _COMMANDS[args.command].run(args, Console(highlight=False))
    except KeyboardInterrupt:
        errors.print("elign: interrupted; what is finished is kept, the same command goes on from there")
        return 130
    except (elign.ElignError, DataError, PageError, OSError) as error:
        errors.print(f"elign: {_full_disk(error) or error}", markup=False, soft_wrap=True)
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    args, rest = parser.parse_known_args(arguments)
    # argparse takes the settings that stand before an option, but not those that stand after it.
    if rest and not (hasattr(args, "overrides") and all("=" in text and text[0] != "-" for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides += rest
    return args


def _full_disk(error: Exception) -> str:
    if not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
        return ""
    return f"the disk is full ({error}); what is finished is kept: make room, then the same command goes on from there"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="elign", description="Energy-based latent alignment: the bench.")
    parser.add_argument("--version", action="version", version=f"elign {elign.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, module in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
