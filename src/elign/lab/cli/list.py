"""List the runs in a folder: what they are, how far they are, what they reached; without a folder, all methods, too.

Examples:
  elign list                the runs in out, and every method with what it does
  elign list out/sweep      the runs in another folder
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
    parser.add_argument("folder", type=Path, nargs="?", help="where runs are (default: out, and list the methods)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Print a table of runs, and one of methods unless a folder was given."""
    from elign.lab.evaluation.methods import DEFAULT, METHODS, marked
    from elign.lab.evaluation.metrics import HEAD, summarise
    from elign.lab.report.table import Column, Table
    from elign.lab.runs.run_dir import RunDir, protocol_text
    from elign.utils.errors import ElignError

    root = args.folder or Path("out")
    if args.folder and not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}; runs are in 'out' unless out=DIR said otherwise")
    shown = ("base", DEFAULT, "eli/oracle")
    note = (
        "Average accuracy (of detectors: mean average precision) over tasks in %, the first included. "
        f"{DEFAULT}: the label-free default. † knows which test samples are old."
    )
    table = Table("", ["run", Column("what", "left"), "tasks", "base", DEFAULT, "eli/oracle †"], footnotes=[note])
    problems, versions = [], dict[str, set[int]]()
    for file in sorted(root.glob("**/run.json")):
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
            str(file.parent.relative_to(root)),
            f"{config['learner']['name']}, {config['data']['name']}, {protocol_text(config)}, seed {config['seed']}",
            f"{len(results.tasks)}/{len(metadata['sizes'])}",
            *(100 * average[name] if name in average else None for name in shown),
        )
    if table.rows:
        console.print(table.to_rich())
    elif not problems:
        say(console, f"no runs in {root}; 'elign run' makes one")
    if any(len(found) > 1 for found in versions.values()):
        say(console, "These runs were evaluated by different versions; 'elign show RUN' says which ones compare.")
    for problem in problems:
        say(console, problem)
    if args.folder is None:
        table = Table("Methods", ["method", Column("what it is", "left")], footnotes=["† uses test labels"])
        for name, method in METHODS.items():
            table.add(marked(name), method.text, group=method.group, style="soft" if method.uses_labels else "")
        console.print(table.to_rich())
