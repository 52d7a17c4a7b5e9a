"""List the data sets, or download one and show what is in it.

Examples:
  elign data                            all data sets: found, can be downloaded, or missing, and where they belong
  elign data cifar100                   download CIFAR-100 if it is not there, then show its classes and sizes
  elign data folder --path pictures     a folder of your own: train/CLASS/*.jpg and test/CLASS/*.jpg, or CLASS/*.jpg
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import say

if TYPE_CHECKING:
    from rich.console import Console

    from elign.lab.data.base import Entry


_SHOWN = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the data set to show (default: list them all)")
    parser.add_argument("--data-dir", type=Path, help="where data sets are (default: $ELIGN_DATA or the cache folder)")
    parser.add_argument("--path", type=Path, help="the data set's own folder, if it is a folder of pictures")


def run(args: argparse.Namespace, console: Console) -> None:
    """List, or show one."""
    if args.name is None and args.path is None:
        _show_all(args.data_dir, console)
    else:
        # A path alone can only mean a folder of the user's own.
        _show_one(args.name or "folder", args.path, args.data_dir, console)


def _show_all(data_dir: Path | None, console: Console) -> None:
    from elign.lab.data.base import catalogue
    from elign.lab.data.base import data_dir as resolve_data_dir
    from elign.lab.report.table import Column, Table

    root = resolve_data_dir(data_dir)
    table = Table("", ["data set", Column("status", "left"), "classes", Column("where", "left")])
    for entry in catalogue(data_dir):
        table.add(entry.name, entry.status, entry.classes, _where(entry, root))
    console.print(table.to_rich())
    say(console, f"Data folder: {root} (--data-dir or ELIGN_DATA name another one)")
    say(console, "'elign data NAME' downloads what can be downloaded, or says what to put where.")


def _where(entry: Entry, root: Path) -> str:
    """Say where a data set is, relative to the data folder."""
    if entry.name == "folder":
        return "your own pictures: --path"
    if not entry.places:
        return "built in"
    return " or ".join(place.relative_to(root).as_posix() for place in entry.places)


def _show_one(name: str, path: Path | None, data_dir: Path | None, console: Console) -> None:
    from elign.lab.data.base import open_dataset
    from elign.lab.data.scenario import ORDER_SEED

    dataset = open_dataset(name, path=path, data_dir=data_dir, order_seed=ORDER_SEED)
    first = ", ".join(dataset.classes[:_SHOWN])
    more = ", ..." if len(dataset.classes) > _SHOWN else ""
    channels, height, width = dataset.image_shape
    lines = {
        "data set": dataset.name,
        "classes": str(len(dataset.classes)),
        "training images": f"{len(dataset.train.labels)} ({_per_class(dataset.train.labels.bincount().tolist())})",
        "test images": f"{len(dataset.test.labels)} ({_per_class(dataset.test.labels.bincount().tolist())})",
        "image shape": f"{channels} x {height} x {width} (channels, height, width)",
        f"order {ORDER_SEED}": f"{first}{more}",
    }
    for label, text in lines.items():
        say(console, f"{label + ':':<17}{text}")


def _per_class(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low} per class" if low == high else f"{low} to {high} per class"
