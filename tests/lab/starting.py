"""Runs from what a user would type, and as another elign would have left them, for tests."""

from __future__ import annotations

import dataclasses

from rich.console import Console

from elign.lab.config import compose, describe
from elign.lab.runs.experiment import BENCHMARKS, benchmark_of
from elign.lab.runs.launch import reevaluate_run, start_run
from elign.lab.runs.run_dir import Results, read_results

QUIET = Console(quiet=True)
METADATA = {
    "benchmark": "classification",
    "config": describe(compose(["data=digits", "preset=smoke"])),
    "sizes": [5, 5],
    "classes": list("0123456789"),
    "precision": "32",
    "channels_last": False,
}
"""The least that the `run.json` of a run holds."""


def start(words, console=QUIET, *, benchmark="classification", **options):
    """Start or resume the run that these settings describe."""
    return start_run(BENCHMARKS[benchmark].compose(list(words)), console, overrides=list(words), **options)


def reevaluate(run, words, console=QUIET, *, name=None):
    """Evaluate a run with other settings of the aligner."""
    metadata = run.metadata()
    benchmark = benchmark_of(metadata)
    config = benchmark.with_aligner(benchmark.from_dict(metadata["config"]), list(words))
    return reevaluate_run(run, config, console, name=name)


def rows(folder):
    """Return what the file of the whole run says."""
    return read_results(folder.path / "results.jsonl").rows


def evaluate_in_version(folder, number, version):
    """Replace a task's results by those of another version of the methods: other numbers."""
    found = folder.results(number)
    rows = [dataclasses.replace(row, accuracy=0.0) for row in found.rows]
    folder.write_task_results(number, Results({}, rows, [{**found.tasks[0], "evaluation_version": version}]))
