"""Figures of the main number of runs: task by task, experiments beside each other."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from html import escape
from itertools import accumulate

import numpy as np

from elign.lab.evaluation.catalogue import DEFAULT
from elign.lab.report.figure import LEGEND_ABOVE, Figure, Spec, axis, floats, layout
from elign.lab.report.run_readings import (
    FREE_ELI,
    MASK,
    ORACLE,
    Line,
    best,
    lines,
    marked,
    note,
)
from elign.lab.report.runs import Experiment, measure_of
from elign.lab.report.spread import deviation, mean_text

_LABEL_WIDTH = 20


def _band(means: Sequence[float], spreads: Sequence[float], tasks: Sequence[int], line: Line) -> Spec:
    """The area of one standard deviation about a curve: there along its upper edge, back along the lower one."""
    upper = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    lower = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*tasks, *reversed(tasks)],
        "y": floats(np.asarray([*upper, *reversed(lower)]), 2),
        "fill": "toself",
        "fillcolor": f"@{line.colour}/0.13",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": line.reading,
    }


def curves_figure(experiment: Experiment) -> Figure:
    """Accuracy on all classes seen, after each task, of the readings that matter most."""
    tasks, measure = list(range(1, experiment.tasks + 1)), experiment.terms.measure
    classes = list(accumulate(experiment.sizes))[: experiment.tasks]
    data: list[Spec] = []
    said: list[str] = []
    for line in lines(experiment):
        curves = list(zip(*experiment.curves(line.reading), strict=True))
        means = [statistics.fmean(values) for values in curves]
        # Six bands over each other would be mud: those of the dashed lines are left to the table.
        if len(experiment.runs) > 1 and line.dash == "solid":
            data.append(_band(means, [deviation(values) for values in curves], tasks, line))
        said.append(f"{line.label}: {', '.join(f'{mean:.1f}' for mean in means)}")
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": line.label,
                "x": tasks,
                "y": floats(np.asarray(means), 2),
                "text": [
                    f"{mean_text(values)} % of {seen} classes" for values, seen in zip(curves, classes, strict=True)
                ],
                "line": {"color": f"@{line.colour}", "dash": line.dash, "width": 2.2},
                "marker": {"color": f"@{line.colour}", "size": 6},
                "legendgroup": line.reading,
                "hovertemplate": f"{escape(line.label, quote=False)}, task %{{x}}: %{{text}}<extra></extra>",
            }
        )
    spread = " Shaded: one standard deviation over the seeds, for solid lines." if len(experiment.runs) > 1 else ""
    return Figure(
        {
            "data": data,
            "layout": layout(
                xaxis=axis("task", tickvals=tasks, range=[0.8, max(tasks) + 0.2], showgrid=False, zeroline=False),
                yaxis=axis(f"{measure} (%)", zeroline=False),
                legend=LEGEND_ABOVE,
            ),
        },
        f"Line chart of the {measure} in % on all classes seen so far after tasks 1 to {experiment.tasks}. "
        f"{'; '.join(said)}.",
        f"{measure.capitalize()} {experiment.terms.seen}, after each task. Nothing is aligned after the first "
        f"task.{spread} {note([experiment])} The best label-free readings were chosen by these very numbers.",
        kind="curves",
    )


def comparison_figure(experiments: Sequence[Experiment]) -> Figure:
    """Average accuracy of the main readings of each experiment, one line of dots for each."""
    measure = measure_of(experiments)
    rows = list(range(len(experiments)))
    looks = (
        ("base", "before", "circle"),
        (DEFAULT, "class-7", "square"),
        (ORACLE, "accent", "circle-open"),
        (MASK, "class-1", "diamond-open"),
    )
    names = {"free": "best label-free ELI", DEFAULT: f"{DEFAULT} (label-free default)"}
    chosen: list[dict[str, str | None]] = [
        {**{name: name for name, _, _ in looks}, "free": best(each, FREE_ELI)} for each in experiments
    ]
    data: list[Spec] = []
    for key, colour, symbol in (*looks, ("free", "previous", "circle")):
        points = [
            (row, reading, values)
            for row, each in enumerate(experiments)
            if (reading := chosen[row][key]) is not None and (values := each.values(reading))
        ]
        if not points:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": names.get(key) or marked(key),
                "x": [round(statistics.fmean(values), 2) for _, _, values in points],
                "y": [row for row, _, _ in points],
                "error_x": {
                    "type": "data",
                    "array": [round(deviation(values), 2) for _, _, values in points],
                    "color": f"@{colour}",
                    "thickness": 1.4,
                    "width": 4,
                },
                "text": [f"{marked(reading)} {mean_text(values)} %" for _, reading, values in points],
                "marker": {
                    "color": f"@{colour}",
                    "size": 11,
                    "symbol": symbol,
                    "line": {"width": 2, "color": f"@{colour}"},
                },
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    labels = ["<br>".join(map(escape, textwrap.wrap(each.name, _LABEL_WIDTH))) for each in experiments]
    said = [
        f"{each.name}: "
        + ", ".join(f"{marked(r)} {mean_text(v)}" for r in shown.values() if r and (v := each.values(r)))
        for each, shown in zip(experiments, chosen, strict=True)
    ]
    return Figure(
        {
            "data": data,
            "layout": layout(
                xaxis=axis(f"average {measure} (%)", zeroline=False),
                yaxis=axis(
                    tickvals=rows, ticktext=labels, ticksuffix="  ", range=[len(rows) - 0.5, -0.5], zeroline=False
                ),
                legend=LEGEND_ABOVE,
            ),
        },
        f"Dot plot of the average {measure} in % of each experiment. {'; '.join(said)}.",
        f"Average {measure} over tasks, the first included; bars: one standard deviation over the seeds. "
        f"{note(experiments)}",
        kind="tall" if len(experiments) > 5 else "",
    )
