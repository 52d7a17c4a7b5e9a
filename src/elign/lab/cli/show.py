"""Show the results of a run, each method beside its baselines; several runs (seeds) as mean and deviation.

Examples:
  elign show out/my-run
  elign show out/my-run --classifier nearest-mean
  elign show out/seed0 out/seed1 out/seed2 --markdown docs/results.md --section half-5-icarl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import say

if TYPE_CHECKING:
    from rich.console import Console

    from elign.lab.report.run_groups import RunGroup
    from elign.lab.runs.run_dir import RunDir


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs of one experiment")
    parser.add_argument(
        "--classifier",
        choices=("fc", "nearest-mean"),
        default="fc",
        help="fc: the model's own head, and prototypes; nearest-mean: of exemplars (default: fc)",
    )
    parser.add_argument(
        "--details", action="store_true", help="also every task, accuracy matrices and drift; of detectors every class"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table into this markdown page")
    parser.add_argument("--section", help="the section of that page to write it to (default: made from the run)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Print the table."""
    from elign.lab.evaluation.metrics import HEAD
    from elign.lab.report.run_groups import (
        NEAREST_MEAN,
        RunGroup,
        detection_tables,
        methods_table,
        metric_notes,
        task_tables,
    )
    from elign.lab.report.table import around_section, update_section
    from elign.lab.runs.run_dir import RunDir, run_text

    folders = [RunDir(path) for path in args.runs]
    classifiers = HEAD if args.classifier == "fc" else NEAREST_MEAN
    section = args.section or run_text(folders[0].metadata()).replace(" ", "-")
    if args.markdown:
        around_section(args.markdown, section)
    group = print_runs(folders, console, classifiers=classifiers)
    for each in group.runs if args.details else ():
        alone = RunGroup(group.name, (each,))
        for table in (*task_tables(alone, classifiers), *detection_tables(alone)):
            console.print(table.to_rich())
    if args.markdown:
        table = methods_table(group, classifiers, title="")
        table.footnotes = [*table.footnotes, *metric_notes([group], formulas=True)]
        update_section(args.markdown, section, "\n\n".join([table.to_markdown().rstrip(), *group.remarks]))


def print_runs(folders: Sequence[RunDir], console: Console, *, classifiers: Sequence[str] = ()) -> RunGroup:
    """Print the table of runs of one experiment, with the model's own head unless other classifiers are given."""
    from elign.lab.evaluation.metrics import HEAD
    from elign.lab.report.run_groups import methods_table, read_seeds

    group = read_seeds(folders)
    console.print(methods_table(group, classifiers or HEAD, title=group.name).to_rich())
    for folder in folders:
        say(console, f"Results: {', '.join(map(str, folder.result_files() or [folder.path]))}")
    for note in group.remarks:
        say(console, note)
    return group
