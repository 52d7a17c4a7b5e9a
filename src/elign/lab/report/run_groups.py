"""Runs as a report sees them: found, read, grouped by everything but their seeds, and their tables.

No run is written to, so a report can be made while a run goes on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from elign.lab.config.schema import flatten
from elign.lab.evaluation.methods import MARK, METHODS, default_of, marked
from elign.lab.evaluation.methods.base import BASELINES, ORACLES
from elign.lab.evaluation.metrics import (
    CONFIDENCE,
    HEAD,
    METRICS,
    MetricNames,
    Row,
    Summary,
    accuracy_matrix,
    curve,
    gain_over,
    mean_std,
    mean_text,
    metric_names_of,
    paired_difference,
    seeds_text,
    summarise,
)
from elign.lab.registry import Registry
from elign.lab.report.table import MISSING, Cell, Column, Format, Table
from elign.lab.runs.experiment import benchmark_of, version_note
from elign.lab.runs.run_dir import RunDir, RunError, protocol_text, resume_command, run_text
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
        of = [{s.method: s for s in run.summaries if s.classifier in classifiers} for run in self.runs]
        return {name: [each[name] for each in of] for name in METHODS if all(name in each for each in of)}

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
    """Find the runs in these folders: a folder that is a run, else all runs below it without their evaluations."""
    found: dict[Path, RunDir] = {}
    for path in paths:
        files = [path / "run.json"] if (path / "run.json").is_file() else sorted(path.glob("**/run.json"))
        below = [file for file in files if "evaluations" not in file.relative_to(path).parts]
        if not below:
            raise RunError(f"there is no run in {path}; 'elign run' makes one, 'elign list' shows the runs of a folder")
        found |= {file.parent.resolve(): RunDir(file.parent) for file in below}
    return list(found.values())


def read_run(folder: RunDir) -> Run:
    """Read the results of a run; raise `ElignError` if the folder is not a run, or a file of it is damaged."""
    results = folder.gather()
    return Run(folder, folder.metadata(), results.rows, results.tasks)


def read_runs(folders: Sequence[RunDir]) -> tuple[list[RunGroup], list[str]]:
    """Read runs and group those that differ in their seed only; also return a sentence about each that is not shown.

    Raises:
        RunError: None of them can be shown.
    """
    groups: dict[str, list[Run]] = {}
    problems: list[str] = []
    for folder in folders:
        try:
            run = read_run(folder)
            # A single run is compared with no other: its settings need not be understood.
            key = _experiment(run) if len(folders) > 1 else ""
        except ElignError as error:
            problems.append(str(error))
            continue
        if run.tasks:
            groups.setdefault(key, []).append(run)
        else:
            command = resume_command(folder, run.metadata)
            problems.append(f"{folder.path} has no results yet; '{command}' goes on with it")
    if not groups:
        raise RunError("; ".join(problems) or "there are no runs; 'elign run' makes one")
    names = _names([runs[0] for runs in groups.values()])
    return list(map(_group, names, groups.values())), problems


def read_seeds(folders: Sequence[RunDir]) -> RunGroup:
    """Read runs that differ in their seed only and have finished equally many tasks.

    Raises:
        RunError: They differ in more, have equal seeds, or have no results yet.
    """
    _check_alike([folder.metadata() for folder in folders])
    runs = list(map(read_run, folders))
    for run in runs:
        if not run.rows:
            command = resume_command(run.folder, run.metadata)
            raise RunError(f"{run.folder.path} has no results yet; '{command}' resumes it")
    done = {len(run.tasks) for run in runs}
    if len(done) > 1:
        raise RunError(f"these runs have finished different numbers of tasks: {sorted(done)}")
    title = f"{run_text(runs[0].metadata)}, {done.pop()} of {len(runs[0].metadata['sizes'])} tasks"
    notes = filter(None, (version_note(run.folder, run.metadata, run.tasks) for run in runs))
    return RunGroup(title, tuple(runs), tuple(f"Note: {sentence}." for sentence in notes))


def _check_alike(runs: Sequence[dict[str, Any]]) -> None:
    """Refuse to average runs that differ in more than their seeds."""
    benchmarks = [benchmark_of(metadata) for metadata in runs]
    if len(set(benchmarks)) > 1:
        raise RunError("these are runs of different experiments: some classify images, others detect objects")
    configs = [benchmarks[0].from_dict(metadata["config"]) for metadata in runs]
    flat = [flatten(config.replace(seed=0)) for config in configs]
    different = {key for other in flat[1:] for key in flat[0] | other if flat[0].get(key) != other.get(key)}
    if different:
        raise RunError(f"these are runs of different experiments: they differ in {', '.join(sorted(different))}")
    seeds = [config.seed for config in configs]
    if len(set(seeds)) < len(seeds):
        raise RunError(f"these runs have equal seeds ({', '.join(map(str, seeds))}), so there is no deviation to show")


def _experiment(run: Run) -> str:
    """Return a text that is equal for runs that differ in their seed only."""
    config = benchmark_of(run.metadata).from_dict(run.metadata["config"]).replace(seed=0, out=None)
    return " ".join([config.digest(), *run.metadata.get("evaluation", [])])


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
    configs = [run.metadata["config"] for run in firsts]
    texts = [f"{each['learner']['name']} on {each['data']['name']}, {protocol_text(each)}" for each in configs]
    names = [", ".join([text, *run.metadata.get("evaluation", [])]) for text, run in zip(texts, firsts, strict=True)]
    settings = list(map(flat_config, configs))
    result = []
    for name, mine in zip(names, settings, strict=True):
        alike = [other for twin, other in zip(names, settings, strict=True) if twin == name]
        keys = [key for key in mine if key not in _NOT_TOLD_APART and any(o.get(key) != mine[key] for o in alike)]
        result.append(", ".join([name, *(f"{key}={mine[key]}" for key in keys)]))
    return result


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a configuration with the dotted keys of the command line."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        # A learner's own options are typed beside the others.
        own = prefix if key == "options" else f"{prefix}{key}."
        flat |= flat_config(value, own) if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _uses_eli(name: str) -> bool:
    return "eli" in name.split("/")


NEAREST_MEAN = ("nearest-mean",)

_PAGES_ONLY: tuple[Format, ...] = ("rich",)

COLUMNS: Mapping[str, Column] = {
    **{name: Column(name) for name in ("average", "last", "old", "new")},
    "among_old": Column("among old"),
    "forgetting": Column("forgetting"),
    "gate_accuracy": Column("gate"),
    "recovered": Column("recovered", leave_out=_PAGES_ONLY),
    "average_incremental": Column("without the first task", leave_out=("rich", "latex", "html")),
}
"""Metrics of the table of methods."""

GAIN = f"points of the average over base on the same checkpoints, with several seeds their {CONFIDENCE:.0%} interval"

TABLES: Registry[Callable[[Sequence[RunGroup]], Table | None]] = Registry(
    "elign.lab.report", "table of runs", search=False
)
"""Further tables of a report; each function returns None where it has nothing to show."""


def value_cell(values: Sequence[float]) -> Cell:
    """Return mean and deviation, sorted by the mean; a dash where there is no value."""
    return Cell(mean_text(values), statistics.fmean(values)) if values else Cell(MISSING)


def _gain(group: RunGroup, method: str | None, classifiers: Sequence[str] = HEAD) -> Cell:
    base, values = group.values("base", classifiers=classifiers), group.values(method, classifiers=classifiers)
    if method == "base" or not values or not base:
        return Cell(MISSING)
    mean, text = gain_over(values, base)
    return Cell(text, mean)


def methods_table(group: RunGroup, classifiers: Sequence[str] = HEAD, *, title: str = "All methods") -> Table:
    """Return every method with its metrics: the default first and marked, those that use test labels in grey."""
    small: tuple[Format, ...] = ("rich", "latex")
    _, *others = COLUMNS
    table = Table(
        title,
        [
            *(Column("method", "left"), COLUMNS["average"], Column("gain", leave_out=_PAGES_ONLY)),
            *(COLUMNS[metric] for metric in others),
            *(Column(title, "left", leave_out=small) for title in ("test labels", "what it is")),
        ],
        caption=f"{group.metric_names.measure} in %; {seeds_text(len(group.runs))}",
        footnotes=[label_note([group])],
    )
    for name in sorted(group.methods(classifiers), key=lambda name: name != group.default):
        method = METHODS[name]
        table.add(
            Cell(marked(name)),
            value_cell(group.values(name, "average", classifiers)),
            _gain(group, name, classifiers),
            *(value_cell(group.values(name, metric, classifiers)) for metric in others),
            f"uses test labels {MARK}" if method.uses_labels else "",
            method.text,
            group=method.group,
            style="mark" if name == group.default else "soft" if method.uses_labels else "",
        )
    return table


def metric_notes(groups: Sequence[RunGroup], *, formulas: bool = False) -> list[str]:
    """Return what the columns of `methods_table` mean, one sentence for each."""
    notes = [f"gain: {GAIN}"]
    for metric, column in COLUMNS.items():
        formula, text = METRICS[metric]
        notes.append(f"{column.title}: {formula}: {text}" if formulas else f"{column.title}: {text}")
    others = [measure for group in groups if (measure := group.metric_names.measure) != "accuracy"]
    return [*notes, *dict.fromkeys(f"accuracy of detectors: {measure}" for measure in others)]


def comparison_table(groups: Sequence[RunGroup]) -> Table:
    """Return one row for each group: base, the default, ELI with and without test labels, and the best baseline."""
    # A benchmark may not have the default.
    default = default_of({name for group in groups for name in group.methods()})
    defaults = any(group.values(default) for group in groups)
    table = Table(
        "Experiments compared",
        [
            Column("experiment", "left"),
            "seeds",
            "tasks",
            "base",
            *([f"{default} (default)", "gain"] if defaults else []),
            *(marked(ORACLE), "gain", marked(MASK)),
            *(
                "best label-free ELI",
                "gain",
                Column("which", "left"),
                "best label-free baseline",
                Column("which", "left"),
            ),
        ],
        caption=f"average {measure_of(groups)} over tasks in %, the first included; gain: {GAIN}",
        footnotes=[label_note(groups)],
    )
    for group in groups:
        free, baseline = group.best_eli(), group.best_baseline()
        done, planned = group.tasks, len(group.sizes)
        table.add(
            group.name,
            len(group.runs),
            Cell(str(done) if done == planned else f"{done} of {planned}", done),
            value_cell(group.values("base")),
            *([value_cell(group.values(default)), _gain(group, default)] if defaults else []),
            *(value_cell(group.values(ORACLE)), _gain(group, ORACLE), value_cell(group.values(MASK))),
            *(value_cell(group.values(free)), _gain(group, free), free, value_cell(group.values(baseline)), baseline),
        )
    return table


def durations_table(group: RunGroup) -> Table:
    """Return when and for how long each run worked."""
    parts = {"train": "training (s)", "extract": "latents (s)", "fit": "fitting (s)", "methods": "methods (s)"}
    table = Table(
        "Runs and their durations",
        [Column("run", "left"), "seed", Column("started", "left"), "tasks", *parts.values(), "all (s)"],
    )
    for run in group.runs:
        seconds = [float(sum(task["seconds"].get(part, 0.0) for task in run.tasks)) for part in parts]
        done = Cell(f"{len(run.tasks)} of {len(run.metadata['sizes'])}", len(run.tasks))
        table.add(str(run.folder.path), run.seed, run.metadata.get("started"), done, *seconds, sum(seconds))
    return table


def task_tables(group: RunGroup, classifiers: Sequence[str] = HEAD) -> Iterator[Table]:
    """Yield tables of every task: accuracy after each one, further metrics, accuracy matrices and drift."""
    names = group.metric_names
    curves = Table(f"{names.measure} after each task, in %", ["method", *map(str, range(1, group.tasks + 1))])
    metrics = ("average_incremental", "backward_transfer", "recovered")
    others = Table("; ".join(f"{name}: {METRICS[name][0]}" for name in metrics), ["method", *metrics])
    methods = list(group.summaries(classifiers))
    for name in methods:
        curves.add(name, *(value_cell(values) for values in zip(*group.curves(name, classifiers), strict=True)))
        others.add(name, *(value_cell(group.values(name, metric, classifiers)) for metric in metrics))
    yield curves
    yield others
    for name in ("base", ORACLE, "eli/all"):
        if name in methods:
            matrix = group.matrix(name, classifiers)
            columns = ["after task", *(f"of {number}" for number in range(1, len(matrix) + 1))]
            table = Table(f"{name}: {names.measure} on the {names.of_task} of each task, in %", columns)
            for number, line in enumerate(matrix, start=1):
                table.add(str(number), *line, *[""] * (len(matrix) - len(line)))
            yield table
    if drift := group.drift():
        title = "mean distance of latents of old test images from the previous model's, after each task"
        table = Table(title, ["aligner", *map(str, range(2, group.tasks + 1))])
        for name, runs in drift.items():
            means = (statistics.fmean(values) for values in zip(*runs, strict=True))
            table.add(name, *(Cell(f"{mean:.3g}", mean) for mean in means))
        yield table


COCO = ("AP", "AP50", "AP75")


def detection_tables(group: RunGroup) -> Iterator[Table]:
    """Yield tables of detectors, from the metadata of their tasks: classes, COCO's averages, unknown objects."""
    last = [run.tasks[-1] for run in group.runs]
    after = f"after task {group.tasks}, in %"
    if all("average_precision" in task for task in last):
        precisions = [task["average_precision"] for task in last]
        yield _class_table(group, f"Average precision of each class {after}", precisions)
    coco = [task.get("coco", {}) for task in last]
    if names := [name for name in METHODS if all(name in each for each in coco)]:
        by_class = [{name: each[name]["by_class"] for name in names} for each in coco]
        yield _class_table(group, f"COCO's AP of each class {after}", by_class)
        table = Table(f"COCO's AP, means over classes {after}", ["method", *COCO])
        for name in names:
            table.add(marked(name), *(value_cell([100 * each[name][part] for each in coco]) for part in COCO))
        yield table
    unknown = [[task for task in run.tasks if "unknown" in task] for run in group.runs]
    if found := list(zip(*unknown, strict=False)):
        kinds = list(found[0][0]["unknown"]["area_under_roc"])
        title = "How well objects of unknown classes are told from others: area under the ROC curve, in %"
        table = Table(title, ["after task", *kinds])
        for tasks in found:
            areas = [task["unknown"]["area_under_roc"] for task in tasks]
            number = Cell(str(tasks[0]["task"]), tasks[0]["task"])
            table.add(number, *(value_cell([100 * each[kind] for each in areas]) for kind in kinds))
        yield table


