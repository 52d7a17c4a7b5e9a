"""Repeat the smoke runs of rows.json (made by version 0.1) and compare every number.

    python tests/golden/check_rows.py [name ...]

Rows of methods that were added since are not compared. Numbers are equal to the last bit on the kind of processor that
made them; a vote of several classifiers may differ by the rounding of its scores, which is why differences are printed
rather than only counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = json.loads((Path(__file__).parent / "rows.json").read_text())


def rows_of(folder: Path) -> dict[tuple[object, ...], list[object]]:
    """Read the rows of a finished run, by task, method and classifier."""
    lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    # Version 0.1 called methods readings.
    names = ["method" if name == "reading" else name for name in GOLDEN["columns"]]
    rows = [[line[name] for name in names] for line in lines if line["kind"] == "row"]
    return {tuple(row[:3]): row for row in rows}


def check(name: str) -> int:
    """Repeat one run; return how many of its rows differ."""
    run = GOLDEN["runs"][name]
    # Version 0.1 had to be told precision and layout; these values are the defaults now.
    words = [word for word in run["command"].split()[1:] if not word.startswith(("train.precision=", "train.layout="))]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "elign.lab.cli", *words, f"out={folder}/run"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        found = rows_of(Path(folder) / "run")
    pairs = [(old, found.get(tuple(old[:3]), [])) for old in run["rows"]]
    different = [(old, new) for old, new in pairs if old != new]
    print(f"{name}: {len(pairs)} of {len(found)} rows compared, {len(different)} different", flush=True)
    for old, new in different:
        print("  was", old[:7], "\n  is ", new[:7])
    return len(different)


if __name__ == "__main__":
    names = sys.argv[1:] or list(GOLDEN["runs"])
    sys.exit(sum(check(name) for name in names) > 0)
