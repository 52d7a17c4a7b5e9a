"""The paper's Table 2, incremental object detection, as a plan of detection runs.

Detectors are asked for when a plan is made: to import this module, no torchvision is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elign.lab.data.fetch import data_dir
from elign.lab.data.protocol import make_protocol
from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.metrics import curve
from elign.lab.evaluation.scoring import Row
from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.kinds import DETECTION
from elign.lab.report import paper
from elign.lab.reproduce.base_runs import Evaluation, base_run, evaluation
from elign.lab.reproduce.comparison import terms
from elign.lab.reproduce.detection_scale import (
    STAND_INS,
    differences,
    printed_protocol,
    published_config,
    published_settings,
)
from elign.lab.reproduce.detection_sheet import PARTS, Precisions, precision_sheet
from elign.lab.reproduce.grid import command, jobs_of, shared_first_tasks
from elign.lab.reproduce.jobs import Experiment
from elign.lab.reproduce.request import Request
from elign.lab.reproduce.scale import scale_note
from elign.lab.reproduce.sheet import Sheet
from elign.lab.reproduce.store import Store

LEARNERS = ("joint", "finetune", "ilod", "faster-ilod", "ore", "iod")
"""The printed ones, in the order of the table."""

SHOWN = ("eli/oracle", "eli/by-prediction", "eli/by-energy", "eli/all", "mean-shift/oracle", "oracle-mask")
"""The readings of iOD's detectors that the table has."""

FIRST = "first task only"
"""What stands for a learner where the second task was not learned."""

_ALIGNED, _CLASSIFIER = "iod", "detector"
_CLASSES = {"digit-scenes": 10, "voc2007": 20}
_TITLE = "Table 2: incremental object detection"

_READ = (
    "old, new, all: mean average precision over the classes before the last task, of the last task, and of both, after "
    "the last task; the printed old and new are means of the printed precisions of classes"
)
_TRAINED = (
    "here all learners have the same detector and epochs; the printed ones of Shmelkov et al. (ilod) and Faster ILOD "
    "have detectors of their own, and iOD trains the second task of each split for another number of iterations"
)
_LEAK = (
    "the printed numbers of ELI used more of the test annotations than our eli/oracle: in the authors' code true boxes "
    "are appended to the proposals, which are then sampled by how they match; here proposals are the detector's own"
)
_GAIN = (
    "printed gains are over the numbers that iOD's authors printed; the detectors that ELI was put on reach 67.3, 69.6 "
    "and 70.4 by themselves, as their authors say, and in 15+5 ELI has another threshold of non-maximum suppression"
)
_MARK = (
    "† uses test annotations: it knows of each region whether it lies on an object of an old class, and nothing else"
)


@dataclass(frozen=True)
class Line:
    """The runs of a learner on a split.

    Args:
        protocol: The split.
        learner: The learner.
        readings: One evaluation for each seed.
    """

    protocol: str
    learner: str
    readings: tuple[Evaluation, ...]


def table2(request: Request) -> Experiment:
    """Six learners of detectors on three splits, and the readings of iOD with and without ELI.

    Raises:
        ConfigError: A setting is wrong, or there is no usual split of the data.
        ProtocolError: A split is not one of the data's classes.
    """
    data = _data(request)
    lines = [
        Line(protocol, learner, _over_seeds(request, learner, data, protocol))
        for protocol in _protocols(request, data)
        for learner in request.learners or LEARNERS
    ]
    store = Store(request.out, DETECTION)
    planned = [reading for line in lines for reading in line.readings]

    def sheet() -> Sheet:
        measured = [measured for line in lines for measured in (*_first(line, lines, store), *_measure(line, store))]
        return precision_sheet(
            "table2", f"{_TITLE}, {data}", measured, notes=_notes(request, lines), command=command("table2", request)
        )

    remarks = shared_first_tasks("table2", [reading.run for reading in planned])
    return Experiment("table2", _TITLE, jobs_of(planned, store), sheet, request, remarks, _missing(request, data))


def _data(request: Request) -> str:
    if len(request.data) > 1:
        raise ConfigError(f"table2 has one data set at a time: choose one of {', '.join(request.data)}.")
    return request.data[0] if request.data else "voc2007" if request.preset == "paper" else "digit-scenes"


def _protocols(request: Request, data: str) -> tuple[str, ...]:
    usual = {"digit-scenes": tuple(STAND_INS), "voc2007": paper.table2_protocols()}
    chosen = request.protocols or usual.get(data)
    if chosen is None:
        raise ConfigError(f"data={data} has no usual splits: give protocol=, how many classes each task brings (15+5).")
    if data in _CLASSES:
        for name in chosen:
            make_protocol(name, _CLASSES[data])  # raises where it does not fit
    return chosen


