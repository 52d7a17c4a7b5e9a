"""Runs beside the numbers that the paper prints for their learner, data and protocol."""

from __future__ import annotations

from collections.abc import Sequence

from elign.lab.evaluation.statistics import paired_difference, same_sign
from elign.lab.experiments.published import differences, published_config
from elign.lab.experiments.run_config import from_dict
from elign.lab.report.page import Cell, Grid
from elign.lab.report.paper import NOTHING, Printed, table1
from elign.lab.report.run_readings import ORACLE, marked
from elign.lab.report.runs import Experiment
from elign.lab.report.sections import Section, table, words
from elign.lab.report.spread import CONFIDENCE, gain_text, interval_text, mean_text, printed_text

TITLE = "Against the paper"


def paper_section(experiments: Sequence[Experiment]) -> Section | None:
    """Those experiments that the paper has too, None if there are none."""
    grid = paper_table(experiments)
    return None if grid is None else Section("paper", TITLE, table(grid) + words(paper_notes(experiments), kind="note"))


def paper_table(experiments: Sequence[Experiment]) -> Grid | None:
    """Printed and measured averages and gains, of finished experiments that the paper has; None if there are none."""
    pairs = _printed(experiments)
    if not pairs:
        return None
    aligned = marked(ORACLE)
    header = ["experiment", "base, paper", "base", f"{aligned}, paper", aligned]
    header += ["gain, paper", "gain", f"{CONFIDENCE:.0%} interval", "same sign", "size, of the printed"]
    caption = "Average accuracy over tasks in %, the first included; gains in points, paired by seed (Table 1)"
    return Grid(caption, header, [_row(experiment, printed) for experiment, printed in pairs])


def paper_notes(experiments: Sequence[Experiment]) -> list[str]:
    """In what each of them differs from the published run."""
    notes = []
    for experiment, _ in _printed(experiments):
        config = from_dict(experiment.config)
        theirs = published_config(config.learner.name, config.data.name, config.protocol.name or "")
        found = differences([(config, theirs)])
        if len(experiment.runs) != 3:
            found.append(f"{len(experiment.runs)} seed{'s' if len(experiment.runs) > 1 else ''} instead of 3 runs")
        scale = f"not the paper's scale: {'; '.join(found)}" if found else "the published settings, as far as known"
        notes.append(f"{experiment.name}: {scale}.")
    return notes


def _printed(experiments: Sequence[Experiment]) -> list[tuple[Experiment, Printed]]:
    """Finished experiments with their printed numbers; a later evaluation of a run has another aligner, and none."""
    found = []
    for experiment in experiments:
        config = experiment.config
        printed = table1(config["learner"]["name"], config["data"]["name"], config["protocol"]["name"] or "")
        whole = experiment.tasks == len(experiment.sizes) and experiment.values(ORACLE) is not None
        if printed != NOTHING and whole and "evaluation" not in experiment.runs[0].facts:
            found.append((experiment, printed))
    return found


def _row(experiment: Experiment, printed: Printed) -> list[Cell]:
    base, aligned = experiment.values("base") or [], experiment.values(ORACLE) or []
    gain = paired_difference(aligned, base, confidence=CONFIDENCE)
    ratio = gain.mean / printed.gain if printed.gain else None
    return [
        Cell.words(experiment.name),
        Cell(printed_text(printed.base), printed.base or 0.0),
        Cell(mean_text(base), sum(base)),
        Cell(printed_text(printed.aligned), printed.aligned or 0.0),
        Cell(mean_text(aligned), sum(aligned)),
        Cell(gain_text(printed.gain), printed.gain or 0.0),
        Cell(gain_text(gain.mean), gain.mean),
        Cell.words(interval_text(gain)),
        Cell.words(same_sign(printed.gain, gain) or "–"),
        Cell("–" if ratio is None else f"{ratio:.2f}x", ratio or 0.0),
    ]
