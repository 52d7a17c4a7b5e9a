"""`elign toy`: the two-task experiment of the paper's Section 3.3, with its report."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

HELP = "watch a model forget and remember: the paper's two-task experiment, with its controls and an HTML report"
EXAMPLES = """examples:
  elign toy                                            embedded digits, about a minute, no download
  elign toy --data mnist --latent-dim 32               the paper's experiment on MNIST
  elign toy --data mnist --latent-dim 512 --heads trained --seeds 3
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "--data", choices=("digits", "mnist", "fashion-mnist"), default="digits", help="data set (default: digits)"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where data sets are (default: $ELIGN_DATA, else the cache folder)"
    )
    parser.add_argument("--latent-dim", type=_positive, default=32, help="latent dimension (default: 32)")
    parser.add_argument(
        "--heads",
        choices=("paper", "trained"),
        default="paper",
        help="paper: the head of task 2 stays at its random start, as in the authors' code, which makes drift large; "
        "trained: both heads learn (default: paper)",
    )
    parser.add_argument("--seeds", type=_positive, default=5, metavar="N", help="run seeds 0 to N-1 (default: 5)")
    parser.add_argument("--iterations", type=_positive, help="training iterations of the energy model")
    parser.add_argument("--out", type=Path, help="folder of results (default: out/toy-DATA-DIM-HEADS)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="also write the table into this markdown file")


def run(args: argparse.Namespace, console: Console) -> None:
    """Train, fit, read, report."""
    # Imported here, so that `elign --help` does not wait for scikit-learn and matplotlib.
    from dataclasses import replace

    import torch

    from elign.lab.data import load_dataset
    from elign.lab.experiments.toy_config import default_config
    from elign.lab.experiments.toy_run import run_toy
    from elign.lab.pages import around_section, update_section
    from elign.lab.progress import live_progress
    from elign.lab.report.embedding import embed
    from elign.lab.report.picture import draw_toy_picture
    from elign.lab.report.summary import toy_summary
    from elign.lab.report.tables import toy_markdown, toy_table
    from elign.lab.report.toy_html import write_toy_report

    # The nets are tiny, and how sums are split over threads would change their rounding, hence the numbers.
    torch.set_num_threads(1)
    dim = args.latent_dim
    config = default_config(args.data, dim, args.heads)
    if args.iterations:
        config = replace(config, iterations=args.iterations)
    name = f"toy-{args.data}-{dim}-{args.heads}" + (f"-{args.iterations}" if args.iterations else "")
    folder = args.out or Path("out") / name
    command = f"elign toy --data {args.data} --latent-dim {dim} --heads {args.heads} --seeds {args.seeds}"
    command += f" --iterations {args.iterations}" if args.iterations else ""
    if args.results:
        around_section(args.results, name)
    data = load_dataset(args.data, data_dir=args.data_dir)
    with live_progress(console) as tell:
        result = run_toy(config, data, range(args.seeds), folder, command=command, tell=tell)
        tell("drawing the report", 0, 1)
        embedding = embed(result.picture)
        report = write_toy_report(result, folder / "report.html", embedding=embedding)
        draw_toy_picture(result, folder / "picture.png", embedding=embedding)
    if args.results:
        update_section(args.results, name, toy_markdown(result))
    console.print(toy_table(result))
    for sentence in toy_summary(result):
        console.print(sentence)
    console.print(f"\nReport: {report}", soft_wrap=True)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, not {text!r}")
    return int(text)
