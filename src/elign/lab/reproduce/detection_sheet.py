"""Average precisions of detectors over seeds, beside the printed ones, as a table. Pure functions of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elign.lab.evaluation.statistics import Difference, paired_difference, same_sign, spread
from elign.lab.report.paper import NO_PRECISION, PrintedPrecision
from elign.lab.report.spread import CONFIDENCE, gain_text, interval_text, mean_text
from elign.lab.reproduce.sheet import Grid, Sheet, Value

PARTS = ("old", "new", "all")
"""Over which classes a mean average precision is: those before the last task, those of it, both."""

_NONE = "–"
_BASE = "base"


@dataclass(frozen=True)
class Precisions:
    """A line of the table; in percent, one value for each seed, in the same order everywhere.

    Args:
        protocol: Its split.
        learner: Its learner.
        values: By part; a part that has no value is left out.
        reading: How the detectors were read, with its mark if it uses test annotations.
        base: The same detectors as they are, by part; empty for the line that says just that.
        printed: What the paper has for it.
        printed_gain: Of all classes.
    """

    protocol: str
    learner: str
    values: Mapping[str, tuple[float, ...]]
    reading: str = _BASE
    base: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    printed: PrintedPrecision = NO_PRECISION
    printed_gain: float | None = None

    def gain(self, part: str) -> Difference | None:
        """How far the reading lies above the base, seed by seed; None for the base itself."""
        if not self.base:
            return None
        return paired_difference(self.values[part], self.base[part], confidence=CONFIDENCE)


def precision_sheet(name: str, title: str, lines: Sequence[Precisions], *, notes: Sequence[str], command: str) -> Sheet:
    """Put lines together.

    Args:
        name: Of the files.
        title: Above the table.
        lines: What was measured.
        notes: Differences of scale, and what else must be known.
        command: What makes the table again.
    """
    read = [line for line in lines if line.base]
    pieces = [_precisions([line for line in lines if not line.base])]
    if read:
        pieces += [_gains(read), _parts(read)]
    return Sheet(
        name=name,
        title=title,
        notes=tuple(notes),
        page=_page(lines),
        terminal=tuple(pieces),
        records=tuple(_record(line) for line in lines),
        command=command,
    )


def _page(lines: Sequence[Precisions]) -> Grid:
    headings = tuple(heading for part in PARTS for heading in (f"{part}, paper", part))
    gains = ("gain, paper", "gain", f"{CONFIDENCE:.0%} interval", "same sign", "gain of old", "gain of new")
    return Grid(
        ("protocol", "learner", "reading", *headings, *gains),
        tuple((line.protocol, line.learner, line.reading, *_cells(line), *_gain_cells(line)) for line in lines),
        3,
    )


def _cells(line: Precisions) -> tuple[str, ...]:
    """Printed and measured, for each part."""
    cells: list[str] = []
    for part in PARTS:
        printed = getattr(line.printed, part)
        measured = mean_text(line.values[part]) if part in line.values else _NONE
        cells += [_NONE if printed is None else f"{printed:.1f}", measured]
    return tuple(cells)


def _gain_cells(line: Precisions) -> tuple[str, ...]:
    gain = line.gain("all")
    if gain is None:
        return (_NONE,) * 6
    return (
        gain_text(line.printed_gain),
        gain_text(gain.mean),
        interval_text(gain),
        same_sign(line.printed_gain, gain) or _NONE,
        *(gain_text(paired_difference(line.values[part], line.base[part]).mean) for part in ("old", "new")),
    )


def _precisions(lines: Sequence[Precisions]) -> Grid:
    """Detectors as they are."""
    headings = tuple(heading for part in PARTS for heading in (f"{part},\npaper", part))
    rows = tuple((line.protocol, line.learner, *_narrow(_cells(line))) for line in lines)
    return Grid(("protocol", "learner", *headings), rows, 2)


def _gains(lines: Sequence[Precisions]) -> Grid:
    """Their readings, on all classes."""
    headings = ["protocol", "reading of iod", "gain,\npaper", "gain", "interval", "same\nsign"]
    rows = [[line.protocol, line.reading, *_gain_cells(line)[:4]] for line in lines]
    if all(len(line.values["all"]) == 1 for line in lines):
        # The notes say that there is no interval; the room is for numbers.
        for cells in (headings, *rows):
            cells.pop(4)
    return Grid(tuple(headings), tuple(map(tuple, rows)), 2)


def _parts(lines: Sequence[Precisions]) -> Grid:
    """Their readings, on old and new classes."""
    headings = ("protocol", "reading of iod", *PARTS, "gain\nof old", "gain\nof new")
    rows = tuple((line.protocol, line.reading, *_narrow(_cells(line)[1::2]), *_gain_cells(line)[4:]) for line in lines)
    return Grid(headings, rows, 2)


def _narrow(cells: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.replace(" ± ", "±") for cell in cells)


def _record(line: Precisions) -> dict[str, Value]:
    record: dict[str, Value] = {"protocol": line.protocol, "learner": line.learner, "reading": line.reading}
    record["seeds"] = len(line.values["old"])
    for part in PARTS:
        record[f"paper_{part}"] = getattr(line.printed, part)
        if part in line.values:
            found = spread(line.values[part])
            record |= {part: found.mean, f"{part}_std": found.std}
            record[f"{part}_values"] = ";".join(f"{value:.6g}" for value in line.values[part])
    record["paper_gain"] = line.printed_gain
    for part in PARTS:
        gain = line.gain(part)
        if gain is not None:
            low, high = gain.interval or (None, None)
            record |= {f"gain_{part}": gain.mean, f"gain_{part}_low": low, f"gain_{part}_high": high}
            if part == "all":
                record["same_sign"] = same_sign(line.printed_gain, gain)
    return record
