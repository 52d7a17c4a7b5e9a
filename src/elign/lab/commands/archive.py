"""`elign archive`: copies of runs with what was read off them alone, to be kept or published."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

HELP = "copy the readings of runs without models, latents and paths of this machine: small enough to publish"
EXAMPLES = """examples:
  elign archive out/my-run --into published
  elign archive out/reproduce/runs/* --into published/runs
  elign show published/my-run                       list, report and reproduce (out=published) read copies, too
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, finished or not")
    parser.add_argument(
        "--into", type=Path, required=True, metavar="DIR", help="where each copy gets a folder of its run's name"
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Copy them, one after the other."""
    from elign.lab.experiments.archive import archive_run
    from elign.lab.experiments.run_folder import RunError, RunFolder
    from elign.lab.tensor_file import DamagedRunError

    left = 0
    for path in args.runs:
        try:
            copy = archive_run(RunFolder(path), args.into)
            said = f"{copy.path}: {len(copy.gather().tasks)} of {len(copy.facts()['sizes'])} tasks"
        except (RunError, DamagedRunError) as error:
            left, said = left + 1, f"left out: {error}"
        console.print(said, soft_wrap=True, markup=False)
    if left:
        raise RunError(f"{left} of {len(args.runs)} could not be archived, see above")
