"""`elign evaluate`: read the models of a run with other aligners, without training them again."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

HELP = "fit other aligners to a run's models and read it again; nothing is trained, so it takes seconds"
EXAMPLES = """examples:
  elign evaluate out/my-run aligner.steps=60
  elign evaluate out/my-run aligner.hidden=[] --name linear
  elign evaluate out/my-run aligner=logits
  elign evaluate out/my-run aligner.mixup=0.3 aligner.passes=2
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of the run")
    parser.add_argument("overrides", nargs="+", metavar="aligner.key=value", help="what is different")
    parser.add_argument("--name", help="name of the evaluation (default: made from what is different)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Fit and read."""
    from elign.lab.commands.show import print_run
    from elign.lab.experiments.run_folder import RunFolder
    from elign.lab.experiments.session import read_again

    target = read_again(RunFolder(args.run), args.overrides, console, name=args.name)
    print_run(target, console)
