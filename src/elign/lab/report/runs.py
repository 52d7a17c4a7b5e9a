"""Finished and half-finished runs as a report sees them: found, read, and grouped into experiments by their seeds.

Reads the files of runs and writes none of them, so that a report can be made while a run goes on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.metrics import Summary, accuracy_matrix, curve, summarise
from elign.lab.evaluation.scoring import Row
from elign.lab.evaluation.table import HEAD
from elign.lab.evaluation.terms import CLASSIFIED, DETECTED, Terms
from elign.lab.experiments.editions import other_edition
from elign.lab.experiments.kinds import DETECTION, kind_of
from elign.lab.experiments.run_folder import RunError, RunFolder, go_on_command
from elign.lab.experiments.words import protocol_words
from elign.utils.errors import ElignError

_NOT_TOLD_APART = ("seed", "out", "start_from", "preset")


@dataclass(frozen=True, eq=False)
class Run:
    """What one run left behind so far.

    Args:
        folder: Where it is.
        facts: What was asked for, versions, machine.
        rows: One for each finished task, reading and classifier.
        tasks: Durations and drift of each finished task.
    """

    folder: RunFolder
    facts: dict[str, Any]
    rows: list[Row]
    tasks: list[dict[str, Any]]

    @property
    def seed(self) -> int:
        """Of everything random in it."""
        return int(self.facts["config"]["seed"])

    @property
    def source(self) -> RunFolder:
        """Where its models and latents are: an evaluation has those of the run above it."""
        return RunFolder(self.folder.path.parents[1]) if "evaluation" in self.facts else self.folder

    @cached_property
    def summaries(self) -> list[Summary]:
        """One for each reading and classifier."""
        return summarise(self.rows)


@dataclass(frozen=True, eq=False)
class Experiment:
    """Runs that differ in their seed alone and have finished equally many tasks.

    Args:
        name: Short, and different from that of all other experiments of the report.
        runs: At least one.
        remarks: One sentence about each of its runs that is less far, and not averaged, or was read by another elign.
    """

    name: str
    runs: tuple[Run, ...]
    remarks: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of its first run."""
        return dict(self.runs[0].facts["config"])

    @property
    def detects(self) -> bool:
        """Whether these are runs of detectors."""
        return self.runs[0].facts.get("kind") == DETECTION

    @property
    def terms(self) -> Terms:
        """What its numbers are called."""
        return DETECTED if self.detects else CLASSIFIED

    @property
    def sizes(self) -> list[int]:
        """How many classes each task brings, planned ones included."""
        return [int(size) for size in self.runs[0].facts["sizes"]]

    @property
    def tasks(self) -> int:
        """How many tasks are finished."""
        return len(self.runs[0].tasks)

    @property
    def seeds(self) -> list[int]:
        """The seed of each run."""
        return [run.seed for run in self.runs]

    def summaries(self, classifiers: Sequence[str] = HEAD) -> dict[str, list[Summary]]:
        """One summary of each run, for the readings that all runs have, in the order of the catalogue."""
        found: dict[str, list[Summary]] = {name: [] for name in READINGS}
        for run in self.runs:
            for summary in run.summaries:
                if summary.classifier in classifiers and summary.reading in found:
                    found[summary.reading].append(summary)
        return {name: each for name, each in found.items() if len(each) == len(self.runs)}

    def values(self, reading: str, metric: str = "average", classifiers: Sequence[str] = HEAD) -> list[float] | None:
        """A metric of each run in percent; None unless every run has it."""
        values = [getattr(summary, metric) for summary in self.summaries(classifiers).get(reading, [])]
        return None if not values or None in values else [100 * value for value in values]

    def curves(self, reading: str) -> list[list[float]]:
        """Accuracy, or what it is here, in percent after each task, one list for each run."""
        return [[100 * row.accuracy for row in self._rows(run, reading)] for run in self.runs]

    def matrix(self, reading: str) -> list[list[float]]:
        """Mean over the runs of the same on what each task brought (inner) after each task (outer)."""
        matrices = [accuracy_matrix(self._rows(run, reading)) for run in self.runs]
        return [
            [100 * statistics.fmean(cell) for cell in zip(*lines, strict=True)] for lines in zip(*matrices, strict=True)
        ]

    def drift(self, fact: str = "distance") -> dict[str, list[list[float]]]:
        """A fact of the drift for each aligner: one list for each run, of the tasks after the first."""
        later = [[task["drift"] for task in run.tasks if task.get("drift")] for run in self.runs]
        names = later[0][0] if later[0] else {}
        return {name: [[task[name][fact] for task in run] for run in later] for name in names}

    def _rows(self, run: Run, reading: str) -> list[Row]:
        return curve(run.rows, reading, self.summaries()[reading][0].classifier)


