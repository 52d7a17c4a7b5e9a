"""`elign detect`: incremental object detection, with the same commands as classification."""

from __future__ import annotations

import argparse
from types import ModuleType

from rich.console import Console

from elign.lab.commands import evaluate, resume, show
from elign.lab.commands import run as run_command

HELP = "incremental object detection: train a detector task by task, fit ELI on its regions, read it with all controls"
EXAMPLES = """examples:
  elign detect run                                             iOD on scenes of digits, 5+5 classes (preset=small)
  elign detect run learner=iod preset=smoke out=DIR            every code path, less than two minutes
  elign detect run learner=ilod protocol=8+2
  elign detect run learner=faster-ilod data=voc data.path=FOLDER protocol=16+15
  elign detect resume DIR
  elign detect evaluate DIR aligner.steps=60
  elign detect show DIR

'elign list', 'elign report' and the other commands take detection runs, too. Needs the extra 'detection'.
"""
RUN_HELP = "train an incremental detector, fit ELI after each task and read it with all its controls"
RUN_EXAMPLES = """examples:
  elign detect run learner=iod preset=smoke out=DIR
  elign detect run learner=ore protocol=9+1 seed=1

keys: learner, data, protocol, model, train, memory, aligner, evaluation, preset, seed, out, start_from; a dot reaches
inside (train.epochs=5). 'elign detect run --keys' shows all of them with their values. The same command again goes on
with a run that was interrupted, and so does 'elign detect resume'.
"""

_COMMANDS: dict[str, ModuleType] = {"run": run_command, "resume": resume, "evaluate": evaluate, "show": show}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The commands below this one."""
    commands = parser.add_subparsers(dest="detect_command", required=True, metavar="command")
    for name, module in _COMMANDS.items():
        own = module is run_command
        command = commands.add_parser(
            name,
            help=RUN_HELP if own else module.HELP,
            description=RUN_HELP if own else module.HELP,
            epilog=RUN_EXAMPLES if own else module.EXAMPLES.replace("elign ", "elign detect "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)


def run(args: argparse.Namespace, console: Console) -> None:
    """Run the command below this one; runs that exist know their kind."""
    if args.detect_command == "run":
        from elign.lab.experiments.kinds import DETECTION

        run_command.run(args, console, kind=DETECTION)
    else:
        _COMMANDS[args.detect_command].run(args, console)
