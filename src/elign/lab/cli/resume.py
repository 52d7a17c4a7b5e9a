"""Resume a run that was interrupted; the result is the same as without the interruption.

Examples:
  elign resume out/my-run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files (extra 'tensorboard')")


def run(args: argparse.Namespace, console: Console) -> None:
    """Finish the run and show it."""
    from elign.lab.cli.show import print_runs
    from elign.lab.runs.launch import resume_run
    from elign.lab.runs.run_dir import RunDir

    folder = RunDir(args.run)
    resume_run(folder, console, tensorboard=args.tensorboard)
    print_runs([folder], console)
