"""The tables of runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from elign.lab.evaluation.methods import MARK, METHODS, default_of, marked
from elign.lab.evaluation.metrics import (
    CONFIDENCE,
    HEAD,
    METRICS,
    gain_over,
    mean_std,
    mean_text,
    paired_difference,
    seeds_text,
)
from elign.lab.registry import Registry
from elign.lab.report.run_groups import MASK, ORACLE, RunGroup, label_note, measure_of
from elign.lab.report.table import MISSING, Cell, Column, Format, Table

NEAREST_MEAN = ("nearest-mean",)

_PAGES_ONLY: tuple[Format, ...] = ("rich",)

COLUMNS: Mapping[str, Column] = {
    "average": Column("average"),
    "last": Column("last"),
    "old": Column("old"),
    "new": Column("new"),
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
            *("best label-free ELI", "gain", Column("which", "left")),
            *("best label-free baseline", Column("which", "left")),
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
            *(value_cell(group.values(free)), _gain(group, free), free),
            *(value_cell(group.values(baseline)), baseline),
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
        table.add(
            *(str(run.folder.path), run.seed, run.metadata.get("started"), done),
            *(*seconds, sum(seconds)),
        )
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


def _export_tables(groups: Sequence[RunGroup]) -> list[Table]:
    compared = [comparison_table(groups)] if len(groups) > 1 else []
    methods = [methods_table(group, title=group.name) for group in groups]
    return [*compared, *further_tables(groups).values(), *methods]


def to_markdown(groups: Sequence[RunGroup]) -> str:
    """Return all tables, and the meaning of their columns at the end."""
    notes = "\n".join(f"- {note}" for note in metric_notes(groups))
    return "\n".join([*(table.to_markdown() for table in _export_tables(groups)), f"{notes}\n"])


def to_latex(groups: Sequence[RunGroup]) -> str:
    """Return all tables for the LaTeX package booktabs."""
    return "\n".join(["% needs \\usepackage{booktabs}", *(table.to_latex() for table in _export_tables(groups))])


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


FORMATS: Mapping[str, Callable[[Sequence[RunGroup]], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
"""The formats of `elign report --format`, besides HTML."""
