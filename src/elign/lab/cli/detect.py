"""Incremental object detection: train a detector task by task, fit ELI on its regions, evaluate all methods.

Examples:
  elign detect run                                             iOD on scenes of digits, 5+5 classes (preset=small)
  elign detect run learner=iod preset=smoke out=DIR            every code path, less than two minutes
  elign detect run learner=ilod protocol=8+2
  elign detect run learner=faster-ilod data=voc data.path=FOLDER protocol=16+15
  elign detect resume DIR
  elign detect evaluate DIR aligner.steps=60
  elign detect show DIR

'elign list', 'elign report' and the other commands take detection runs, too. Needs the extra 'detection'.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from elign.lab.cli import evaluate, main, resume, show
from elign.lab.cli import run as run_command

if TYPE_CHECKING:
    from rich.console import Console

_RUN = SimpleNamespace(
    __doc__="""Train an incremental detector, fit ELI after each task and evaluate all methods.

Examples:
  elign detect run learner=iod preset=smoke out=DIR
  elign detect run learner=ore protocol=9+1 seed=1

keys: learner, data, protocol, model, train, memory, aligner, evaluation, preset, seed, out, start_from; a dot reaches
inside (train.epochs=5). 'elign detect run --keys' shows all of them with their values. The same command resumes a run
that was interrupted, and so does 'elign detect resume'.
""",
    add_options=run_command.add_options,
    run=lambda args, console: run_command.run(args, console, benchmark="detection"),
)
_COMMANDS: dict[str, Any] = {"run": _RUN, "resume": resume, "evaluate": evaluate, "show": show}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands below this one."""
    commands = parser.add_subparsers(dest="detect_command", required=True, metavar="command")
    for name, command in _COMMANDS.items():
        main.add_command(commands, name, command)


def run(args: argparse.Namespace, console: Console) -> None:
    """Run the command below this one; a run that exists knows its benchmark."""
    _COMMANDS[args.detect_command].run(args, console)
