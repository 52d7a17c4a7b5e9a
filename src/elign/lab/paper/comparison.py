"""What the paper prints (`paper_results.json`), its published configurations, and tables that compare with it.

Accuracies are in percent; names are those of the bench (`icarl`, `half-5`). One of the tables is part of reports.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import yaml

from elign.lab.config.schema import TREE, flatten
from elign.lab.evaluation.methods import METHODS, default_of, marked
from elign.lab.evaluation.metrics import (
    CONFIDENCE,
    HEADLESS,
    ONE_SEED,
    Difference,
    Row,
    gain_text,
    interval_text,
    mean_std,
    mean_text,
    paired_difference,
    printed_text,
    recovered_fraction,
    same_sign,
    summarise,
)
from elign.lab.report.run_groups import MASK, ORACLE, TABLES, RunGroup, value_cell
from elign.lab.report.table import Cell, Column, Format, Table
from elign.lab.runs.experiment import BENCHMARKS, CLASSIFICATION, DETECTION


@dataclass(frozen=True)
class Printed:
    """Printed accuracies without and with alignment; the gain as printed where the paper prints gains."""

    base: float | None = None
    aligned: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class PrintedPrecision:
    """Printed mean average precisions: of the first task's classes, the second's, and all; ELI's gain in the last."""

    old: float | None = None
    new: float | None = None
    all: float | None = None
    gain: float | None = None


NOTHING = Printed()
NO_PRECISION = PrintedPrecision()


@cache
def numbers() -> Any:
    """Return the content of `paper_results.json`."""
    return json.loads(resources.files(__package__).joinpath("paper_results.json").read_text(encoding="utf-8"))


_PUBLISHED = yaml.safe_load(resources.files(__package__).joinpath("published.yaml").read_text(encoding="utf-8"))


def printed_cell(table: str, learner: str, data: str, protocol: str, choice: str = "") -> Printed:
    """Return a cell of `table1`, `imagenet1k`, `implicit`, or of an ablation (its key, and its row without spaces).

    Example:
        >>> printed_cell("table1", "icarl", "cifar100", "half-5")
        Printed(base=56.97, aligned=63.68, gain=6.71)
    """
    name, of_data = _PUBLISHED["learners"].get(learner, ""), _PUBLISHED["data"].get(data, "")
    column = f"{of_data}_{protocol.replace('half', 'b50').replace('-', '_')}"
    if table == "imagenet1k":
        return Printed(gain=numbers()["fig_imagenet1k"]["average_gain"].get(name))
    if table == "implicit":
        kind, _, count = protocol.partition("-")
        gains = numbers()["fig_implicit_regulariser"]["gain_over_AANet_without_ER"]
        return Printed(gain=gains.get(count) if (kind, data) == ("half", "imagenet100") else None)
    main = numbers()["table1_class_incremental"]
    base = main["rows"].get(name, {}).get(column)
    if table == "table1":
        gain = main["printed_gains"].get(f"{name}+ELI", {}).get(column)
        return NOTHING if base is None else Printed(base, main["rows"][f"{name}+ELI"][column], gain)
    rows = {row.replace(" ", ""): cells for row, cells in numbers()[table]["rows"].items()}
    if table == "table6_logit_aligner":
        return _pair(base, rows.get(f"{name}+LogitAligner", {}).get(column))
    # The other ablations are of iCaRL.
    return _pair(base, rows.get(choice, {}).get(column)) if learner == "icarl" else NOTHING


def printed_toy(latent_dim: int) -> Printed:
    """Return the accuracy on task 1 after task 2 of the two-task experiment on MNIST."""
    found = numbers()["toy_mnist"]["paper"].get(str(latent_dim))
    return NOTHING if found is None else _pair(found["task1_after_task2"], found["task1_with_ELI"])


def printed_precision(learner: str, protocol: str) -> PrintedPrecision:
    """Return a row of Table 2, detection on VOC 2007 after the second task; `first` is the detector before it.

    Example:
        >>> printed_precision("iod", "15+5")
        PrintedPrecision(old=71.73, new=55.9, all=67.8, gain=None)
    """
    rows = numbers()["table2_incremental_detection"]["settings"].get(protocol, {})
    if learner == "first":
        # The mean of the printed precisions: the table's own means of these rows are over other numbers of classes.
        found = rows.get(f"First {protocol.partition('+')[0]}")
        return NO_PRECISION if found is None else PrintedPrecision(old=found["mean_old"])
    found = rows.get(_PUBLISHED["detectors"].get(learner))
    if found is None:
        return NO_PRECISION
    gain = numbers()["table2_printed_gains"].get(protocol) if learner == "iod+eli" else None
    return PrintedPrecision(found["mean_old"], found["mean_new"], found["mAP_printed"], gain)


