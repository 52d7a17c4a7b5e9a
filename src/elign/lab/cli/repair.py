r"""Repair a model that forgot its old classes, from two checkpoints and pictures of the new classes.

Examples:
  elign repair --model timm:efficientnet_lite0 --previous old.safetensors --current new.safetensors \
    --new new_classes --statistics classes.safetensors --test test --out repaired
  elign repair --model nets/mine.py:make --previous old.pt --current new.pt --new new_classes \
    --exemplars few --out repaired

Pictures lie in a folder for each class. path/to/file.py:function runs that file: it must be your own. Weights are
never unpickled. The same command again uses the latents in OUT/cache.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elign.lab.cli.main import say
from elign.lab.cli.remember import add_model_options, error_console, quiet_stdout

if TYPE_CHECKING:
    from rich.console import Console

BAD_INPUT = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_options(parser)
    weights = "safetensors, or a checkpoint with tensors only"
    parser.add_argument("--previous", type=Path, required=True, metavar="FILE", help=f"weights from before: {weights}")
    parser.add_argument("--current", type=Path, required=True, metavar="FILE", help="weights after the new classes")
    parser.add_argument(
        "--new", type=Path, required=True, metavar="FOLDER", help="training pictures of the new classes"
    )
    parser.add_argument("--statistics", type=Path, metavar="FILE", help="of the old classes, by 'elign remember'")
    parser.add_argument("--exemplars", type=Path, metavar="FOLDER", help="some pictures of the old classes")
    parser.add_argument("--test", type=Path, metavar="FOLDER", help="pictures of old and new classes to measure on")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the results go")
    parser.add_argument("--force", action="store_true", help="repair even where the estimate says that nothing is won")


def run(args: argparse.Namespace, console: Console) -> None:
    """Repair, write everything, and print the report."""
    from elign.lab.repairing.repair_job import RepairRequest, check_out, run_repair, write_outputs, write_report
    from elign.lab.repairing.repair_page import write_page

    shared = ("out", "model", "head", "labels", "input_size", "device", "batch_size", "workers")
    own = ("previous", "statistics", "exemplars", "test", "force")
    values = {name: getattr(args, name) for name in (*shared, *own)}
    request = RepairRequest(data=args.new, weights=args.current, **values)
    check_out(request)
    with quiet_stdout(args.json):
        done = run_repair(request, error_console())
        done = write_outputs(done)
        content = write_report(done)
        write_page(content, done)
    if args.json:
        print(json.dumps(content, indent=1))
        return
    say(console, f"head: {content['model']['head']} ({content['model']['dim']} numbers for each picture)")
    say(console, f"\n{content['verdict']}\n")
    for line in _table(content):
        say(console, line)
    for note in content["notes"]:
        say(console, f"note: {note}")
    say(console, "")
    for name in content["files"]:
        say(console, f"{args.out / name}")


def _table(content: dict[str, Any]) -> list[str]:
    accuracy = content["accuracy"]
    rows = {
        "this repair": accuracy["after"],
        "nothing (the head alone)": accuracy["before"],
        **accuracy["alternatives"],
    }
    shown = {name: row for name, row in rows.items() if row}
    if not shown:
        return []
    head = f"{'accuracy, % (' + content['measured_on'] + ')':<40}{'all':>7}{'old':>7}{'new':>7}"
    lines = [
        f"{name:<40}{100 * row['balanced']:>7.1f}{100 * row['old']:>7.1f}{100 * row['new']:>7.1f}"
        for name, row in shown.items()
    ]
    return [head, *lines, f"drift of new latents: {content['drift']:.2f} of their spread", ""]
