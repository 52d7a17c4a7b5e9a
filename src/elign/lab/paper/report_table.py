"""The runs of a report beside the printed numbers; importing this module adds the table to reports."""

from __future__ import annotations

from collections.abc import Sequence

from elign.lab.config import from_dict
from elign.lab.evaluation.methods import marked
from elign.lab.evaluation.statistics import (
    CONFIDENCE,
    gain_text,
    interval_text,
    paired_difference,
    printed_text,
    same_sign,
)
from elign.lab.paper.printed import NOTHING, Printed, printed_cell
from elign.lab.paper.published import differences, published_config
from elign.lab.report.run_groups import ORACLE, RunGroup
from elign.lab.report.table import MISSING, Cell, Column, Table
from elign.lab.report.tables import TABLES, value_cell


@TABLES.register("paper")
def paper_table(groups: Sequence[RunGroup]) -> Table | None:
    """Return printed and measured averages of finished groups that the paper has; None if there are none."""
    pairs = [(group, printed) for group in groups if (printed := _printed(group)) is not None]
    if not pairs:
        return None
    aligned = marked(ORACLE)
    table = Table(
        "Against the paper",
        [
            *(Column("experiment", "left"), "base, paper", "base", f"{aligned}, paper", aligned),
            *("gain, paper", "gain", Column(f"{CONFIDENCE:.0%} interval", "left"), Column("same sign", "left")),
            "size, of the printed",
        ],
        caption="average accuracy over tasks in %, the first included; gains in points, paired by seed (Table 1)",
        footnotes=[_scale(group) for group, _ in pairs],
    )
    for group, printed in pairs:
        base, values = group.values("base"), group.values(ORACLE)
        gain = paired_difference(values, base, confidence=CONFIDENCE)
        ratio = gain.mean / printed.gain if printed.gain else None
        table.add(
            *(group.name, Cell(printed_text(printed.base), printed.base), value_cell(base)),
            *(Cell(printed_text(printed.aligned), printed.aligned), value_cell(values)),
            *(Cell(gain_text(printed.gain), printed.gain), Cell(gain_text(gain.mean), gain.mean)),
            *(interval_text(gain), same_sign(printed.gain, gain)),
            Cell(MISSING if ratio is None else f"{ratio:.2f}x", ratio),
        )
    return table


def _scale(group: RunGroup) -> str:
    """Say how the runs of a group differ from the published ones."""
    config = from_dict(group.config)
    theirs = published_config(config.benchmark, config.learner.name, config.data.name, config.protocol.name or "")
    found = differences([(config, theirs)])
    if len(group.runs) != 3:
        found.append(f"{len(group.runs)} seed{'s' if len(group.runs) > 1 else ''} instead of 3 runs")
    scale = f"not the paper's scale: {'; '.join(found)}" if found else "the published settings, as far as known"
    return f"{group.name}: {scale}."


def _printed(group: RunGroup) -> Printed | None:
    """Return the printed numbers of a finished group; other evaluations of a run have another aligner, and none."""
    config = group.config
    printed = printed_cell(
        "table1", config["learner"]["name"], config["data"]["name"], config["protocol"]["name"] or ""
    )
    finished = group.tasks == len(group.sizes) and group.values(ORACLE)
    evaluation = "evaluation" in group.runs[0].metadata
    return printed if printed != NOTHING and finished and not evaluation else None
