"""Runs as a report sees them: found, read, and grouped by everything but their seeds.

Nothing is written, so a report can be made while a run goes on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from elign.lab.evaluation.methods import MARK, METHODS, default_of
from elign.lab.evaluation.methods.base import BASELINES, ORACLES
from elign.lab.evaluation.metrics import (
    HEAD,
    MetricNames,
    Row,
    Summary,
    accuracy_matrix,
    curve,
    metric_names_of,
    summarise,
)
from elign.lab.runs.experiment import benchmark_of, version_note
from elign.lab.runs.run_dir import RunDir, RunError, protocol_text, resume_command
from elign.utils.errors import ElignError

ORACLE, MASK, PREVIOUS = "eli/oracle", "oracle-mask", "previous-model"
"""Methods with a place of their own in figures and sentences."""

_NOT_TOLD_APART = ("seed", "out", "start_from", "preset")


@dataclass(frozen=True, eq=False)
class Run:
    """The results of one run so far: its rows, and the metadata of the run and of each finished task."""

    folder: RunDir
    metadata: dict[str, Any]
    rows: list[Row]
    tasks: list[dict[str, Any]]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.metadata["config"]["seed"])

    @property
    def source(self) -> RunDir:
        """The run with the models and latents: an evaluation has those of the run above it."""
        return RunDir(self.folder.path.parents[1]) if "evaluation" in self.metadata else self.folder

    @cached_property
    def summaries(self) -> list[Summary]:
        """One for each method and classifier."""
        return summarise(self.rows)


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that differ in their seed only and have finished equally many tasks.

    Args:
        name: Short, and unique in a report.
        runs: At least one.
        remarks: Sentences about runs that are left out, or that another version has evaluated.
    """

    name: str
    runs: tuple[Run, ...]
    remarks: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the first run."""
        return dict(self.runs[0].metadata["config"])

    @property
    def default(self) -> str:
        """The label-free default among its methods."""
        return default_of(self.methods())

    @cached_property
    def metric_names(self) -> MetricNames:
        """What its numbers are called."""
        return metric_names_of({row.classifier for row in self.runs[0].rows})

    @property
    def sizes(self) -> list[int]:
        """How many classes each task brings, planned tasks included."""
        return [int(size) for size in self.runs[0].metadata["sizes"]]

    @property
    def tasks(self) -> int:
        """How many tasks are finished."""
        return len(self.runs[0].tasks)

    @property
    def seeds(self) -> list[int]:
        """The seed of each run."""
        return [run.seed for run in self.runs]

    def methods(self, classifiers: Sequence[str] = HEAD) -> list[str]:
        """Return the methods that at least one run has, in the order of the registry."""
        present = {s.method for run in self.runs for s in run.summaries if s.classifier in classifiers}
        return [name for name in METHODS if name in present]

    def summaries(self, classifiers: Sequence[str] = HEAD) -> dict[str, list[Summary]]:
        """Return one summary of each run, for the methods that all runs have, in the order of the registry."""
        found = {
            name: [s for run in self.runs for s in run.summaries if s.method == name and s.classifier in classifiers]
            for name in self.methods(classifiers)
        }
        return {name: each for name, each in found.items() if len(each) == len(self.runs)}

    def values(self, method: str | None, metric: str = "average", classifiers: Sequence[str] = HEAD) -> list[float]:
        """Return a metric of each run in percent; nothing unless every run has it."""
        values = [getattr(summary, metric) for summary in self.summaries(classifiers).get(method or "", [])]
        return [] if None in values else [100 * value for value in values]

    def best_eli(self) -> str | None:
        """Return the label-free use of ELI (to align samples or move prototypes) with the highest average, if any."""
        return self._best(name for name in METHODS if _uses_eli(name) and not METHODS[name].uses_labels)

    def best_baseline(self, *, uses_labels: bool = False) -> str | None:
        """Return the best of the simpler methods that ELI has to beat, given the same knowledge, if any."""
        group = ORACLES if uses_labels else BASELINES
        return self._best(name for name in METHODS if METHODS[name].group == group and not _uses_eli(name))

    def _best(self, methods: Iterable[str]) -> str | None:
        means = {name: statistics.fmean(values) for name in methods if (values := self.values(name))}
        return max(means, key=lambda name: means[name]) if means else None

    def curves(self, method: str, classifiers: Sequence[str] = HEAD) -> list[list[float]]:
        """Return the accuracy in percent after each task, one list for each run."""
        return [[100 * row.accuracy for row in rows] for rows in self._rows(method, classifiers)]

    def matrix(self, method: str, classifiers: Sequence[str] = HEAD) -> list[list[float]]:
        """Return the mean accuracy over runs on the classes of each task (inner) after each task (outer)."""
        matrices = [accuracy_matrix(rows) for rows in self._rows(method, classifiers)]
        return [
            [100 * statistics.fmean(cell) for cell in zip(*lines, strict=True)] for lines in zip(*matrices, strict=True)
        ]

    def drift(self) -> dict[str, list[list[float]]]:
        """Return the drift of each aligner: one list for each run, of the tasks after the first."""
        later = [[task["drift"] for task in run.tasks if task.get("drift")] for run in self.runs]
        names = later[0][0] if later[0] else {}
        return {name: [[task[name]["distance"] for task in run] for run in later] for name in names}

    def _rows(self, method: str, classifiers: Sequence[str]) -> list[list[Row]]:
        classifier = self.summaries(classifiers)[method][0].classifier
        return [curve(run.rows, method, classifier) for run in self.runs]


def measure_of(groups: Iterable[RunGroup]) -> str:
    """Return the name of the main number; both names, if the groups have different ones."""
    return " or ".join(dict.fromkeys(group.metric_names.measure for group in groups))


def label_note(groups: Iterable[RunGroup]) -> str:
    """Return what the mark of a method means."""
    told = " or ".join(dict.fromkeys(group.metric_names.told for group in groups))
    return f"{MARK} uses test labels: it knows {told}."


def find_runs(paths: Iterable[Path]) -> list[RunDir]:
    """Find the runs in these folders: a folder that is a run, else all runs below it without their evaluations.

    Raises:
        RunError: One of them contains no run.
    """
    found: dict[Path, RunDir] = {}
    for path in paths:
        files = [path / "run.json"] if (path / "run.json").is_file() else sorted(path.glob("**/run.json"))
        below = [file for file in files if "evaluations" not in file.relative_to(path).parts]
        if not below:
            raise RunError(f"there is no run in {path}; 'elign run' makes one, 'elign list' shows the runs of a folder")
        found |= {file.parent.resolve(): RunDir(file.parent) for file in below}
    return list(found.values())


def read_run(folder: RunDir) -> Run:
    """Read the results of a run.

    Raises:
        ElignError: The folder is not a run, or one of its files is damaged.
    """
    results = folder.gather()
    return Run(folder, folder.metadata(), results.rows, results.tasks)


def read_runs(folders: Sequence[RunDir]) -> tuple[list[RunGroup], list[str]]:
    """Read runs and group those that differ in their seed only; also return a sentence about each that is not shown.

    Raises:
        ElignError: None of them can be shown.
    """
    groups: dict[str, list[Run]] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            run = read_run(folder)
            config = benchmark_of(run.metadata).from_dict(run.metadata["config"]).replace(seed=0, out=None)
        except ElignError as error:
            problems.append(str(error))
            continue
        if run.tasks:
            key = " ".join([config.digest(), *run.metadata.get("evaluation", [])])
            groups.setdefault(key, []).append(run)
        else:
            problems.append(
                f"{folder.path} has no results yet; '{resume_command(folder, run.metadata)}' goes on with it"
            )
    if not groups:
        raise RunError("; ".join(problems) or "there are no runs; 'elign run' makes one")
    names = _names([runs[0] for runs in groups.values()])
    return [_group(name, runs) for name, runs in zip(names, groups.values(), strict=True)], problems


def _group(name: str, runs: Sequence[Run]) -> RunGroup:
    most = max(len(run.tasks) for run in runs)
    incomplete = [
        f"{run.folder.path} (seed {run.seed}) has finished {len(run.tasks)} of {len(run.metadata['sizes'])} tasks and "
        f"is left out of the averages, which are over runs with {most}"
        for run in runs
        if len(run.tasks) < most
    ]
    kept = sorted((run for run in runs if len(run.tasks) == most), key=lambda run: run.seed)
    others = [version_note(run.folder, run.metadata, run.tasks) for run in runs]
    return RunGroup(name, tuple(kept), (*incomplete, *filter(None, others)))


def _names(firsts: Sequence[Run]) -> list[str]:
    """Name groups by learner, data and protocol; where two agree in that, also by the settings they differ in."""
    names = [_short_name(run.metadata) for run in firsts]
    settings = [flat_config(run.metadata["config"]) for run in firsts]
    result = []
    for name, mine in zip(names, settings, strict=True):
        alike = [other for twin, other in zip(names, settings, strict=True) if twin == name]
        keys = [key for key in mine if key not in _NOT_TOLD_APART and any(o.get(key) != mine[key] for o in alike)]
        result.append(", ".join([name, *(f"{key}={mine[key]}" for key in keys)]))
    return result


def _short_name(metadata: Mapping[str, Any]) -> str:
    config = metadata["config"]
    what = f"{config['learner']['name']} on {config['data']['name']}"
    return ", ".join([what, protocol_text(config), *metadata.get("evaluation", [])])


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a configuration with the dotted keys of the command line."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            # A learner's own options are typed beside the others.
            flat |= flat_config(value, prefix if key == "options" else f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _uses_eli(name: str) -> bool:
    return "eli" in name.split("/")
