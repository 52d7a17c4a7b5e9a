"""The experiments of the paper: a plan for each grid."""

from __future__ import annotations

from collections.abc import Sequence

from elign.lab.config.composition import ConfigError
from elign.lab.evaluation.methods import METHODS, marked
from elign.lab.evaluation.metrics import Row, average_accuracy, curve
from elign.lab.paper.comparison import (
    NOTHING,
    Measured,
    Printed,
    comparison_tables,
    differences,
    label_free_tables,
    method_values,
    printed_cell,
    published_aligner,
    published_config,
    scale_note,
    seeds_difference,
)
from elign.lab.paper.costs import costs_plan
from elign.lab.paper.detection_table import detection_plan
from elign.lab.paper.plan import Evaluation, Plan, Store, over_seeds, training_plan
from elign.lab.paper.request import Grid, Request, read_grid
from elign.lab.paper.two_tasks import two_task_plan
from elign.lab.report.table import Table
from elign.lab.runs.experiment import CLASSIFICATION

ALIGNED = "eli/oracle"
BASELINES = ("eli/by-prediction", "mean-shift/oracle", "ridge/oracle", "random-shift/oracle", "oracle-mask")
ORACLE_NOTE = (
    "† uses test labels: it knows of each test sample whether its class is old; so did the printed numbers of ELI"
)
_PRINTED_DATA = ("cifar100", "imagenet100")

Line = tuple[tuple[str, ...], tuple[Evaluation, ...], Printed, str]
"""A row: its labels, one evaluation for each seed, the printed numbers, and the data set that these are of."""


def plan_experiments(names: Sequence[str], request: Request) -> list[Plan]:
    """Plan some experiments.

    Raises:
        ConfigError: A setting does not fit an experiment.
    """
    makers = {"costs": costs_plan, "two-task": two_task_plan, "detection": detection_plan}
    grids = {name: read_grid(name) for name in names}
    return [makers.get(grid.table, _classification_plan)(name, grid, request) for name, grid in grids.items()]


def _classification_plan(name: str, grid: Grid, request: Request) -> Plan:
    varies = grid.evaluations.varies
    if varies and request.value(varies) is not None:
        raise ConfigError(f"{name} varies {varies} itself: leave it out, or use 'elign evaluate'.")
    lines = _lines(grid, request)
    planned = list(dict.fromkeys(each for _, evaluations, _, _ in lines for each in evaluations))

    def tables(store: Store) -> list[Table]:
        pairs = {
            each: published_config(CLASSIFICATION, each.run.learner, beside, each.run.protocol)
            for _, evaluations, _, beside in lines
            for each in evaluations
        }
        found = differences(((each.config, theirs) for each, theirs in pairs.items()), varied=[varies])
        notes = [scale_note(request.preset, found + seeds_difference(request.seeds)), *grid.notes, ORACLE_NOTE]
        if grid.table == "label-free":
            blocks = [(labels, method_values([*map(store.rows, each)])) for labels, each, _, _ in lines]
            return label_free_tables(
                blocks, title=grid.title, notes=notes, seeds=request.seeds, command=request.command(name)
            )
        heading = "after task" if grid.after_each_task else grid.evaluations.heading
        headings = ("learner", "data", "protocol", *([heading] if heading else []))
        return comparison_tables(
            grid.title,
            headings,
            [_measure(line, store, after_task=grid.after_each_task) for line in lines],
            aligned=marked(ALIGNED),
            notes=notes,
            command=request.command(name),
        )

    return training_plan(name, grid, request, CLASSIFICATION, planned, tables)


def _lines(grid: Grid, request: Request) -> list[Line]:
    data_sets = request.data or (("digits",) if request.smoke else grid.data)
    lines: list[Line] = []
    for learner in grid.learners if grid.fixed_learners else request.learners or grid.learners:
        for data in data_sets:
            beside = data if data in _PRINTED_DATA else grid.beside
            for protocol in request.splits(data, grid.protocols):
                own = published_aligner(learner, data, protocol) if grid.published_aligner else ()
                for choice, words in grid.evaluations.choices.items():
                    each = over_seeds(request, CLASSIFICATION, learner, data, protocol, (*own, *words))
                    labels = (learner, data, protocol, *([choice] if choice else []))
                    if not grid.after_each_task:
                        table = grid.printed.get(choice) or grid.printed.get(learner) or grid.printed.get("")
                        printed = printed_cell(table, learner, beside, protocol, choice) if table else NOTHING
                        lines.append((labels, each, printed, beside))
                        continue
                    tasks = range(1, 2 + int(protocol.partition("-")[2]))
                    lines += [((*labels, str(task)), each, NOTHING, beside) for task in tasks]
                    printed = printed_cell(grid.printed["average"], learner, beside, protocol)
                    lines.append(((*labels, "average"), each, printed, beside))
    return lines


def _measure(line: Line, store: Store, *, after_task: bool) -> Measured:
    labels, evaluations, printed, _ = line
    seeds = [store.rows(each) for each in evaluations]
    task = int(labels[-1]) if after_task and labels[-1].isdecimal() else None

    def values(method: str) -> tuple[float, ...]:
        return tuple(head_accuracy(rows, method, task) for rows in seeds)

    present = {row.method for rows in seeds for row in rows if row.classifier == "fc"}
    baselines = {marked(name): values(name) for name in BASELINES if name in present and name in METHODS}
    return Measured(labels, values("base"), values(ALIGNED), baselines, printed)


def head_accuracy(rows: Sequence[Row], method: str, task: int | None) -> float:
    """Return the accuracy in percent of the model's own head: after a task, or on average over tasks for None."""
    found = curve(rows, method, "fc")
    return 100 * (average_accuracy(found) if task is None else found[task - 1].accuracy)
