"""What ELI and all methods cost beside the training of the base learner, from the clock of finished runs.

    python benchmarks/share.py RUN [RUN ...]

Prints a table with one row for each task after the first: seconds of training, and as shares of them the extraction of
all latents (of test images too, which any evaluation needs), the fits of all aligners (ELI twice: backward and forward)
and all methods.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from elign.lab.runs.run_dir import JSON_NAME, read_results


def main() -> None:
    """Print one row for each task of each run, and one for their sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    rows = []
    for run in parser.parse_args().runs:
        tasks = read_results(run / JSON_NAME).tasks
        rows += [(f"{run.name}, task {task['task']}", task["seconds"]) for task in tasks if task["task"] > 1]
    parts = ("train", "extract", "fit", "methods")
    rows.append(("all", {part: sum(seconds[part] for _, seconds in rows) for part in parts}))
    print("| task | training, s | extraction | fits | methods | fits and methods |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, seconds in rows:
        train, extract, fit, methods = (seconds[part] for part in parts)
        shares = [value / train for value in (extract, fit, methods, fit + methods)]
        print(f"| {name} | {train:.0f} | {' | '.join(f'{share:.1%}' for share in shares)} |")


if __name__ == "__main__":
    main()
