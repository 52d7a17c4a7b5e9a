"""The table of all label-free methods, with the oracles that they are measured by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elign.lab.evaluation.methods import METHODS, default_of, marked
from elign.lab.evaluation.metrics import HEADLESS, Row, recovered_fraction, summarise
from elign.lab.evaluation.statistics import ONE_SEED, gain_text, interval_text, mean_std, mean_text, paired_difference
from elign.lab.paper.comparison import INTERVAL, Cells, in_file, labels_of, make_table, mean_cells, page
from elign.lab.report.table import Cell, Column, Table

_ORACLES = ("eli/oracle", "oracle-mask")
_METRICS = {
    "average": "average",
    "average_incremental": "without the first task",
    "last": "last",
    "old": "old",
    "new": "new",
}

Values = Mapping[str, tuple[float | None, ...]]
"""Values of one method over seeds, by metric; in percent."""


def method_values(seeds: Sequence[Sequence[Row]]) -> dict[str, Values]:
    """Return the values of the methods to show, by name; methods that some seed lacks are left out.

    Args:
        seeds: The rows of each seed.
    """
    runs = [{(each.method, each.classifier): each for each in summarise(rows)} for rows in seeds]
    wanted = [(marked(name), (name, classifier)) for name in METHODS for classifier in ("fc", *HEADLESS)]
    wanted += [(f"{name}, nearest mean", (name, "nearest-mean")) for name in ("base", "eli/all")]
    found: dict[str, Values] = {}
    for shown, key in wanted:
        if all(key in run for run in runs) and (not METHODS[key[0]].uses_labels or key[0] in _ORACLES):
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
    """Make the table, and one with its gains for the terminal.

    Args:
        blocks: Learner, data and protocol, with the values of the methods by name.
        title: Above the table.
        notes: Above the table.
        seeds: How many.
        command: What makes the table again.
    """
    averages = f"accuracy in %; {ONE_SEED if seeds == 1 else f'mean ± sample standard deviation over {seeds} seeds'}"
    averages += (
        "; gains and differences in points, of the mean over tasks without the first, paired by seed; recovered: that "
        "gain as a share of the one of oracle-mask, in %"
    )
    headings = ("learner", "data", "protocol", "method")
    named = [((*labels, name), values, of) for labels, of in blocks for name, values in of.items()]
    whole, columns = labels_of(title, headings, [labels for labels, _, _ in named])
    default = default_of({labels[-1] for labels, _, _ in named})
    rows: list[Cells] = []
    gains: list[Cells] = []
    for labels, values, of in named:
        start: Cells = list(zip(columns, labels, strict=True))
        accuracies = [(page(_METRICS[metric], terminal=True), _mean(numbers)) for metric, numbers in values.items()]
        more = _gains(values, of, default)
        rows.append([*start, *accuracies, *((page(name), cell) for name, cell in more.items()), *_record(values)])
        gains.append([*start, *((Column(name), cell) for name, cell in more.items())])
    return [make_table(whole, rows, notes=[*notes, averages], command=command), make_table("Gains", gains)]


def _gains(values: Values, of: Mapping[str, Values], default: str) -> dict[str, Cell]:
    base, mask = of["base"], of[marked("oracle-mask")]
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
    if not numbers or len(numbers) < len(values):
        return Cell.of(None)
    return Cell(mean_text(numbers), mean_std(numbers).mean)


def _difference(ones: Values | None, others: Values) -> tuple[Cell, Cell]:
    """Return a paired difference and its interval; dashes between equals."""
    if ones is not None and ones is not others:
        both = zip(ones["average_incremental"], others["average_incremental"], strict=True)
        pairs = [(one, other) for one, other in both if one is not None and other is not None]
        if pairs:
            found = paired_difference(*zip(*pairs, strict=True))
            interval = None if found.interval is None else interval_text(found)
            return Cell(gain_text(found.mean), found.mean), Cell.of(interval)
    return Cell.of(None), Cell.of(None)


def _record(values: Values) -> Cells:
    cells = in_file({"seeds": len(values["average"])})
    for name, numbers in values.items():
        cells += mean_cells(name, [number for number in numbers if number is not None])
    return cells