def _class_table(group: RunGroup, title: str, precisions: Sequence[Mapping[str, Sequence[float | None]]]) -> Table:
    wanted = dict.fromkeys(("base", ORACLE, "eli/by-prediction", group.best_eli()))
    methods = [name for name in wanted if name and all(name in each for each in precisions)]
    table = Table(title, [Column("class", "left"), "task", *map(marked, methods)])
    task_of = [number for number, size in enumerate(group.sizes, start=1) for _ in range(size)]
    names = group.runs[0].metadata["classes"][: len(precisions[0]["base"])]
    for label, name in enumerate(names):
        cells = []
        for method in methods:
            # A run without objects of this class in its test images has no value.
            values = [100 * value for each in precisions if (value := each[method][label]) is not None]
            cells.append(value_cell(values if len(values) == len(precisions) else []))
        table.add(str(name), task_of[label], *cells)
    return table


def further_tables(groups: Sequence[RunGroup]) -> dict[str, Table]:
    """Return the tables that other packages have registered, by their names."""
    return {name: table for name, make in TABLES.items() if (table := make(groups)) is not None}


def _all_tables(groups: Sequence[RunGroup]) -> list[Table]:
    compared = [comparison_table(groups)] if len(groups) > 1 else []
    methods = [methods_table(group, title=group.name) for group in groups]
    return [*compared, *further_tables(groups).values(), *methods]


