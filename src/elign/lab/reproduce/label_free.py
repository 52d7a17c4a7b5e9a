"""Readings that need no test label beside those that do, on the same models: ours, not the paper's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from elign.lab.evaluation.catalogue import DEFAULT, READINGS
from elign.lab.evaluation.metrics import HEADLESS, Summary, recovered_fraction, summarise
from elign.lab.evaluation.statistics import paired_difference, spread
from elign.lab.evaluation.table import marked
from elign.lab.report.spread import CONFIDENCE, ONE_SEED, gain_text, interval_text, mean_text
from elign.lab.reproduce.base_runs import Evaluation
from elign.lab.reproduce.grid import MARK, command, jobs_of, missing_data, readings_over_seeds, shared_first_tasks
from elign.lab.reproduce.jobs import Experiment
from elign.lab.reproduce.request import LEARNERS, Request
from elign.lab.reproduce.scale import differences, scale_note
from elign.lab.reproduce.sheet import Grid, Sheet, Value, without_constant_labels
from elign.lab.reproduce.store import Store

_PROTOCOLS = ("half-5", "equal-5")
_TOLD = ("eli/oracle", "oracle-mask")
_HEADINGS = ("learner", "data", "protocol", "reading")
_SHOWN = ("average", "average_incremental", "last", "old", "new")
_NONE = "–"

Values = Mapping[str, tuple[float | None, ...]]
"""Of one reading: values over seeds by metric; accuracies in percent."""


def label_free(request: Request) -> Experiment:
    """All label-free readings of three learners, with the oracles that they are measured by."""
    lines = [
        ((learner, data, protocol), readings_over_seeds(request, learner, data, protocol))
        for learner in request.learners or LEARNERS
        for data in request.data_sets("cifar100")
        for protocol in request.splits(data, _PROTOCOLS)
    ]
    store = Store(request.out)
    planned = list(dict.fromkeys(reading for _, readings in lines for reading in readings))
    runs = list(dict.fromkeys(reading.run for reading in planned))

    def made() -> Sheet:
        found = differences([(reading, "cifar100") for reading in planned], seeds=request.seeds)
        blocks = [(labels, measured(readings, store)) for labels, readings in lines]
        notes = (scale_note(request.preset, found), MARK)
        return sheet(blocks, notes=notes, seeds=request.seeds, made_by=command("label-free", request))

    return Experiment(
        "label-free",
        "Readings without test labels",
        jobs_of(planned, store),
        made,
        request,
        shared_first_tasks("label-free", runs),
        missing_data(runs, request),
    )


def measured(readings: Sequence[Evaluation], store: Store) -> dict[str, Values]:
    """The readings to be shown, by name, in the catalogue's order; those that some seed lacks are left out."""
    runs = [
        {(summary.reading, summary.classifier): summary for summary in summarise(store.results(reading).rows)}
        for reading in readings
    ]
    wanted = [(marked(name), (name, classifier)) for name in READINGS for classifier in ("fc", *HEADLESS)]
    wanted += [(f"{name}, nearest mean", (name, "nearest-mean")) for name in ("base", "eli/all")]
    return {
        shown: _values([run[place] for run in runs])
        for shown, place in wanted
        if all(place in run for run in runs) and (READINGS[place[0]].label_free or place[0] in _TOLD)
    }


def _values(summaries: Sequence[Summary]) -> Values:
    found = {name: tuple(getattr(summary, name) for summary in summaries) for name in _SHOWN}
    return {name: tuple(None if value is None else 100 * value for value in values) for name, values in found.items()}


def sheet(
    blocks: Sequence[tuple[tuple[str, ...], Mapping[str, Values]]], *, notes: Sequence[str], seeds: int, made_by: str
) -> Sheet:
    """The table: one block of rows for each learner and protocol.

    Args:
        blocks: Labels, and the readings by name.
        notes: What must be known.
        seeds: How many.
        made_by: What makes it again.
    """
    interval = f"{CONFIDENCE:.0%} interval"
    columns = (
        *(*_HEADINGS, "average", "without the first task", "last", "old", "new"),
        *("gain over base", interval, f"{DEFAULT} above it", f"its {interval}", "recovered"),
    )
    rows = tuple((*labels, name, *_cells(values, of)) for labels, of in blocks for name, values in of.items())
    page, said = without_constant_labels(Grid(columns, rows, len(_HEADINGS)))
    records = [
        {**dict(zip(_HEADINGS, (*labels, name), strict=True)), **_record(values)}
        for labels, of in blocks
        for name, values in of.items()
    ]
    terms = "accuracy in %"
    terms += f"; {ONE_SEED}" if seeds == 1 else f"; mean ± sample standard deviation over {seeds} seeds"
    terms += (
        "; gains and differences in points, of the mean over tasks without the first, paired by seed; recovered: that "
        "gain as a share of the one of oracle-mask, in %"
    )
    return Sheet(
        name="label-free",
        title=", ".join(["Readings without test labels", *said]),
        notes=(*notes, terms),
        page=page,
        terminal=_pieces(page),
        records=tuple(records),
        command=made_by,
    )


_BREAK = re.compile(r" (the|over|above) ")
"""Before which words a heading goes on in a second line."""


def _cells(values: Values, of: Mapping[str, Values]) -> tuple[str, ...]:
    base, default, mask = of["base"], of.get(DEFAULT), of[marked("oracle-mask")]
    three = (side["average_incremental"] for side in (values, base, mask))
    shares = [recovered_fraction(*numbers) for numbers in zip(*three, strict=True)]
    return (
        *(_mean(values[name]) for name in _SHOWN),
        *_difference(values, base),
        *((_NONE, _NONE) if default is None else _difference(default, values)),
        _mean([None if share is None else 100 * share for share in shares]),
    )


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return mean_text(known) if known and len(known) == len(values) else _NONE


def _difference(ones: Values, others: Values) -> tuple[str, str]:
    """A paired difference with its interval; dashes between equals."""
    if ones is others:
        return _NONE, _NONE
    both = zip(ones["average_incremental"], others["average_incremental"], strict=True)
    pairs = [(one, other) for one, other in both if one is not None and other is not None]
    if not pairs:
        return _NONE, _NONE
    found = paired_difference(*zip(*pairs, strict=True), confidence=CONFIDENCE)
    return gain_text(found.mean), _NONE if found.interval is None else interval_text(found)


def _record(values: Values) -> dict[str, Value]:
    record: dict[str, Value] = {"seeds": len(values["average"])}
    for name, numbers in values.items():
        known = [number for number in numbers if number is not None]
        record[name] = spread(known).mean if known else None
        record[f"{name}_std"] = spread(known).std if known else None
    return record


def _pieces(page: Grid) -> tuple[Grid, ...]:
    """The columns in three tables that a terminal has room for: accuracies, gains over base, the default's gains."""
    heads, first = range(page.labels), page.labels

    def piece(*places: int) -> Grid:
        headings = (_BREAK.sub(r"\n\1 ", page.columns[first + place]) for place in places)
        kept = [*heads, *(first + place for place in places)]
        rows = tuple(tuple(row[place] for place in kept) for row in page.rows)
        return Grid((*page.columns[:first], *headings), rows, page.labels)

    return piece(0, 1, 2, 3, 4), piece(5, 6, 9), piece(7, 8)
