"""Tables of measured numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elign.lab.evaluation.statistics import (
    CONFIDENCE,
    ONE_SEED,
    gain_text,
    interval_text,
    mean_std,
    mean_text,
    paired_difference,
    printed_text,
    same_sign,
)
from elign.lab.paper.printed import NOTHING, Printed
from elign.lab.report.table import Cell, Column, Format, Table

Value = Cell | str | float | None
Cells = list[tuple[Column, Value]]
"""A row with its columns."""

INTERVAL = f"{CONFIDENCE:.0%} interval"


def label(title: str, *, shown: bool = True) -> Column:
    """Make a column of text; one that is not shown is in files only."""
    return Column(title, "left", () if shown else ("rich", "markdown", "latex", "html"))


def page(title: str, *, terminal: bool = False) -> Column:
    """Make a column of pages, which have room for all columns, and perhaps of the terminal."""
    leave_out: tuple[Format, ...] = ("csv",) if terminal else ("csv", "rich")
    return Column(title, leave_out=leave_out)


def terminal(title: str) -> Column:
    """Make a column of the terminal alone."""
    leave_out: tuple[Format, ...] = ("csv", "markdown", "latex", "html")
    return Column(title, leave_out=leave_out)


def in_file(values: Mapping[str, Value]) -> Cells:
    """Make cells for CSV files alone, by the title of their column."""
    return [(Column(title, leave_out=("rich", "markdown", "latex", "html")), value) for title, value in values.items()]


def make_table(title: str, rows: Sequence[Cells], *, notes: Sequence[str] = (), command: str = "") -> Table:
    """Put rows together that have the same columns."""
    columns = [column for column, _ in rows[0]]
    table = Table(title, columns, notes, [f"Made by `{command}`."] if command else ())
    for row in rows:
        table.add(*(value for _, value in row))
    return table


def labels_of(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, list[Column]]:
    """Make the columns of labels; what all rows have in common goes into the title."""
    same = [len(rows) > 1 and len({row[place] for row in rows}) == 1 for place in range(len(headings))]
    if all(same):
        same[-1] = False
    said = [rows[0][place] for place, shared in enumerate(same) if shared]
    columns = [label(heading, shown=not shared) for heading, shared in zip(headings, same, strict=True)]
    return ", ".join([title, *said]), columns


def mean_cells(name: str, values: Sequence[float]) -> Cells:
    """Make the cells of mean and deviation for CSV files; both are empty where there is no value."""
    found = mean_std(values) if values else None
    mean, std = (None, None) if found is None else (found.mean, found.std)
    return in_file({name: mean, f"{name}_std": std})


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
    base: tuple[float, ...]
    aligned: tuple[float, ...]
    baselines: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    printed: Printed = NOTHING


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

    Args:
        title: Above the table.
        headings: Of the labels.
        lines: The rows.
        aligned: Name of the aligned method, with its mark if it uses test labels.
        notes: Above the table.
        command: What makes the table again.
    """
    names = list(dict.fromkeys(name for line in lines for name in line.baselines))
    whole, columns = labels_of(title, headings, [line.labels for line in lines])
    notes = [*notes, averages_note({len(line.base) for line in lines})]
    if all(line.printed == NOTHING for line in lines):
        notes.append("the paper prints nothing for this")
    one_seed = all(len(line.base) == 1 for line in lines)

    def labels(line: Measured) -> Cells:
        return list(zip(columns, line.labels, strict=True))

    def gains(line: Measured) -> dict[str, Cell]:
        found = {name: line.baselines.get(name) for name in names}
        return {name: _gain_cell(values, line.base) for name, values in found.items()}

    rows = []
    for line in lines:
        row = labels(line) + _against(line, aligned, one_seed=one_seed)
        row += [(page(f"gain of {name}"), cell) for name, cell in gains(line).items()]
        rows.append(row + in_file(_record(line) | {f"gain of {name}": cell for name, cell in gains(line).items()}))
    tables = [make_table(whole, rows, notes=notes, command=command)]
    if names:
        more = [
            labels(line)
            + [(Column(aligned), _gain_cell(line.aligned, line.base))]
            + [(Column(name), cell) for name, cell in gains(line).items()]
            for line in lines
        ]
        tables.append(make_table("Gains", more))
    return tables


def _gain_cell(values: Sequence[float] | None, base: Sequence[float]) -> Cell:
    if values is None:
        return Cell.of(None)
    gain = paired_difference(values, base).mean
    return Cell(gain_text(gain), gain)


def _against(line: Measured, aligned: str, *, one_seed: bool) -> Cells:
    """Return the cells that compare a row with the paper."""
    gain, printed = paired_difference(line.aligned, line.base), line.printed
    pair = None if printed.base is None else f"{printed_text(printed.base)} → {printed_text(printed.aligned)}"
    ours = f"{mean_text(line.base)} → {mean_text(line.aligned)}"
    ratio = gain.mean / printed.gain if printed.gain else None
    return [
        (terminal("paper"), pair),
        (terminal("ours"), ours),
        (page("base, paper"), Cell(printed_text(printed.base), printed.base)),
        (page("base"), Cell(mean_text(line.base), mean_std(line.base).mean)),
        (page(f"{aligned}, paper"), Cell(printed_text(printed.aligned), printed.aligned)),
        (page(aligned), Cell(mean_text(line.aligned), mean_std(line.aligned).mean)),
        (page("gain, paper", terminal=True), Cell(gain_text(printed.gain), printed.gain)),
        (page("gain", terminal=True), Cell(gain_text(gain.mean), gain.mean)),
        # The notes say that one seed has no interval; the room on a terminal is for numbers.
        (page(INTERVAL, terminal=not one_seed), interval_text(gain)),
        (page("same sign", terminal=True), same_sign(printed.gain, gain)),
        (page("size, of the printed"), None if ratio is None else Cell(f"{ratio:.2f}x", ratio)),
    ]


def _record(line: Measured) -> dict[str, Value]:
    gain, base, aligned = paired_difference(line.aligned, line.base), mean_std(line.base), mean_std(line.aligned)
    low, high = gain.interval or (None, None)
    return {
        "seeds": len(line.base),
        "paper_base": line.printed.base,
        "base": base.mean,
        "base_std": base.std,
        "paper_aligned": line.printed.aligned,
        "aligned": aligned.mean,
        "aligned_std": aligned.std,
        "paper_gain": line.printed.gain,
        "gain": gain.mean,
        "gain_std": gain.std,
        "gain_low": low,
        "gain_high": high,
        "same_sign": same_sign(line.printed.gain, gain),
        "base_values": values_text(line.base),
        "aligned_values": values_text(line.aligned),
    }
