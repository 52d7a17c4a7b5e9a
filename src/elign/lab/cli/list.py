"""`elign list`: the runs in a folder, and how far they are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.common import say

if TYPE_CHECKING:
    from rich.console import Console

HELP = "list the runs in a folder: what they are, how far they are, what they reached"
EXAMPLES = """examples:
  elign list
  elign list out
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", type=Path, nargs="?", default=Path("out"), help="where to look (default: out)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Print a table."""
    from elign.lab.evaluation.methods import DEFAULT
    from elign.lab.evaluation.metrics import HEAD, summarise
    from elign.lab.report.table import Column, Table
    from elign.lab.runs.describe import protocol_text
    from elign.lab.runs.run_dir import RunDir
    from elign.utils.errors import ElignError

    if not args.folder.is_dir():
        raise FileNotFoundError(f"there is no folder {args.folder}; runs are in 'out' unless out=DIR said otherwise")
    shown = ("base", DEFAULT, "eli/oracle")
    columns: list[Column | str] = ["run", Column("what", "left"), "tasks", "base", DEFAULT, "eli/oracle †"]
    note = (
        "Average accuracy (of detectors: mean average precision) over tasks in %, the first included. "
        f"{DEFAULT}: the label-free default. † knows which test samples are old."
    )
    table, problems = Table("", columns, footnotes=[note]), []
    versions: dict[str, set[int]] = {}
    for file in sorted(args.folder.glob("**/run.json")):
        folder = RunDir(file.parent)
        try:
            metadata, results = folder.metadata(), folder.gather()
        except ElignError as error:
            problems.append(str(error))
            continue
        average = {each.method: each.average for each in summarise(results.rows) if each.classifier in HEAD}
        versions.setdefault(metadata["benchmark"], set()).update(task["evaluation_version"] for task in results.tasks)
        config = metadata["config"]
        table.add(
            str(file.parent.relative_to(args.folder)),
            f"{config['learner']['name']}, {config['data']['name']}, {protocol_text(config)}, seed {config['seed']}",
            f"{len(results.tasks)}/{len(metadata['sizes'])}",
            *(100 * average[name] if name in average else None for name in shown),
        )
    if table.rows:
        console.print(table.to_rich())
    elif not problems:
        say(console, f"no runs in {args.folder}; 'elign run' makes one")
    if any(len(found) > 1 for found in versions.values()):
        say(console, "These runs were evaluated by different versions; 'elign show RUN' says which ones compare.")
    for problem in problems:
        say(console, problem)
