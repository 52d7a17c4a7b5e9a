"""Make one self-contained HTML page of runs, seeds averaged and experiments compared; or tables and figures.

Examples:
  elign report                                          all runs below out/, to out/report.html
  elign report out/seed0 out/seed1 --out page.html      two seeds of one experiment, averaged
  elign report out/icarl out/lucir                      two experiments, compared
  elign report out/my-run out/my-run/evaluations/linear a run beside another evaluation of it
  elign report out/my-run --format latex                tables to the terminal: markdown, latex or csv
  elign report out/my-run --figures figures             PNG, PDF and SVG of the main figures
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import check_folder, say

if TYPE_CHECKING:
    from rich.console import Console

RUNS = Path("out")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "runs", type=Path, nargs="*", metavar="RUN", help=f"folders of one or several runs (default: {RUNS})"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: report.html with the runs)"
    )
    parser.add_argument(
        "--format",
        choices=("html", "markdown", "latex", "csv"),
        default="html",
        help="html: the page; others: tables, to the terminal unless --out is given (default: html)",
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also draw figures into this folder")


def run(args: argparse.Namespace, console: Console) -> None:
    """Read the runs, and write what was asked for."""
    from rich.console import Console

    import elign.lab.paper.comparison  # noqa: F401  (adds the table of printed numbers)
    from elign.lab.report.run_groups import find_runs, read_runs
    from elign.utils.files import write_text_atomic

    if args.figures:
        check_folder(args.figures, "*.png", "*.pdf", "*.svg")
    folders = find_runs(args.runs or [RUNS])
    experiments, problems = read_runs(folders)
    # Not among what is written to the terminal, which may go into a file.
    notes = Console(stderr=True, highlight=False)
    for text in [*problems, *(sentence for each in experiments for sentence in each.remarks)]:
        say(notes, text)
    if args.format == "html":
        from elign.lab.report.run_report import write_run_report

        with notes.status("drawing the report") as status:
            path = write_run_report(experiments, args.out or _default(args.runs), problems=problems, tell=status.update)
        say(console, f"Report: {path}")
    else:
        from elign.lab.report.run_groups import FORMATS

        text = FORMATS[args.format](experiments)
        if args.out:
            write_text_atomic(args.out, text)
            say(console, f"Tables: {args.out}")
        else:
            # Plain: a table for a file must not be wrapped to the width of the terminal.
            console.file.write(text)
    if args.figures:
        from elign.lab.report.static_figures import draw_figures

        for path in draw_figures(experiments, args.figures):
            say(notes, f"Figure: {path}")


def _default(runs: list[Path]) -> Path:
    """Return a file beside the runs: in the folder of a single one, else in the folder above the first."""
    if not runs:
        return RUNS / "report.html"
    return (runs[0] if len(runs) == 1 else runs[0].parent) / "report.html"
