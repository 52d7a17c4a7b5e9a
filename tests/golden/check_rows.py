"""Repeat the smoke runs of rows.json (made by version 0.1) and compare every number.

    python tests/golden/check_rows.py [name ...]

Numbers are equal to the last bit on the kind of processor that made them; a vote of several classifiers may differ by
the rounding of its scores, which is why differences are printed rather than only counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = json.loads((Path(__file__).parent / "rows.json").read_text())


def rows_of(folder: Path) -> list[list[object]]:
    """Read the rows of a finished run."""
    lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return [[line[name] for name in GOLDEN["columns"]] for line in lines if line["kind"] == "row"]


def check(name: str) -> int:
    """Repeat one run; return how many of its rows differ."""
    run = GOLDEN["runs"][name]
    words = run["command"].split()[1:]
    with tempfile.TemporaryDirectory() as folder:
        code = "import sys; from elign.lab.start import main; sys.exit(main())"
        command = [sys.executable, "-c", code, *words, f"out={folder}/run"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        found = rows_of(Path(folder) / "run")
    different = [(old, new) for old, new in zip(run["rows"], found, strict=True) if old != new]
    print(f"{name}: {len(found)} rows, {len(different)} different", flush=True)
    for old, new in different:
        print("  was", old[:7], "\n  is ", new[:7])
    return len(different)


if __name__ == "__main__":
    names = sys.argv[1:] or list(GOLDEN["runs"])
    sys.exit(sum(check(name) for name in names) > 0)
