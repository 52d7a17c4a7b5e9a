"""Figures of what became of each task: accuracy matrices, and the drift of latents."""

from __future__ import annotations

import statistics
from html import escape

import numpy as np

from elign.lab.report.figure import LEGEND_ABOVE, Figure, Spec, axis, floats, layout
from elign.lab.report.run_readings import ALIGNER_COLOURS, marked
from elign.lab.report.runs import Experiment
from elign.lab.report.spread import deviation, mean_text

# More numbers than this do not fit into the cells on a phone.
NUMBERED_TASKS = 11


def matrix_figure(experiment: Experiment, reading: str) -> Figure:
    """Accuracy on what each task brought (across) after each task (down)."""
    terms = experiment.terms
    matrix = experiment.matrix(reading)
    tasks = [str(number) for number in range(1, len(matrix) + 1)]
    numbers = len(matrix) <= NUMBERED_TASKS
    trace: Spec = {
        "type": "heatmap",
        "x": tasks,
        "y": tasks,
        "z": [floats(np.asarray(line), 2) + [None] * (len(matrix) - len(line)) for line in matrix],
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "colorscale": [[0, "@middle"], [1, "@low"]],
        "showscale": not numbers,
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hovertemplate": "task %{x} after task %{y}: %{z:.1f} %<extra></extra>",
    }
    if numbers:
        trace |= {"texttemplate": "%{z:.0f}", "textfont": {"size": 12}}
    last = ", ".join(f"{value:.1f}" for value in matrix[-1])
    learned = ", ".join(f"{line[-1]:.1f}" for line in matrix)
    return Figure(
        {
            "data": [trace],
            "layout": layout(
                title={
                    "text": f"<b>{escape(marked(reading), quote=False)}</b>",
                    "font": {"size": 14},
                    "x": 0.02,
                    "y": 0.98,
                },
                xaxis=axis(f"{terms.of_task} of task", type="category", showgrid=False),
                yaxis=axis("after task", type="category", autorange="reversed", showgrid=False),
                margin={"l": 8, "r": 8, "t": 34, "b": 8},
            ),
        },
        f"{terms.measure.capitalize()} matrix of {marked(reading)} in %. Each task when it was learned: {learned}. The "
        f"same tasks after the last one: {last}.",
        f"{marked(reading)}: down a column one sees what becomes of a task's {terms.of_task.removeprefix('test ')} as "
        "further tasks are learned.",
        kind="matrix",
    )


def drift_figure(experiment: Experiment) -> Figure:
    """Mean distance of old latents from where the previous model had them, after each task and each aligner."""
    data: list[Spec] = []
    said: list[str] = []
    tasks = list(range(2, experiment.tasks + 1))
    drifts = experiment.drift()
    for number, (name, runs) in enumerate(drifts.items()):
        by_task = list(zip(*runs, strict=True))
        means = [statistics.fmean(values) for values in by_task]
        label = "no aligner (base)" if name == "base" else name
        colour = f"@{ALIGNER_COLOURS.get(name, 'soft')}"
        said.append(f"{label}: {', '.join(f'{mean:.3g}' for mean in means)}")
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label,
                # Side by side, so that error bars do not cover each other.
                "x": [round(task + 0.03 * (number - (len(drifts) - 1) / 2), 3) for task in tasks],
                "y": floats(np.asarray(means), 4),
                "text": [f"task {task}: {mean_text(each, 2)}" for task, each in zip(tasks, by_task, strict=True)],
                "error_y": {
                    "type": "data",
                    "array": [round(deviation(values), 4) for values in by_task],
                    "visible": len(runs) > 1,
                    "color": colour,
                    "thickness": 1.2,
                    "width": 4,
                },
                "line": {"color": colour, "width": 2.2, "dash": "solid" if name in ("base", "eli") else "dash"},
                "marker": {"color": colour, "size": 6},
                "hovertemplate": f"{escape(label, quote=False)}, %{{text}}<extra></extra>",
            }
        )
    bars = " Bars: one standard deviation over the seeds." if len(experiment.runs) > 1 else ""
    return Figure(
        {
            "data": data,
            "layout": layout(
                xaxis=axis("after task", tickvals=tasks, showgrid=False, zeroline=False),
                yaxis=axis("distance", rangemode="tozero", zeroline=False),
                legend=LEGEND_ABOVE,
            ),
        },
        f"Line chart of the mean distance of old test images' latents from the previous model's, after tasks 2 to "
        f"{experiment.tasks}. {'; '.join(said)}.",
        "How far the latents of all old test images are from where the model before the task had put them, as they are "
        f"and after each aligner. Below the orange line drift was undone.{bars} Accuracy can rise without that, if "
        "latents only get to the right side of the head's boundaries.",
        kind="curves",
    )