def _pair(base: float | None, aligned: float | None) -> Printed:
    return NOTHING if base is None or aligned is None else Printed(base, aligned, round(aligned - base, 2))


def published_words(benchmark: str, data: str, protocol: str, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what the authors set for a protocol beside `preset=paper`, except for the keys in `given`."""
    own: dict[str, str] = _PUBLISHED["splits"].get(protocol, {}) if benchmark == DETECTION else {}
    if benchmark == CLASSIFICATION and protocol.startswith("equal-"):
        # Their flag for equal tasks keeps the natural order of classes and makes the net for CIFAR one of 14 layers.
        own = {"data.order": "null"} | ({"model": "resnet14"} if data == "cifar100" else {})
    keys = {text.partition("=")[0] for text in given}
    return tuple(f"{key}={value}" for key, value in own.items() if key not in keys)


def published_aligner(learner: str, data: str, protocol: str) -> tuple[str, ...]:
    """Return the one exception among the published settings of the aligner: a linear energy."""
    exception = learner.startswith("aanet") and data == "imagenet100" and protocol in ("half-10", "half-25")
    return ("aligner.hidden=[]",) if exception else ()


def published_config(benchmark: str, learner: str, data: str, protocol: str) -> Any:
    """Return the configuration of a published run."""
    words = [f"learner={learner}", f"data={data}", f"protocol={protocol}", "preset=paper"]
    words += [*published_words(benchmark, data, protocol), *published_aligner(learner, data, protocol)]
    return BENCHMARKS[benchmark].compose(words)


def differences(pairs: Iterable[tuple[Any, Any]], *, varied: Collection[str] = ()) -> list[str]:
    """Say each setting in which runs differ from published ones, as sentences without an end; `varied` are left out."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for pair in pairs:
        ours, theirs = map(_values, pair)
        both_step = ours.get("train.schedule") == theirs.get("train.schedule") == "steps"
        for key in dict.fromkeys((*ours, *theirs)):
            one, other = ours.get(key, "none"), theirs.get(key, "none")
            if one != other and key not in varied and (both_step or key not in _PUBLISHED["steps"]):
                found.setdefault(key, {}).setdefault(one, {})[other] = None
    said, labels = {}, _PUBLISHED["labels"]
    for key in (*(key for key in labels if key in found), *found):
        texts = (f"{one} instead of {' or '.join(others)}" for one, others in found[key].items())
        said[key] = f"{labels.get(key, key)}: {', '.join(texts)}"
    return list(said.values())


def scale_note(preset: str, found: Sequence[str]) -> str:
    """Return the differences as the first note of a table."""
    if not found:
        return f"preset={preset}: the published settings, as far as they are known"
    return f"preset={preset}, not the paper's scale: {'; '.join(found)}"


def seeds_difference(seeds: int) -> list[str]:
    """Say how many seeds there are, where the paper has another number."""
    return [] if seeds == 3 else [f"{seeds} seed{'s' if seeds > 1 else ''} instead of 3 runs"]


def _values(config: Any) -> dict[str, str]:
    """Return the settings that are compared, as texts."""
    settings = {key: value for key, value in flatten(config, whole=True).items() if key not in _PUBLISHED["skipped"]}
    settings = {key: value for key, value in settings.items() if not key.startswith(("protocol.", "learner.name"))}
    epochs = f"{settings.pop('train.first_epochs')}/{settings.pop('train.epochs')}"
    if "memory.budget" in settings:
        budget, per_class = settings.pop("memory.budget"), settings.pop("memory.per_class")
        in_all = f"{budget} in all" if budget else "none"
        settings["memory"] = f"{per_class} of each class" if per_class else in_all
    return {"epochs": epochs} | {key: _text(key, value) for key, value in settings.items()}


def _text(key: str, value: Any) -> str:
    if value is None:
        own = "the detector's own" if key.startswith("model.") and key != "model.weights" else "none"
        return str(_PUBLISHED["none"].get(key, own))
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


Value = Cell | str | float | None
Cells = list[tuple[Column, Value]]
"""A row with its columns."""

INTERVAL = f"{CONFIDENCE:.0%} interval"
_SHOWN: tuple[Format, ...] = ("rich", "markdown", "latex", "html")


def label(title: str, *, shown: bool = True) -> Column:
    """Make a column of text; one that is not shown is in files only."""
    return Column(title, "left", () if shown else _SHOWN)


def page(title: str, *, terminal: bool = False) -> Column:
    """Make a column of pages, which have room for all columns, and perhaps of the terminal."""
    leave_out: tuple[Format, ...] = ("csv",) if terminal else ("csv", "rich")
    return Column(title, leave_out=leave_out)


def in_file(values: Mapping[str, Value]) -> Cells:
    """Make cells for CSV files alone, by the title of their column."""
    return [(Column(title, leave_out=_SHOWN), value) for title, value in values.items()]


def mean_cells(name: str, values: Sequence[float]) -> Cells:
    """Make the cells of mean and deviation for CSV files; both are empty where there is no value."""
    found = mean_std(values) if values else None
    return in_file({name: found.mean if found else None, f"{name}_std": found.std if found else None})


def gain_cell(gain: Difference | float | None) -> Cell:
    """Make the cell of a gain, measured or printed; a dash for None."""
    value = gain.mean if isinstance(gain, Difference) else gain
    return Cell(gain_text(value), value)


def make_table(title: str, rows: Sequence[Cells], *, notes: Sequence[str] = (), command: str = "") -> Table:
    """Put rows together that have the same columns."""
    table = Table(title, [column for column, _ in rows[0]], notes, [f"Made by `{command}`."] if command else ())
    for row in rows:
        table.add(*(value for _, value in row))
    return table


def labels_of(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, list[Column]]:
    """Make the columns of labels; what all rows have in common goes into the title."""
    same = [len(rows) > 1 and len({row[place] for row in rows}) == 1 for place in range(len(headings))]
    same[-1] &= not all(same)
    said = [rows[0][place] for place, shared in enumerate(same) if shared]
    columns = [label(heading, shown=not shared) for heading, shared in zip(headings, same, strict=True)]
    return ", ".join([title, *said]), columns


def values_text(values: Sequence[float]) -> str:
    """Return the values of all seeds as one field of a file."""
    return ";".join(f"{value:.6g}" for value in values)


def averages_note(seeds: set[int], what: str = "accuracy") -> str:
    """Say how numbers were averaged."""
    if seeds == {1}:
        return f"{what} in %, gains in points over base on the same checkpoints; {ONE_SEED}"
    counts = " or ".join(map(str, sorted(seeds)))
    return (
        f"{what} in %; mean ± sample standard deviation over {counts} seeds; gains in points over base on the same "
        f"checkpoints, paired by seed, with the {CONFIDENCE:.0%} interval of Student's t"
    )


@dataclass(frozen=True)
class Measured:
    """A row; accuracies in percent, one for each seed, in the same order everywhere.

    Args:
        labels: What the row is.
        base: Without alignment.
        aligned: With it, on the same checkpoints.
        baselines: Other methods on the same checkpoints, by name.
        printed: What the paper has for it.
    """

    labels: tuple[str, ...]
    base: Sequence[float]
    aligned: Sequence[float]
    baselines: Mapping[str, Sequence[float]] = field(default_factory=dict)
    printed: Printed = NOTHING

    @property
    def gain(self) -> Difference:
        """The gain of alignment, paired by seed."""
        return paired_difference(self.aligned, self.base)


def comparison_tables(
    title: str,
    headings: Sequence[str],
    lines: Sequence[Measured],
    *,
    aligned: str,
    notes: Sequence[str],
    command: str = "",
) -> list[Table]:
    """Make the table of some experiments, and one with the gains of the baselines for the terminal.

    `headings` are of the labels; `aligned` is the aligned method, with its mark if it uses test labels.
    """
    names = list(dict.fromkeys(name for line in lines for name in line.baselines))
    whole, columns = labels_of(title, headings, [line.labels for line in lines])
    notes = [*notes, averages_note({len(line.base) for line in lines})]
    if all(line.printed == NOTHING for line in lines):
        notes.append("the paper prints nothing for this")
    one_seed = all(len(line.base) == 1 for line in lines)
    rows: list[Cells] = []
    gains: list[Cells] = []
    for line in lines:
        start: Cells = list(zip(columns, line.labels, strict=True))
        found = {name: line.baselines.get(name) for name in names}
        cells = {
            name: gain_cell(paired_difference(values, line.base) if values else None) for name, values in found.items()
        }
        more: dict[str, Value] = {f"gain of {name}": cell for name, cell in cells.items()}
        shown = [(page(name), cell) for name, cell in more.items()]
        rows.append([*start, *_against(line, aligned, one_seed=one_seed), *shown, *_record(line), *in_file(more)])
        gains.append(
            [*start, (Column(aligned), gain_cell(line.gain)), *((Column(name), cells[name]) for name in names)]
        )
    main = make_table(whole, rows, notes=notes, command=command)
    return [main, make_table("Gains", gains)] if names else [main]


def _against(line: Measured, aligned: str, *, one_seed: bool) -> Cells:
    """Return the cells that compare a row with the paper."""
    gain, printed = line.gain, line.printed
    pair = None if printed.base is None else f"{printed_text(printed.base)} → {printed_text(printed.aligned)}"
    ratio = gain.mean / printed.gain if printed.gain else None
    terminal: tuple[Format, ...] = ("csv", "markdown", "latex", "html")
    return [
        (Column("paper", leave_out=terminal), pair),
        (Column("ours", leave_out=terminal), f"{mean_text(line.base)} → {mean_text(line.aligned)}"),
        (page("base, paper"), Cell(printed_text(printed.base), printed.base)),
        (page("base"), value_cell(line.base)),
        (page(f"{aligned}, paper"), Cell(printed_text(printed.aligned), printed.aligned)),
        (page(aligned), value_cell(line.aligned)),
        (page("gain, paper", terminal=True), gain_cell(printed.gain)),
        (page("gain", terminal=True), gain_cell(gain)),
        # The notes say that one seed has no interval; the room on a terminal is for numbers.
        (page(INTERVAL, terminal=not one_seed), interval_text(gain)),
        (page("same sign", terminal=True), same_sign(printed.gain, gain)),
        (page("size, of the printed"), None if ratio is None else Cell(f"{ratio:.2f}x", ratio)),
    ]


def _record(line: Measured) -> Cells:
    gain, printed = line.gain, line.printed
    low, high = gain.interval or (None, None)
    return [
        *in_file({"seeds": len(line.base), "paper_base": printed.base}),
        *mean_cells("base", line.base),
        *in_file({"paper_aligned": printed.aligned}),
        *mean_cells("aligned", line.aligned),
        *in_file({"paper_gain": printed.gain, "gain": gain.mean, "gain_std": gain.std}),
        *in_file({"gain_low": low, "gain_high": high, "same_sign": same_sign(printed.gain, gain)}),
        *in_file({"base_values": values_text(line.base), "aligned_values": values_text(line.aligned)}),
    ]


@TABLES.register("paper")
def paper_table(groups: Sequence[RunGroup]) -> Table | None:
    """Return printed and measured averages of finished groups that the paper has; None if there are none."""
    rows: list[Cells] = []
    scales: list[str] = []
    for group in groups:
        config = group.config
        learner, data, protocol = (config[part]["name"] or "" for part in ("learner", "data", "protocol"))
        printed, values = printed_cell("table1", learner, data, protocol), group.values(ORACLE)
        # Other evaluations of a run have another aligner.
        own = "evaluation" not in group.runs[0].metadata
        if printed == NOTHING or not own or not values or group.tasks < len(group.sizes):
            continue
        line = Measured((group.name,), group.values("base"), values, printed=printed)
        rows.append([(label("experiment"), group.name), *_against(line, marked(ORACLE), one_seed=False)])
        ours = TREE.from_dict(config)
        found = differences([(ours, published_config(ours.benchmark, learner, data, protocol))])
        found += seeds_difference(len(group.runs))
        scale = f"not the paper's scale: {'; '.join(found)}" if found else "the published settings, as far as known"
        scales.append(f"{group.name}: {scale}.")
    if not rows:
        return None
    note = "average accuracy over tasks in %, the first included; gains in points, paired by seed (Table 1)"
    table = make_table("Against the paper", rows, notes=[note])
    table.footnotes = scales
    table.columns = [replace(c, align="left") if c.title in (INTERVAL, "same sign") else c for c in table.columns]
    return table


_METRICS = {name: name for name in ("average", "average_incremental", "last", "old", "new")}
_METRICS["average_incremental"] = "without the first task"

Values = Mapping[str, tuple[float | None, ...]]
"""Values of one method over seeds, by metric; in percent."""


def method_values(seeds: Sequence[Sequence[Row]]) -> dict[str, Values]:
    """Return the values of the label-free methods and two oracles, from the rows of each seed.

    Methods that some seed lacks are left out.
    """
    runs = [{(each.method, each.classifier): each for each in summarise(rows)} for rows in seeds]
    wanted = [(marked(name), (name, classifier)) for name in METHODS for classifier in ("fc", *HEADLESS)]
    wanted += [(f"{name}, nearest mean", (name, "nearest-mean")) for name in ("base", "eli/all")]
    found: dict[str, Values] = {}
    for shown, key in wanted:
        if all(key in run for run in runs) and (not METHODS[key[0]].uses_labels or key[0] in (ORACLE, MASK)):
            numbers = {metric: [getattr(run[key], metric) for run in runs] for metric in _METRICS}
            found[shown] = {
                metric: tuple(None if value is None else 100 * value for value in values)
                for metric, values in numbers.items()
            }
    return found


def label_free_tables(
    blocks: Sequence[tuple[tuple[str, ...], Mapping[str, Values]]],
    *,
    title: str,
    notes: Sequence[str],
    seeds: int,
    command: str = "",
) -> list[Table]:
    """Make the table of all label-free methods and their oracles, and one with its gains for the terminal.

    A block is learner, data and protocol, with the values of the methods by name.
    """
    averages = f"accuracy in %; {ONE_SEED if seeds == 1 else f'mean ± sample standard deviation over {seeds} seeds'}"
    averages += (
        "; gains and differences in points, of the mean over tasks without the first, paired by seed; recovered: that "
        "gain as a share of the one of oracle-mask, in %"
    )
    named = [((*labels, name), values, of) for labels, of in blocks for name, values in of.items()]
    whole, columns = labels_of(title, ("learner", "data", "protocol", "method"), [labels for labels, _, _ in named])
    default = default_of({labels[-1] for labels, _, _ in named})
    rows: list[Cells] = []
    gains: list[Cells] = []
    for labels, values, of in named:
        start: Cells = list(zip(columns, labels, strict=True))
        accuracies = [(page(_METRICS[metric], terminal=True), _mean(numbers)) for metric, numbers in values.items()]
        more = _gains(values, of, default)
        record = in_file({"seeds": len(values["average"])})
        for name, numbers in values.items():
            record += mean_cells(name, [number for number in numbers if number is not None])
        rows.append([*start, *accuracies, *((page(name), cell) for name, cell in more.items()), *record])
        gains.append([*start, *((Column(name), cell) for name, cell in more.items())])
    return [make_table(whole, rows, notes=[*notes, averages], command=command), make_table("Gains", gains)]


def _gains(values: Values, of: Mapping[str, Values], default: str) -> dict[str, Cell]:
    base, mask = of["base"], of[marked(MASK)]
    three = (side["average_incremental"] for side in (values, base, mask))
    shares = [recovered_fraction(*numbers) for numbers in zip(*three, strict=True)]
    gain, interval = _difference(values, base)
    lead, its_interval = _difference(of.get(default), values)
    return {
        "gain over base": gain,
        INTERVAL: interval,
        f"{default} above it": lead,
        f"its {INTERVAL}": its_interval,
        "recovered": _mean([None if share is None else 100 * share for share in shares]),
    }


def _mean(values: Sequence[float | None]) -> Cell:
    """Return a mean; a dash if a seed has no value."""
    numbers = [value for value in values if value is not None]
    return value_cell(numbers if len(numbers) == len(values) else [])


def _difference(ones: Values | None, others: Values) -> tuple[Cell, Cell]:
    """Return a paired difference and its interval; dashes between equals."""
    sides = (side["average_incremental"] for side in (ones or others, others))
    pairs = [(one, other) for one, other in zip(*sides, strict=True) if one is not None and other is not None]
    if ones is None or ones is others or not pairs:
        return Cell.of(None), Cell.of(None)
    found = paired_difference(*zip(*pairs, strict=True))
    return gain_cell(found), Cell.of(None if found.interval is None else interval_text(found))
