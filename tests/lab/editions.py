"""A run as another elign would have left it, for tests of what becomes of it."""

from __future__ import annotations

import dataclasses

from elign.lab.evaluation.results import read_results, write_results


def read_in_edition(folder, number, edition):
    """Make of a task's results what another edition of the readings could have left: other numbers."""
    found = read_results(folder.task(number) / "results.jsonl")
    rows = [dataclasses.replace(row, accuracy=0.0) for row in found.rows]
    write_results(folder.task(number), rows, {}, tasks=[{**found.tasks[0], "edition": edition}])
