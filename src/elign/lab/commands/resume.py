"""`elign resume`: go on with a run that was interrupted."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

HELP = "go on with a run that was interrupted; the result is the same as without the interruption"
EXAMPLES = """examples:
  elign resume out/my-run
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write files for TensorBoard (extra 'tensorboard')"
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Do what is not done yet."""
    from elign.lab.commands.show import print_run
    from elign.lab.experiments.run_folder import RunFolder
    from elign.lab.experiments.session import go_on

    folder = RunFolder(args.run)
    folder.facts()
    go_on(folder, console, tensorboard=args.tensorboard)
    print_run(folder, console)
