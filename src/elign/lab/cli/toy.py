"""Watch a model forget and remember: the paper's two-task experiment, with its baselines and an HTML report.

Examples:
  elign toy                                            embedded digits, about a minute, no download
  elign toy --data mnist --latent-dim 32               the paper's experiment on MNIST
  elign toy --data mnist --latent-dim 512 --heads trained --seeds 3

Each seed is a run in a folder of its own: 'elign show', 'elign report' and the same command again read them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import at_least, check_folder, say

if TYPE_CHECKING:
    from rich.console import Console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--data", choices=("digits", "mnist", "fashion-mnist"), default="digits", help="(default: digits)"
    )
    parser.add_argument("--data-dir", type=Path, help="where data sets are (default: $ELIGN_DATA or the cache folder)")
    parser.add_argument("--latent-dim", type=at_least(1), default=32, help="latent dimension (default: 32)")
    parser.add_argument(
        "--heads",
        choices=("paper", "trained"),
        default="paper",
        help="paper: the head of task 2 stays at its random start, as in the authors' code, which makes drift large; "
        "trained: both heads learn (default: paper)",
    )
    parser.add_argument("--seeds", type=at_least(1), default=5, metavar="N", help="run seeds 0 to N-1 (default: 5)")
    parser.add_argument("--iterations", type=at_least(1), help="training iterations of the energy model")
    parser.add_argument("--out", type=Path, help="folder of the runs (default: out/toy-DATA-DIM-HEADS)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="also write the table into this markdown file")


def run(args: argparse.Namespace, console: Console) -> None:
    """Run the seeds that are not finished, show their table and write the report."""
    from elign.lab.paper.two_tasks import TwoTaskExperiment, run_seeds, two_task_table
    from elign.lab.report.run_groups import read_runs
    from elign.lab.report.run_report import write_run_report
    from elign.lab.report.table import around_section, update_section

    words = [f"data={args.data}", f"model.latent_dim={args.latent_dim}", f"learner.heads={args.heads}"]
    words += [f"aligner.iterations={args.iterations}"] if args.iterations else []
    words += [f"data.data_dir={args.data_dir}"] if args.data_dir else []
    name = f"toy-{args.data}-{args.latent_dim}-{args.heads}" + (f"-{args.iterations}" if args.iterations else "")
    folder = args.out or Path("out") / name
    check_folder(folder, "seed-[0-9]*", "report.html")
    if args.results:
        around_section(args.results, name)
    typed = ["--data", args.data, "--latent-dim", str(args.latent_dim), "--heads", args.heads]
    typed += ["--iterations", str(args.iterations)] if args.iterations else []
    runs = run_seeds(TwoTaskExperiment.compose(words), range(args.seeds), folder, console, typed=typed)
    groups, problems = read_runs(runs)
    table = two_task_table(groups)
    assert table is not None  # noqa: S101  (all seeds are finished)
    if args.results:
        update_section(args.results, name, table.to_markdown())
    console.print(table.to_rich())
    report = write_run_report(groups, folder / "report.html", problems=problems)
    say(console, f"\nReport: {report}")
