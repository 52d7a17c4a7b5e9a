"""The paper's Table 2, incremental object detection: its plan and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from elign.lab.config.composition import ConfigError
from elign.lab.data.scenario import make_protocol
from elign.lab.evaluation.methods import marked
from elign.lab.evaluation.metrics import Difference, Row, curve, interval_text, paired_difference, same_sign
from elign.lab.paper.comparison import (
    INTERVAL,
    NO_PRECISION,
    Cells,
    PrintedPrecision,
    Value,
    averages_note,
    differences,
    gain_cell,
    in_file,
    label,
    make_table,
    mean_cells,
    numbers,
    page,
    printed_precision,
    published_config,
    scale_note,
    values_text,
)
from elign.lab.paper.plan import Evaluation, Plan, Store, over_seeds, planned_run, training_plan
from elign.lab.paper.request import Grid, Request
from elign.lab.report.run_groups import value_cell
from elign.lab.report.table import Table
from elign.lab.runs.experiment import DETECTION

PRINTED_AS: Mapping[str, str] = {"5+5": "10+10", "8+2": "15+5", "9+1": "19+1"}
"""Splits of ten classes for the splits of twenty, by their position in the table."""

SHOWN = ("eli/oracle", "eli/by-prediction", "eli/by-energy", "eli/all", "mean-shift/oracle", "oracle-mask")
"""The methods for iOD's detectors that the table has."""

FIRST = "first task only"
"""Stands in place of a learner where the second task is not learned."""

PARTS = ("old", "new", "all")
"""Classes that a mean average precision is over: those before the last task, those of it, both."""

_ALIGNED = "iod"
_CLASSES = {"digit-scenes": 10, "voc2007": 20}


@dataclass(frozen=True)
class Precisions:
    """A row of the table: values in percent by part, one for each seed, in the same order everywhere.

    Args:
        method: The method, with its mark if it uses test annotations.
        base: The same detectors without a method; empty for the row of the detectors themselves.
    """

    protocol: str
    learner: str
    values: Mapping[str, tuple[float, ...]]
    method: str = "base"
    base: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    printed: PrintedPrecision = NO_PRECISION

    def gain(self, part: str) -> Difference | None:
        """Return how far the method lies above the base, paired by seed; None for the base itself."""
        return paired_difference(self.values[part], self.base[part]) if self.base else None


def printed_protocol(protocol: str) -> str | None:
    """Return the printed split that stands beside one of ours.

    Example:
        >>> printed_protocol("8+2"), printed_protocol("19+1"), printed_protocol("7+3")
        ('15+5', '19+1', None)
    """
    name = PRINTED_AS.get(protocol, protocol)
    return name if name in numbers()["table2_incremental_detection"]["settings"] else None


def detection_plan(name: str, grid: Grid, request: Request) -> Plan:
    """Plan the learners of detectors on some splits, and the methods for iOD's detectors.

    Raises:
        ConfigError: A setting is wrong, or there is no usual split of the data.
        ProtocolError: A split is not one of the data's classes.
    """
    data, protocols = _data_and_protocols(grid, request)
    # The rows of the other learners do not depend on an aligner.
    lines = [
        (protocol, learner, over_seeds(own, DETECTION, learner, data, protocol))
        for protocol in protocols
        for learner in request.learners or grid.learners
        for own in [request if learner == _ALIGNED else replace(request, aligner=())]
    ]

    def tables(store: Store) -> list[Table]:
        rows = [row for line in lines for row in (*_first(line, lines, request, store), *_measure(line, store))]
        notes = _notes(grid, request, lines)
        return precision_tables(f"{grid.title}, {data}", rows, notes=notes, command=request.command(name))

    planned = [each for _, _, evaluations in lines for each in evaluations]
    return training_plan(name, grid, request, DETECTION, planned, tables)


Line = tuple[str, str, tuple[Evaluation, ...]]
"""Split, learner, and one evaluation for each seed."""


def _data_and_protocols(grid: Grid, request: Request) -> tuple[str, tuple[str, ...]]:
    if len(request.data) > 1:
        raise ConfigError(f"table2 has one data set at a time: choose one of {', '.join(request.data)}.")
    (data,) = request.data or (grid.paper_data if request.preset == "paper" else grid.data)
    usual = {grid.data[0]: grid.protocols, grid.paper_data[0]: grid.paper_protocols}
    protocols = request.protocols or usual.get(data)
    if protocols is None:
        raise ConfigError(f"data={data} has no usual splits: give protocol=, how many classes each task brings (15+5).")
    if data in _CLASSES:
        for name in protocols:
            make_protocol(name, _CLASSES[data])  # raises where it does not fit
    return data, protocols


def _measure(line: Line, store: Store) -> list[Precisions]:
    """Return the row of a learner and, where the paper aligns it, one for each method."""
    protocol, learner, evaluations = line
    rows = [store.rows(each) for each in evaluations]
    beside = printed_protocol(protocol) or ""
    base = _values(rows, "base")
    found = [Precisions(protocol, learner, base, printed=printed_precision(learner, beside))]
    for name in SHOWN if learner == _ALIGNED else ():
        printed = printed_precision(f"{_ALIGNED}+eli", beside) if name == "eli/oracle" else NO_PRECISION
        found.append(Precisions(protocol, learner, _values(rows, name), marked(name), base, printed))
    return found


