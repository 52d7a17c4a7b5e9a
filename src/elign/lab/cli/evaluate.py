"""Fit other aligners to a run's models and evaluate it again; nothing is trained, so it takes seconds.

Examples:
  elign evaluate out/my-run aligner.steps=60
  elign evaluate out/my-run aligner.hidden=[] --name linear
  elign evaluate out/my-run aligner=logits
  elign evaluate out/my-run aligner.mixup=0.3 aligner.passes=2
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
    parser.add_argument("overrides", nargs="+", metavar="aligner.key=value", help="what is different")
    parser.add_argument("--name", help="name of the evaluation (default: made from what is different)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Evaluate the run again and show the result."""
    from elign.lab.cli.show import print_runs
    from elign.lab.runs.experiment import benchmark_of
    from elign.lab.runs.launch import reevaluate_run
    from elign.lab.runs.run_dir import RunDir

    folder = RunDir(args.run)
    metadata = folder.metadata()
    benchmark = benchmark_of(metadata)
    config = benchmark.with_aligner(benchmark.from_dict(metadata["config"]), args.overrides)
    print_runs([reevaluate_run(folder, config, console, name=args.name)], console)
