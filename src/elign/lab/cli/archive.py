"""Copy the results of runs without models, latents and paths of this machine: small enough to publish.

Examples:
  elign archive out/my-run --into published
  elign archive out/reproduce/runs/* --into published/runs
  elign show published/my-run                       list, report and reproduce (out=published) take archives, too
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import say

if TYPE_CHECKING:
    from rich.console import Console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, finished or not")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="gets a folder of the name of each run")


def run(args: argparse.Namespace, console: Console) -> None:
    """Copy them, one after the other."""
    from elign.lab.runs.archiving import archive_run
    from elign.lab.runs.run_dir import RunDir, RunError
    from elign.lab.storage import DamagedRunError

    failed = 0
    for path in args.runs:
        try:
            copy = archive_run(RunDir(path), args.into)
            say(console, f"{copy.path}: {len(copy.gather().tasks)} of {len(copy.metadata()['sizes'])} tasks")
        except (RunError, DamagedRunError) as error:
            failed += 1
            say(console, f"left out: {error}")
    if failed:
        raise RunError(f"{failed} of {len(args.runs)} could not be archived, see above")
