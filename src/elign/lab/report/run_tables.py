"""Tables of runs: all readings of an experiment, experiments beside each other, durations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from elign.lab.evaluation.catalogue import DEFAULT, READINGS
from elign.lab.evaluation.metrics import METRICS
from elign.lab.evaluation.table import COLUMNS as TERMINAL
from elign.lab.evaluation.table import HEAD
from elign.lab.report.page import Cell, Grid
from elign.lab.report.run_readings import FREE_CONTROLS, FREE_ELI, MARK, MASK, ORACLE, best, marked
from elign.lab.report.runs import Experiment, Run, measure_of
from elign.lab.report.spread import CONFIDENCE, gain_over, mean_text, seeds_text

COLUMNS = {**TERMINAL, "recovered": "recovered"}
"""Metrics that are shown, with their headings."""

GAIN = f"points of the average over base on the same checkpoints, with several seeds their {CONFIDENCE:.0%} interval"

# Sorted below every number, whichever way a metric points.
_NONE = Cell("–", float("-inf"))


def value_cell(values: Sequence[float] | None) -> Cell:
    """Mean and spread, sorted by the mean; a dash where there is no value."""
    return Cell(mean_text(values), statistics.fmean(values)) if values else _NONE


def readings_table(experiment: Experiment, classifiers: Sequence[str] = HEAD) -> Grid:
    """Every reading with its metrics; those that use test labels say so in a column."""
    rows = []
    for name in experiment.summaries(classifiers):
        average, *others = (value_cell(experiment.values(name, metric, classifiers)) for metric in COLUMNS)
        uses = "" if READINGS[name].label_free else f"uses test labels {MARK}"
        gain = _gain(experiment, name, classifiers)
        words = Cell.words(uses), Cell.words(READINGS[name].text)
        rows.append([Cell.words(marked(name)), average, gain, *others, *words])
    what = f", {experiment.terms.measure}" if experiment.detects else ""
    caption = f"All readings{what}, in %; {seeds_text(len(experiment.runs))}"
    first, *rest = COLUMNS.values()
    header = ["reading", first, "gain", *rest, "test labels", "what it is"]
    return Grid(caption, header, rows, mark=marked(ORACLE))


def metric_notes(experiments: Sequence[Experiment]) -> str:
    """What each column of `readings_table` means, in one line of text."""
    metrics = "; ".join(f"{heading}: {METRICS[metric][1]}" for metric, heading in COLUMNS.items())
    # Formulas are the same for all kinds of runs, and so are the words of their explanations.
    meant = " Accuracy of detectors is mean average precision." if any(each.detects for each in experiments) else ""
    return f"gain: {GAIN}; {metrics}.{meant}"


def comparison_table(experiments: Sequence[Experiment]) -> Grid:
    """One row for each experiment: base, the default, ELI with and without test labels, and what each has to beat."""
    # Detectors have none.
    default = any(each.values(DEFAULT) for each in experiments)
    header = ["experiment", "seeds", "tasks", "base", *([f"{DEFAULT} (default)", "gain"] if default else [])]
    header += [marked(ORACLE), "gain", marked(MASK)]
    header += ["best label-free ELI", "gain", "which", "best label-free control", "which"]
    rows = []
    for each in experiments:
        free, control = best(each, FREE_ELI), best(each, FREE_CONTROLS)
        done, planned = each.tasks, len(each.sizes)
        rows.append(
            [
                Cell.words(each.name),
                Cell(str(len(each.runs)), len(each.runs)),
                Cell(str(done) if done == planned else f"{done} of {planned}", done),
                value_cell(each.values("base")),
                *([value_cell(each.values(DEFAULT)), _gain(each, DEFAULT)] if default else []),
                value_cell(each.values(ORACLE)),
                _gain(each, ORACLE),
                value_cell(each.values(MASK)),
                value_cell(each.values(free) if free else None),
                _gain(each, free),
                Cell.words(free or "–"),
                value_cell(each.values(control) if control else None),
                Cell.words(control or "–"),
            ]
        )
    return Grid(f"Average {measure_of(experiments)} over tasks in %, the first included; gain: {GAIN}", header, rows)


def _gain(experiment: Experiment, reading: str | None, classifiers: Sequence[str] = HEAD) -> Cell:
    """Of the average over the same checkpoints' base; the base itself has none."""
    base = experiment.values("base", classifiers=classifiers)
    values = experiment.values(reading, classifiers=classifiers) if reading and reading != "base" else None
    if values is None or base is None:
        return _NONE
    mean, text = gain_over(values, base)
    return Cell(text, mean)


def durations_table(experiment: Experiment) -> Grid:
    """When and for how long each run worked."""
    header = [
        "run",
        "seed",
        "started",
        "tasks",
        "training (s)",
        "latents (s)",
        "fitting (s)",
        "readings (s)",
        "all (s)",
    ]
    return Grid("Runs and their durations", header, [_durations(run) for run in experiment.runs])


def _durations(run: Run) -> list[Cell]:
    parts = [
        sum(task["seconds"].get(name, 0.0) for task in run.tasks) for name in ("train", "extract", "fit", "readings")
    ]
    return [
        Cell.words(str(run.folder.path)),
        Cell(str(run.seed), run.seed),
        Cell.words(str(run.facts.get("started", "–"))),
        Cell(f"{len(run.tasks)} of {len(run.facts['sizes'])}", len(run.tasks)),
        *(Cell.number(seconds) for seconds in [*parts, sum(parts)]),
    ]
