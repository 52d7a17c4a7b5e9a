"""Keep what a later repair needs to know of the classes in a folder of pictures: statistics, no picture.

Examples:
  elign remember --model timm:efficientnet_lite0 --weights old.safetensors --data old_classes --out classes.safetensors
  elign remember --model nets/mine.py:make --weights old.pt --input-size 96 --data old_classes --out classes.safetensors

path/to/file.py:function runs that file: it must be your own. Weights are never unpickled.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import at_least, say

if TYPE_CHECKING:
    from rich.console import Console

BAD_INPUT = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_options(parser)
    parser.add_argument("--weights", type=Path, required=True, help="safetensors, or a checkpoint with tensors only")
    parser.add_argument("--data", type=Path, required=True, help="a folder with a folder of pictures for each class")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what `elign repair` asks for, too."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="SPEC",
        help="torchvision:NAME, timm:NAME, transformers:FOLDER, or path/to/file.py:function, which runs that file",
    )
    parser.add_argument("--head", help="name of the head (default: the last linear layer)")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="JSON list of class names in the order of outputs")
    parser.add_argument("--input-size", type=at_least(1), metavar="N", help="side of the input (default: the model's)")
    parser.add_argument("--device", help="where models run (default: cuda if there is one, else cpu)")
    parser.add_argument(
        "--batch-size", type=at_least(1), default=64, metavar="N", help="pictures at a time (default: 64)"
    )
    parser.add_argument(
        "--workers",
        type=at_least(0),
        default=0,
        metavar="N",
        help="processes that read pictures (default: 0, in this one)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else, on stdout")


def error_console() -> Console:
    """Return the console of progress and remarks: standard error, so that stdout holds results only."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def quiet_stdout(wanted: bool) -> Iterator[None]:
    """Send what a model prints to standard error, so that JSON stays alone."""
    with redirect_stdout(sys.stderr) if wanted else nullcontext():
        yield


def run(args: argparse.Namespace, console: Console) -> None:
    """Write the statistics and say what is in them."""
    from elign.lab.repairing.repair_job import RememberRequest, remember

    names = ("data", "weights", "out", "model", "head", "labels", "input_size", "device", "batch_size", "workers")
    with quiet_stdout(args.json):
        found = remember(RememberRequest(**{name: getattr(args, name) for name in names}), error_console())
    if args.json:
        print(json.dumps(found, indent=1))
        return
    skipped = f", {found['skipped']} skipped" if found["skipped"] else ""
    say(console, f"head: {found['head']} ({found['dim']} numbers for each picture)")
    say(console, f"{len(found['classes'])} classes, {found['pictures']} pictures{skipped}")
    say(console, f"the model classifies {found['accuracy']:.1%} of them correctly")
    for note in found["notes"]:
        say(console, f"note: {note}")
    say(console, f"{found['file']}: {found['bytes'] / 1e6:.2f} MB")