def measure_of(experiments: Iterable[Experiment]) -> str:
    """What the main number of these experiments is called; both names, if it is not the same one."""
    return " or ".join(dict.fromkeys(each.terms.measure for each in experiments))


def find_runs(paths: Iterable[Path]) -> list[RunFolder]:
    """The runs in these folders: a folder that is a run, else all runs below it (evaluations of runs aside).

    Raises:
        RunError: There is no run in one of them.
    """
    found: dict[Path, RunFolder] = {}
    for path in paths:
        files = [path / "run.json"] if (path / "run.json").is_file() else sorted(path.glob("**/run.json"))
        below = [file for file in files if "evaluations" not in file.relative_to(path).parts]
        if not below:
            raise RunError(f"there is no run in {path}; 'elign run' makes one, 'elign list' shows the runs of a folder")
        found |= {file.parent.resolve(): RunFolder(file.parent) for file in below}
    return list(found.values())


def read_run(folder: RunFolder) -> Run:
    """What a run left behind so far.

    Raises:
        ElignError: The folder is no run, or one of its files is damaged.
    """
    facts = folder.facts()
    rows: list[Row] = []
    tasks: list[dict[str, Any]] = []
    while (results := folder.results(len(tasks))) is not None and results.tasks:
        rows += results.rows
        tasks += results.tasks
    return Run(folder, facts, rows, tasks)


def read_runs(folders: Sequence[RunFolder]) -> tuple[list[Experiment], list[str]]:
    """Read runs and group them.

    Args:
        folders: Of the runs.

    Returns:
        The experiments in the order of their first runs, and a sentence about each run that cannot be shown.

    Raises:
        ElignError: None of them can be shown.
    """
    groups: dict[str, list[Run]] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            run = read_run(folder)
            config = replace(kind_of(run.facts).from_dict(run.facts["config"]), seed=0, out=None)
        except ElignError as error:
            problems.append(str(error))
            continue
        if run.tasks:
            key = " ".join([config.digest(), *run.facts.get("evaluation", [])])
            groups.setdefault(key, []).append(run)
        else:
            problems.append(f"{folder.path} has no results yet; '{go_on_command(folder, run.facts)}' goes on with it")
    if not groups:
        raise RunError("; ".join(problems) or "there are no runs; 'elign run' makes one")
    names = _names([runs[0] for runs in groups.values()])
    return [_experiment(name, runs) for name, runs in zip(names, groups.values(), strict=True)], problems


def _experiment(name: str, runs: Sequence[Run]) -> Experiment:
    most = max(len(run.tasks) for run in runs)
    left_out = [
        f"{run.folder.path} (seed {run.seed}) has finished {len(run.tasks)} of {len(run.facts['sizes'])} tasks and is "
        f"left out of the averages, which are over runs with {most}"
        for run in runs
        if len(run.tasks) < most
    ]
    kept = sorted((run for run in runs if len(run.tasks) == most), key=lambda run: run.seed)
    others = [other_edition(run.folder, run.facts, run.tasks) for run in runs]
    return Experiment(name, tuple(kept), (*left_out, *filter(None, others)))


def _names(firsts: Sequence[Run]) -> list[str]:
    """Learner, data and protocol; where that is the same for two experiments, also the settings they differ in."""
    names = [_short_name(run.facts) for run in firsts]
    settings = [flat_config(run.facts["config"]) for run in firsts]
    result = []
    for name, mine in zip(names, settings, strict=True):
        alike = [other for twin, other in zip(names, settings, strict=True) if twin == name]
        keys = [key for key in mine if key not in _NOT_TOLD_APART and any(o.get(key) != mine[key] for o in alike)]
        result.append(", ".join([name, *(f"{key}={mine[key]}" for key in keys)]))
    return result


def _short_name(facts: Mapping[str, Any]) -> str:
    config = facts["config"]
    protocol = protocol_words(config)
    return ", ".join(
        [f"{config['learner']['name']} on {config['data']['name']}", protocol, *facts.get("evaluation", [])]
    )


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration with dotted keys, as one types them."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        # A learner's own options are typed beside the others.
        name = prefix if key == "options" else f"{prefix}{key}"
        flat |= (
            flat_config(value, name if key == "options" else f"{name}.") if isinstance(value, dict) else {name: value}
        )
    return flat
