"""`elign list`: the runs in a folder, and how far they are."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

HELP = "list the runs in a folder: what they are, how far they are, what they reached"
EXAMPLES = """examples:
  elign list
  elign list out
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("folder", type=Path, nargs="?", default=Path("out"), help="where to look (default: out)")


def run(args: argparse.Namespace, console: Console) -> None:
    """Print a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from elign.lab.commands.show import edition_notes
    from elign.lab.evaluation.catalogue import DEFAULT
    from elign.lab.evaluation.metrics import summarise
    from elign.lab.evaluation.table import HEAD
    from elign.lab.experiments.run_folder import RunFolder
    from elign.lab.experiments.words import learner_words, protocol_words
    from elign.utils.errors import ElignError

    if not args.folder.is_dir():
        raise FileNotFoundError(f"there is no folder {args.folder}; runs are in 'out' unless out=DIR said otherwise")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    # Whole names, on several lines where need be: they are what other commands are told.
    table.add_column("run", overflow="fold")
    table.add_column("what", overflow="fold")
    for heading in ("tasks", "base", DEFAULT, "eli/oracle †"):
        table.add_column(heading, no_wrap=True)
    remarks = []
    for file in sorted(args.folder.glob("**/run.json")):
        folder = RunFolder(file.parent)
        try:
            facts = folder.facts()
            results = folder.gather()
            average = {s.reading: s.average for s in summarise(results.rows) if s.classifier in HEAD}
        except ElignError as error:
            remarks.append(str(error))
            continue
        remarks += edition_notes([folder])
        config = facts["config"]
        table.add_row(
            Text(str(file.parent.relative_to(args.folder))),
            f"{learner_words(config)}, {config['data']['name']}, {protocol_words(config)}, seed {config['seed']}",
            f"{len(results.tasks)}/{len(facts['sizes'])}",
            *(f"{100 * average[name]:.1f}" if name in average else "–" for name in ("base", DEFAULT, "eli/oracle")),
        )
    if not table.row_count and not remarks:
        console.print(f"no runs in {args.folder}; 'elign run' makes one", soft_wrap=True, markup=False)
        return
    console.print(table)
    console.print(
        "average accuracy (of detectors: mean average precision) over tasks in %, the first included; "
        f"{DEFAULT}: the label-free default; † knows which test samples are old"
    )
    for line in remarks:
        console.print(line, soft_wrap=True, markup=False)
