"""Readings with and without alignment over seeds, beside the printed ones, as a table. Pure functions of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elign.lab.evaluation.statistics import paired_difference, same_sign, spread
from elign.lab.report.paper import NOTHING, Printed
from elign.lab.report.spread import CONFIDENCE, ONE_SEED, gain_text, interval_text, mean_text, printed_text
from elign.lab.reproduce.sheet import Grid, Sheet, Value, without_constant_labels

_NONE = "–"


@dataclass(frozen=True)
class Measured:
    """A line of a table; accuracies in percent, one for each seed, in the same order everywhere.

    Args:
        labels: What the line is.
        base: Without alignment.
        aligned: With it, on the same checkpoints.
        controls: Other readings of the same checkpoints, by name.
        printed: What the paper has for it.
    """

    labels: tuple[str, ...]
    base: tuple[float, ...]
    aligned: tuple[float, ...]
    controls: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    printed: Printed = NOTHING


def comparison(
    name: str,
    title: str,
    headings: Sequence[str],
    lines: Sequence[Measured],
    *,
    aligned: str,
    notes: Sequence[str],
    command: str,
) -> Sheet:
    """Put lines together.

    Args:
        name: Of the files.
        title: Above the table.
        headings: Of the labels.
        lines: What was measured.
        aligned: Heading of the aligned reading, with its mark if it uses test labels.
        notes: Differences of scale, and what else must be known.
        command: What makes the table again.
    """
    controls = tuple(dict.fromkeys(name for line in lines for name in line.controls))
    seeds = {len(line.base) for line in lines}
    page = Grid(
        (
            *headings,
            "base, paper",
            "base",
            f"{aligned}, paper",
            aligned,
            "gain, paper",
            "gain",
            f"{CONFIDENCE:.0%} interval",
            "same sign",
            "size, of the printed",
            *(f"gain of {control}" for control in controls),
        ),
        tuple((*line.labels, *_cells(line), *_control_cells(line, controls)) for line in lines),
        len(headings),
    )
    short, said = without_constant_labels(page)
    return Sheet(
        name=name,
        title=", ".join([title, *said]),
        notes=(*notes, terms(seeds), *_unprinted(lines)),
        page=short,
        terminal=_pieces(short, len(controls)),
        records=tuple(_record(headings, line, controls) for line in lines),
        command=command,
    )


def terms(seeds: set[int], what: str = "accuracy") -> str:
    """How numbers were put together."""
    if seeds == {1}:
        return f"{what} in %, gains in points over base on the same checkpoints; {ONE_SEED}"
    counts = " or ".join(map(str, sorted(seeds)))
    return (
        f"{what} in %; mean ± sample standard deviation over {counts} seeds; gains in points over base on the same "
        f"checkpoints, paired by seed, with the {CONFIDENCE:.0%} interval of Student's t"
    )


def _unprinted(lines: Sequence[Measured]) -> list[str]:
    return [] if any(line.printed != NOTHING for line in lines) else ["the paper prints nothing for this"]


def _cells(line: Measured) -> tuple[str, ...]:
    gain = paired_difference(line.aligned, line.base, confidence=CONFIDENCE)
    printed = line.printed
    return (
        printed_text(printed.base),
        mean_text(line.base),
        printed_text(printed.aligned),
        mean_text(line.aligned),
        gain_text(printed.gain),
        gain_text(gain.mean),
        interval_text(gain),
        same_sign(printed.gain, gain) or _NONE,
        f"{gain.mean / printed.gain:.2f}x" if printed.gain else _NONE,
    )


def _control_cells(line: Measured, controls: Sequence[str]) -> list[str]:
    found = (line.controls.get(name) for name in controls)
    return [gain_text(None if values is None else paired_difference(values, line.base).mean) for values in found]


def _pieces(grid: Grid, controls: int) -> tuple[Grid, ...]:
    """The columns of a page in two tables that a terminal has room for: against the paper, and the controls."""
    end = len(grid.columns) - controls
    first = Grid(
        (*grid.columns[: grid.labels], "paper", "ours", "gain,\npaper", "gain", "interval", "same\nsign", "size"),
        tuple((*row[: grid.labels], *_arrows(row[grid.labels : end])) for row in grid.rows),
        grid.labels,
    )
    interval = grid.labels + 4
    if all(row[interval] == ONE_SEED for row in first.rows):
        # The notes say so; the room is for numbers.
        first = Grid(
            _without(first.columns, interval), tuple(_without(row, interval) for row in first.rows), first.labels
        )
    if not controls:
        return (first,)
    headings = (grid.columns[grid.labels + 3], *grid.columns[end:])
    gain = grid.labels + 5
    second = Grid(
        (f"gain of:\n\n{grid.columns[0]}", *grid.columns[1 : grid.labels], *(_narrow(text) for text in headings)),
        tuple((*row[: grid.labels], row[gain], *row[end:]) for row in grid.rows),
        grid.labels,
    )
    return first, second


def _without(texts: Sequence[str], place: int) -> tuple[str, ...]:
    return (*texts[:place], *texts[place + 1 :])


def _narrow(heading: str) -> str:
    return heading.removeprefix("gain of ").replace("/", "/\n").replace("-", "-\n")


def _arrows(cells: Sequence[str]) -> tuple[str, ...]:
    paper_base, base, paper_aligned, aligned, *rest = cells
    paper = _NONE if paper_base == _NONE else f"{paper_base} → {paper_aligned}"
    return paper, f"{base} → {aligned}".replace(" ± ", "±"), *rest


def _record(headings: Sequence[str], line: Measured, controls: Sequence[str]) -> dict[str, Value]:
    gain = paired_difference(line.aligned, line.base, confidence=CONFIDENCE)
    base, aligned = spread(line.base), spread(line.aligned)
    low, high = gain.interval or (None, None)
    record: dict[str, Value] = dict(zip(headings, line.labels, strict=True))
    record |= {"seeds": len(line.base), "paper_base": line.printed.base, "base": base.mean, "base_std": base.std}
    record |= {"paper_aligned": line.printed.aligned, "aligned": aligned.mean, "aligned_std": aligned.std}
    record |= {"paper_gain": line.printed.gain, "gain": gain.mean, "gain_std": gain.std}
    record |= {"gain_low": low, "gain_high": high, "same_sign": same_sign(line.printed.gain, gain)}
    for name in controls:
        values = line.controls.get(name)
        record[f"gain of {name}"] = None if values is None else paired_difference(values, line.base).mean
    joined = {"base_values": line.base, "aligned_values": line.aligned}
    return record | {name: ";".join(f"{value:.6g}" for value in values) for name, values in joined.items()}