def _over_seeds(request: Request, learner: str, data: str, protocol: str) -> tuple[Evaluation, ...]:
    """The same evaluation for each seed; at the published scale with the published settings of the split."""
    settings = request.settings
    # Of the other learners nothing is shown that depends on an aligner.
    aligner = request.aligner if learner == _ALIGNED else ()
    if request.preset == "paper":
        settings = (*settings, *published_settings(protocol, settings))
    return tuple(
        evaluation(
            base_run(learner, data, protocol, preset=request.preset, seed=seed, settings=settings, kind=DETECTION),
            aligner,
        )
        for seed in range(request.seeds)
    )


def _missing(request: Request, data: str) -> tuple[str, ...]:
    if data != "voc2007" or request.value("data.path") is not None:
        return ()
    # Only where it may be asked for: detectors need a library that others do without.
    from elign.lab.detection.data.voc import VOC_PLACES, find_voc

    root = data_dir(request.value("data.data_dir"))
    if find_voc(root) is not None:
        return ()
    places = " or ".join(str(root / place) for place in VOC_PLACES)
    return (f"the data set voc2007 is not in {places}: put it there, or give data.path=FOLDER or data=digit-scenes",)


def _measure(line: Line, store: Store) -> list[Precisions]:
    """The line of a learner and, where the paper aligns it, one for each reading."""
    rows = [store.results(reading).rows for reading in line.readings]
    beside = printed_protocol(line.protocol) or ""
    base = _values(rows, "base")
    found = [Precisions(line.protocol, line.learner, base, printed=paper.table2(line.learner, beside))]
    if line.learner != _ALIGNED:
        return found
    for name in SHOWN:
        printed, gain = paper.NO_PRECISION, None
        if name == "eli/oracle":
            printed, gain = paper.table2(f"{_ALIGNED}+eli", beside), paper.table2_gain(beside).gain
        marked = name if READINGS[name].label_free else f"{name} †"
        found.append(Precisions(line.protocol, line.learner, _values(rows, name), marked, base, printed, gain))
    return found


def _first(line: Line, lines: Sequence[Line], store: Store) -> list[Precisions]:
    """The detectors of the first of two tasks, which stand before the first learner that learns the second from them.

    Learners that begin in a way of their own have others, which are not shown.
    """
    from elign.lab.detection.learners import LEARNERS as KINDS

    here = [each for each in lines if each.protocol == line.protocol]
    plain = [each for each in here if KINDS[each.learner].plain_first_task]
    if not plain or line is not next((each for each in here if each.learner != "joint"), None):
        return []
    curves = [curve(store.results(reading).rows, "base", _CLASSIFIER) for reading in plain[0].readings]
    if any(len(each) != 2 for each in curves):
        return []
    values = {"old": tuple(100 * each[0].accuracy for each in curves)}
    return [Precisions(line.protocol, FIRST, values, printed=paper.table2_first(printed_protocol(line.protocol) or ""))]


def _values(rows: Sequence[Sequence[Row]], reading: str) -> dict[str, tuple[float, ...]]:
    return {part: tuple(precision(one, reading, part) for one in rows) for part in PARTS}


def precision(rows: Sequence[Row], reading: str, part: str) -> float:
    """Mean average precision in percent after the last task, over old, new or all classes."""
    last = curve(rows, reading, _CLASSIFIER)[-1]
    return 100 * float(getattr(last, "accuracy" if part == "all" else part))


def _notes(request: Request, lines: Sequence[Line]) -> tuple[str, ...]:
    pairs = []
    for line in lines:
        # A split that the paper does not have stands beside the middle one, which has the usual aligner.
        published = published_config(line.learner, printed_protocol(line.protocol) or "15+5")
        aligner = line.readings[0].aligner if line.learner == _ALIGNED else published.aligner
        pairs.append((replace(line.readings[0].run.config, aligner=aligner), published))
    protocols = list(dict.fromkeys(line.protocol for line in lines))
    stand_ins = [f"{STAND_INS[name]} beside {name}" for name in protocols if name in STAND_INS]
    alone = [name for name in protocols if printed_protocol(name) is None]
    aligned = any(line.learner == _ALIGNED for line in lines)
    notes = [scale_note(request.preset, differences(pairs))]
    if stand_ins:
        notes.append(f"printed numbers are of VOC 2007 and stand by position only: {', '.join(stand_ins)}")
    if alone:
        notes.append(f"the paper prints nothing for {', '.join(alone)}")
    notes += [_TRAINED, _READ, *([_LEAK, _GAIN, _MARK] if aligned else [])]
    return (*notes, terms({request.seeds}, "mean average precision"))