def to_markdown(groups: Sequence[RunGroup]) -> str:
    """Return all tables, and the meaning of their columns at the end."""
    notes = "\n".join(f"- {note}" for note in metric_notes(groups))
    return "\n".join([*(table.to_markdown() for table in _all_tables(groups)), f"{notes}\n"])


def to_latex(groups: Sequence[RunGroup]) -> str:
    """Return all tables for the LaTeX package booktabs."""
    return "\n".join(["% needs \\usepackage{booktabs}", *(table.to_latex() for table in _all_tables(groups))])


def to_csv(groups: Sequence[RunGroup]) -> str:
    """Return one line for each group, method and classifier, in percent; means and deviations in separate columns."""
    metrics = [metric for metric in COLUMNS if metric != "average_incremental"]
    columns = [name for metric in metrics for name in (metric, f"{metric}_std")] + ["gain", "gain_low", "gain_high"]
    table = Table("", ["experiment", "method", "classifier", "uses_test_labels", "runs", "tasks", *columns])
    for group in groups:
        for classifiers in (HEAD, NEAREST_MEAN):
            for name, summaries in group.summaries(classifiers).items():
                found = [group.values(name, metric, classifiers) for metric in metrics]
                spreads = [mean_std(values) if values else None for values in found]
                numbers = [number for each in spreads for number in (each and each.mean, each and each.std)]
                base = group.values("base", classifiers=classifiers)
                gain = paired_difference(found[0], base) if found[0] and base else None
                interval = (gain.interval if gain else None) or (None, None)
                table.add(
                    *(group.name, name, summaries[0].classifier, "yes" if METHODS[name].uses_labels else "no"),
                    *(len(group.runs), group.tasks),
                    *("" if x is None else f"{x:.4f}" for x in (*numbers, gain and gain.mean, *interval)),
                )
    return table.to_csv()


FORMATS = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv}
"""The formats of `elign report --format`, besides HTML."""
