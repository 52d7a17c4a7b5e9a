"""Look at this machine: versions, missing packages, torchvision's operators, devices, threads, bf16.

Examples:
  elign doctor
  elign doctor --json > machine.json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from elign.lab.cli.main import say

if TYPE_CHECKING:
    from rich.console import Console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")


def run(args: argparse.Namespace, console: Console) -> None:
    """Print what was found."""
    from elign.lab.repairing.diagnosis import diagnose

    found = diagnose()
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for title, held in found.items():
        _show(console, title, held, "")


def _show(console: Console, name: str, held: Any, indent: str) -> None:
    """Print a value, and what is inside of it below it."""
    if not isinstance(held, dict):
        say(console, f"{indent}{name}: {_text(held)}")
        return
    say(console, f"{indent}{name}:{'' if held else ' none'}")
    for inner, value in held.items():
        _show(console, inner, value, f"{indent}  ")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return "not installed" if value is None else str(value) if not isinstance(value, bool) else "yes" if value else "no"