def _first(line: Line, lines: Sequence[Line], request: Request, store: Store) -> list[Precisions]:
    """Return the detectors of the first of two tasks; they stand before the first learner of the second one.

    Learners whose first task is not plain training have other detectors, which are not shown.
    """
    protocol = line[0]
    here = [each for each in lines if each[0] == protocol]
    if line is not next((each for each in here if each[1] != "joint"), None):
        return []
    plain = planned_run(request, DETECTION, "finetune", line[2][0].config.data.name, protocol, 0).first_task
    same = [each for each in here if each[2][0].run.first_task == plain]
    if not same:
        return []
    curves = [curve(store.rows(each), "base", "detector") for each in same[0][2]]
    if any(len(each) != 2 for each in curves):
        return []
    values = {"old": tuple(100 * each[0].accuracy for each in curves)}
    return [Precisions(protocol, FIRST, values, printed=printed_precision("first", printed_protocol(protocol) or ""))]


def _values(seeds: Sequence[Sequence[Row]], method: str) -> dict[str, tuple[float, ...]]:
    return {part: tuple(precision(rows, method, part) for rows in seeds) for part in PARTS}


def precision(rows: Sequence[Row], method: str, part: str) -> float:
    """Return the mean average precision in percent after the last task, over old, new or all classes."""
    last = curve(rows, method, "detector")[-1]
    return 100 * float(getattr(last, "accuracy" if part == "all" else part))


def _notes(grid: Grid, request: Request, lines: Sequence[Line]) -> list[str]:
    pairs = []
    for protocol, learner, evaluations in lines:
        # A split that the paper does not have stands beside the middle one, which has the usual aligner.
        published = published_config(DETECTION, learner, "voc2007", printed_protocol(protocol) or "15+5")
        aligner = evaluations[0].config.aligner if learner == _ALIGNED else published.aligner
        pairs.append((evaluations[0].config.replace(aligner=aligner), published))
    notes = [scale_note(request.preset, differences(pairs))]
    protocols = list(dict.fromkeys(protocol for protocol, _, _ in lines))
    if renamed := [f"{PRINTED_AS[name]} beside {name}" for name in protocols if name in PRINTED_AS]:
        notes.append(f"printed numbers are of VOC 2007 and stand by position only: {', '.join(renamed)}")
    if alone := [name for name in protocols if printed_protocol(name) is None]:
        notes.append(f"the paper prints nothing for {', '.join(alone)}")
    notes += grid.notes
    notes += grid.aligned_notes if any(learner == _ALIGNED for _, learner, _ in lines) else ()
    return [*notes, averages_note({request.seeds}, "mean average precision")]


def precision_tables(title: str, lines: Sequence[Precisions], *, notes: Sequence[str], command: str) -> list[Table]:
    """Make the table, and one with the gains of the methods for the terminal."""
    rows: list[Cells] = []
    gains: list[Cells] = []
    # The notes say that one seed has no interval.
    hidden = INTERVAL if all(len(line.values["all"]) == 1 for line in lines if line.base) else ""
    for line in lines:
        protocol, method = (label("protocol"), line.protocol), (label("method"), line.method)
        row: Cells = [protocol, (label("learner"), line.learner), method]
        for part in PARTS:
            row.append((page(f"{part}, paper", terminal=part == "all"), getattr(line.printed, part)))
            row.append((page(part, terminal=True), value_cell(line.values.get(part, ()))))
        more = _gains(line)
        rows.append([*row, *((page(name), cell) for name, cell in more.items()), *_record(line)])
        shown = [(page(name, terminal=True), cell) for name, cell in more.items() if name != hidden]
        gains += [[protocol, method, *shown]] if line.base else []
    main = make_table(title, rows, notes=notes, command=command)
    return [main, make_table("Gains", gains)] if gains else [main]


def _gains(line: Precisions) -> dict[str, Value]:
    gain = line.gain("all")
    return {
        "gain, paper": gain_cell(line.printed.gain if gain else None),
        "gain": gain_cell(gain),
        INTERVAL: interval_text(gain) if gain else None,
        "same sign": same_sign(line.printed.gain, gain) if gain else None,
        **{f"gain of {part}": gain_cell(line.gain(part)) for part in ("old", "new")},
    }


def _record(line: Precisions) -> Cells:
    cells = in_file({"seeds": len(line.values["old"])})
    for part in PARTS:
        values = line.values.get(part, ())
        cells += in_file({f"paper_{part}": getattr(line.printed, part), f"{part}_values": values_text(values)})
        cells += mean_cells(part, values)
    cells += in_file({"paper_gain": line.printed.gain})
    for part in PARTS:
        gain = line.gain(part)
        low, high = (gain.interval if gain else None) or (None, None)
        cells += in_file(
            {f"gain_{part}": gain.mean if gain else None, f"gain_{part}_low": low, f"gain_{part}_high": high}
        )
    # The last part is all classes.
    return cells + in_file({"same_sign": same_sign(line.printed.gain, gain) if gain else None})
