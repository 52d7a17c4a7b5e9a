"""Entry point of the `elign` script: says what to install where only the core of the package is."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line."""
    try:
        from elign.lab.cli import main as run
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        print(f"elign: the command needs the extra 'lab' ({missing} is missing): pip install '.[lab]'", file=sys.stderr)
        return 1
    return run()
