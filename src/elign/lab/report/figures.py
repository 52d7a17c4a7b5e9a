"""The figures of a report, each as one plotly specification; colours are names of the palette, such as `@ink`."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elign.lab.evaluation.methods import METHODS, default_of, marked
from elign.lab.evaluation.statistics import deviation, mean_text
from elign.lab.report.run_groups import (
    MASK,
    ORACLE,
    PREVIOUS,
    RunGroup,
    baselines,
    free_eli,
    label_note,
    measure_of,
)

PALETTE: Mapping[str, tuple[str, str]] = {
    # name: (light, dark)
    "page": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#59636e", "#a3adb8"),
    "grid": ("#dfe3e8", "#333a44"),
    "accent": ("#0067a3", "#5ab0f0"),
    "control": ("#7f8fa3", "#7f90a6"),
    "reference": ("#c3cbd5", "#4c5663"),
    "new": ("#8d959e", "#7b858f"),
    "mark": ("#1b1f24", "#ffffff"),
    "before": ("#d55e00", "#ff8f50"),
    "aligned": ("#0067a3", "#5ab0f0"),
    "previous": ("#009e73", "#35c9a2"),
    "low": ("#0b62a4", "#6bb8f5"),
    "middle": ("#f7f7f7", "#22262d"),
    "high": ("#b5460f", "#ff9a5c"),
    "class-0": ("#0072b2", "#4da6e8"),
    "class-1": ("#e69f00", "#f2b84b"),
    "class-2": ("#009e73", "#2fc7a0"),
    "class-3": ("#d55e00", "#ff8347"),
    "class-4": ("#b85c94", "#e69cc8"),
    "class-5": ("#56b4e9", "#a6dcff"),
    "class-6": ("#8a7a00", "#e6d94a"),
    "class-7": ("#3d3d3d", "#f2f2f2"),
}

CLASS_COLOURS = sum(name.startswith("class-") for name in PALETTE)

_METHOD_COLOURS = {"accent": "accent", "reference": "before", "baseline": "control", "oracle": "class-1"}
"""Colours of the palette for the colours that methods are registered with."""

_ALIGNER_COLOURS = {
    "base": "before",
    "eli": "accent",
    "mean-shift": "class-1",
    "ridge": "previous",
    "random-shift": "class-4",
    "untrained": "control",
}


def method_colour(name: str) -> str:
    """Return the colour of a method in a specification."""
    return f"@{_METHOD_COLOURS.get(METHODS[name].colour, 'soft')}"


def class_colour(position: int) -> str:
    """Return the colour of the class at this position among the old classes; colours repeat after eight."""
    return f"@class-{position % CLASS_COLOURS}"


def palette_css() -> str:
    """Return style rules that define each colour as a variable.

    The system's preference decides; `data-theme` on the root element, set by the page's button, overrules it.
    """
    day = "".join(f"--{name}:{colours[0]};" for name, colours in PALETTE.items()) + "color-scheme:light;"
    night = "".join(f"--{name}:{colours[1]};" for name, colours in PALETTE.items()) + "color-scheme:dark;"
    return (
        f":root{{{day}}}\n"
        f"@media (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{night}}}}}\n"
        f":root[data-theme=dark]{{{night}}}\n"
    )


Spec = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
LEGEND_ABOVE: Spec = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "@ink"}}


@dataclass(frozen=True)
class Frames:
    """What changes when the slider of a figure moves.

    Args:
        traces: The traces that change.
        x: Places, for each step and trace.
        y: The same.
        symbols: Of each point.
        texts: What is said about each step.
    """

    traces: list[int]
    x: list[list[list[float | None]]]
    y: list[list[list[float | None]]]
    symbols: list[list[list[str]]]
    texts: list[str]


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        data: The traces, for plotly.
        layout: Axes, legend and so on, for plotly.
        alternative: Its numbers, for a reader who cannot see it.
        caption: What it shows and what that means.
        kind: Which height the style sheet gives it; empty for the usual one.
        frames: What its slider steps through, if it has one.
    """

    data: list[Spec]
    layout: Spec
    alternative: str
    caption: str
    kind: str = ""
    frames: Frames | None = None

    @property
    def spec(self) -> Spec:
        """The specification for plotly."""
        return {"data": self.data, "layout": self.layout}

    def at(self, step: int) -> Figure:
        """Return the figure at a step of its frames, with the text of that step as its title."""
        if self.frames is None:
            return self
        data = [dict(trace) for trace in self.data]
        for place, number in enumerate(self.frames.traces):
            symbols = {**data[number]["marker"], "symbol": self.frames.symbols[step][place]}
            data[number] |= {"x": self.frames.x[step][place], "y": self.frames.y[step][place], "marker": symbols}
        title = {"text": plotly_text(self.frames.texts[step]).replace(", ", "<br>", 1)}
        return replace(self, data=data, layout={**self.layout, "title": title}, frames=None)


def axis(title: str = "", **more: object) -> Spec:
    """Return an axis in the colours of the page."""
    text: Spec = {"title": {"text": title, "font": {"size": 13}}} if title else {}
    base = {"gridcolor": "@grid", "zerolinecolor": "@grid", "linecolor": "@grid", "automargin": True}
    return {**base, "fixedrange": True, **text, **more}


def _row_axis(texts: Sequence[str], **more: bool) -> Spec:
    """Return an axis of named rows, the first one above."""
    rows = list(range(len(texts)))
    spec = axis(tickvals=rows, ticktext=texts, ticksuffix="  ", range=[len(rows) - 0.5, -0.5], zeroline=False)
    return {**spec, **more}


def layout(**more: object) -> Spec:
    """Return what all figures share: transparent ground, the font of the page, a legend below."""
    base: Spec = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": "@ink"},
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "hoverlabel": {"bgcolor": "@panel", "bordercolor": "@grid", "font": {"color": "@ink", "family": FONT}},
        "legend": {"orientation": "h", "x": 0, "y": -0.04, "yanchor": "top", "font": {"color": "@ink"}},
        "dragmode": False,
        # Keeps what the reader hid or zoomed when the theme changes.
        "uirevision": "kept",
    }
    return {**base, **more}


def floats(values: NDArray[Any] | Sequence[float], digits: int = 3) -> list[float | None]:
    """Round numbers for JSON, which has no NaN: NaN becomes null and leaves a gap."""
    return [round(float(value), digits) if np.isfinite(value) else None for value in values]


def plotly_text(text: str) -> str:
    """Escape a text for plotly, which reads some HTML in labels but not the entities of quotation marks."""
    return escape(text, quote=False)


def _line(
    name: str, x: Sequence[float], y: Sequence[float | None], texts: Sequence[str], colour: str, dash: str
) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": list(texts),
        "line": {"color": colour, "dash": dash, "width": 2.2},
        "marker": {"color": colour, "size": 6},
        "hovertemplate": f"{plotly_text(name)}, %{{text}}<extra></extra>",
    }


def _bars(values: Sequence[Sequence[float]], colour: str) -> Spec:
    """Return error bars of one standard deviation."""
    return {
        "type": "data",
        "array": [round(deviation(each), 4) for each in values],
        "visible": any(len(each) > 1 for each in values),
        "color": colour,
        "thickness": 1.4,
        "width": 4,
    }


def _band(means: Sequence[float], deviations: Sequence[float], tasks: Sequence[int], colour: str, group: str) -> Spec:
    upper = [mean + reach for mean, reach in zip(means, deviations, strict=True)]
    lower = [mean - reach for mean, reach in zip(means, deviations, strict=True)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*tasks, *reversed(tasks)],
        "y": floats([*upper, *reversed(lower)], 2),
        "fill": "toself",
        "fillcolor": f"{colour}/0.14",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": group,
    }


def main_methods(group: RunGroup) -> dict[str, tuple[str, str]]:
    """Return the few methods that figures follow, those that the group has, with label and dash."""
    free, baseline = group.best(free_eli()), group.best(baselines(uses_labels=False))
    chosen = {
        default_of(group.methods()): ("label-free default", "solid"),
        "base": ("", "solid"),
        free: ("best label-free ELI", "dash"),
        baseline: ("best label-free baseline", "dash"),
        ORACLE: ("", "solid"),
        MASK: ("", "dash"),
        PREVIOUS: ("", "dot"),
    }
    present = group.summaries()
    return {
        name: (f"{marked(name)} ({role})" if role else marked(name), dash)
        for name, (role, dash) in chosen.items()
        if name is not None and name in present
    }


def curves_figure(group: RunGroup) -> Figure:
    """Draw the accuracy after each task of the main methods."""
    tasks, names = list(range(1, group.tasks + 1)), group.metric_names
    classes = list(accumulate(group.sizes))[: group.tasks]
    several = len(group.runs) > 1
    data: list[Spec] = []
    said: list[str] = []
    for name, (label, dash) in main_methods(group).items():
        by_task = list(zip(*group.curves(name), strict=True))
        means = [statistics.fmean(values) for values in by_task]
        colour = method_colour(name)
        # Six bands over each other cannot be told apart: dashed lines have none.
        if several and dash == "solid":
            data.append(_band(means, [deviation(values) for values in by_task], tasks, colour, name))
        texts = [
            f"task {task}: {mean_text(values)} % of {seen} classes"
            for task, values, seen in zip(tasks, by_task, classes, strict=True)
        ]
        data.append({**_line(label, tasks, floats(means, 2), texts, colour, dash), "legendgroup": name})
        said.append(f"{label}: {', '.join(f'{mean:.1f}' for mean in means)}")
    shaded = " Shaded: one standard deviation over the seeds, for solid lines." if several else ""
    return Figure(
        data,
        layout(
            xaxis=axis("task", tickvals=tasks, range=[0.8, max(tasks) + 0.2], showgrid=False, zeroline=False),
            yaxis=axis(f"{names.measure} (%)", zeroline=False),
            legend=LEGEND_ABOVE,
        ),
        f"Line chart of the {names.measure} in % on all classes seen so far after tasks 1 to {group.tasks}. "
        f"{'; '.join(said)}.",
        f"{names.measure.capitalize()} {names.seen}, after each task. Nothing is aligned after the first task.{shaded} "
        f"{label_note([group])} The best label-free methods were chosen by these numbers.",
        kind="curves",
    )


def comparison_figure(groups: Sequence[RunGroup]) -> Figure:
    """Draw the average accuracy of the main methods, one line of dots for each group."""
    measure = measure_of(groups)
    default = default_of({name for group in groups for name in group.methods()})
    looks = (
        ("base", "base", method_colour("base"), "circle"),
        (default, f"{default} (label-free default)", method_colour(default), "square"),
        (ORACLE, marked(ORACLE), method_colour(ORACLE), "circle-open"),
        (MASK, marked(MASK), method_colour(MASK), "diamond-open"),
        (None, "best label-free ELI", "@accent", "circle"),
    )
    data: list[Spec] = []
    said: list[list[str]] = [[] for _ in groups]
    for method, label, colour, symbol in looks:
        points: list[tuple[int, str, list[float]]] = []
        for row, group in enumerate(groups):
            name = method or group.best(free_eli())
            if name and (values := group.values(name)):
                points.append((row, f"{marked(name)} {mean_text(values)} %", values))
                said[row].append(f"{marked(name)} {mean_text(values)}")
        if points:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": label,
                    "x": [round(statistics.fmean(values), 2) for _, _, values in points],
                    "y": [row for row, _, _ in points],
                    "error_x": _bars([values for _, _, values in points], colour),
                    "text": [text for _, text, _ in points],
                    "marker": {"color": colour, "size": 11, "symbol": symbol, "line": {"width": 2, "color": colour}},
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )
    labels = ["<br>".join(map(escape, textwrap.wrap(group.name, _LABEL_WIDTH))) for group in groups]
    numbers = "; ".join(f"{group.name}: {', '.join(each)}" for group, each in zip(groups, said, strict=True))
    return Figure(
        data,
        layout(
            xaxis=axis(f"average {measure} (%)", zeroline=False),
            yaxis=_row_axis(labels),
            legend=LEGEND_ABOVE,
        ),
        f"Dot plot of the average {measure} in % of each experiment. {numbers}.",
        f"Average {measure} over tasks, the first included; bars: one standard deviation over the seeds. "
        f"{label_note(groups)}",
        kind="tall" if len(groups) > 5 else "",
    )


def averages_figure(group: RunGroup) -> Figure:
    """Draw the average accuracy of the main methods as bars, one dot for each seed."""
    shown = {name: group.values(name) for name in main_methods(group)}
    rows, several = list(range(len(shown))), len(group.runs) > 1
    # Equal values of several seeds must not hide each other.
    offsets = [0.4 * (place + 0.5) / len(group.runs) - 0.2 for place in range(len(group.runs))]
    bars: Spec = {
        "type": "bar",
        "orientation": "h",
        "y": rows,
        "x": [round(statistics.fmean(values), 3) for values in shown.values()],
        "text": [marked(name) for name in shown],
        "textposition": "none",
        "marker": {"color": [method_colour(name) for name in shown], "opacity": 0.55},
        "hovertemplate": "%{text}: mean %{x:.1f} %<extra></extra>",
        "showlegend": False,
    }
    dots: Spec = {
        "type": "scatter",
        "mode": "markers",
        "y": [round(row + offset, 3) for row in rows for offset in offsets],
        "x": [round(value, 3) for values in shown.values() for value in values],
        "text": [f"{marked(name)}, seed {seed}" for name in shown for seed in group.seeds],
        "marker": {"color": "@page", "size": 7, "line": {"color": "@mark", "width": 1.4}},
        "hovertemplate": "%{text}: %{x:.1f} %<extra></extra>",
        "showlegend": False,
    }
    numbers = [
        # Beside the bars, where no dot can cross it.
        {"xref": "paper", "x": 1, "xshift": 8, "xanchor": "left", "y": row, "yref": "y", "showarrow": False}
        | {"text": f"<b>{mean_text(values)}</b>", "font": {"size": 12, "color": "@ink"}}
        for row, values in enumerate(shown.values())
    ]
    said = "; ".join(f"{marked(name)} {mean_text(values)} %" for name, values in shown.items())
    measure = group.metric_names.measure
    return Figure(
        [bars, dots],
        layout(
            xaxis=axis(f"average {measure} (%)", range=[0, 101]),
            yaxis=_row_axis([plotly_text(marked(name)) for name in shown], showgrid=False),
            annotations=numbers,
            margin={"l": 8, "r": 92, "t": 12, "b": 8},
            bargap=0.35,
        ),
        f"Bar chart of the average {measure} over tasks: {said}.",
        f"Average {measure} over tasks, the first included{'; each dot is one seed' if several else ''}. "
        f"{label_note([group])}",
    )


_LABEL_WIDTH = 20
# More numbers than this do not fit into the cells on a phone.
NUMBERED_TASKS = 11


def matrix_figure(group: RunGroup, method: str) -> Figure:
    """Draw the accuracy on the classes of each task (across) after each task (down)."""
    metric_names = group.metric_names
    matrix = group.matrix(method)
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
        [trace],
        layout(
            title={
                "text": f"<b>{plotly_text(marked(method))}</b>",
                "font": {"size": 14},
                "x": 0.02,
                "y": 0.98,
            },
            xaxis=axis(f"{metric_names.of_task} of task", type="category", showgrid=False),
            yaxis=axis("after task", type="category", autorange="reversed", showgrid=False),
            margin={"l": 8, "r": 8, "t": 34, "b": 8},
        ),
        f"{metric_names.measure.capitalize()} matrix of {marked(method)} in %. Each task when it was learned: "
        f"{learned}. The same tasks after the last one: {last}.",
        f"{marked(method)}: a column shows how the {metric_names.measure} on the {metric_names.of_task} of one task "
        "changes as further tasks are learned.",
        kind="matrix",
    )


def drift_figure(group: RunGroup) -> Figure:
    """Draw the mean distance of old latents from the previous model's, after each task and each aligner."""
    data: list[Spec] = []
    said: list[str] = []
    tasks, drifts = list(range(2, group.tasks + 1)), group.drift()
    for number, (name, runs) in enumerate(drifts.items()):
        by_task = list(zip(*runs, strict=True))
        means = [statistics.fmean(values) for values in by_task]
        label = "no aligner (base)" if name == "base" else name
        colour = f"@{_ALIGNER_COLOURS.get(name, 'soft')}"
        said.append(f"{label}: {', '.join(f'{mean:.3g}' for mean in means)}")
        # Side by side, so that error bars do not cover each other.
        places = [round(task + 0.03 * (number - (len(drifts) - 1) / 2), 3) for task in tasks]
        texts = [f"task {task}: {mean_text(each, 2)}" for task, each in zip(tasks, by_task, strict=True)]
        line = _line(label, places, floats(means, 4), texts, colour, "solid" if name in ("base", "eli") else "dash")
        data.append({**line, "error_y": _bars(by_task, colour)})
    bars = " Bars: one standard deviation over the seeds." if len(group.runs) > 1 else ""
    return Figure(
        data,
        layout(
            xaxis=axis("after task", tickvals=tasks, showgrid=False, zeroline=False),
            yaxis=axis("distance", rangemode="tozero", zeroline=False),
            legend=LEGEND_ABOVE,
        ),
        f"Line chart of the mean distance of old test images' latents from the previous model's, after tasks 2 to "
        f"{group.tasks}. {'; '.join(said)}.",
        "The distance of the latents of old test images from their places under the model before the task: without "
        f"alignment and after each aligner. Below the line of base, the aligner undoes drift.{bars} Accuracy can rise "
        "without that, if latents only cross the boundaries of the head.",
        kind="curves",
    )


_SYMBOLS = ("circle", "square", "diamond", "star", "triangle-up", "pentagon", "hexagon")
"""One for each group of methods."""
_PHONE = (250, 330)
"""Pixels that the points of a figure cover on a narrow screen."""
_ROOM = 25
"""Pixels left and right of them."""


def label_places(points: Mapping[str, tuple[float, float]], wanted: Sequence[str]) -> dict[str, str]:
    """Choose where names of points go, "bottom" or "top"; names that would cover a more important one are left out."""
    if not points:
        return {}
    corners = np.asarray(list(points.values()))
    low = corners.min(axis=0)
    pixels = np.asarray(_PHONE) / np.maximum(corners.max(axis=0) - low, 1e-9)
    taken: list[tuple[float, float, float]] = []
    places: dict[str, str] = {}
    for name in (name for name in wanted if name in points):
        x, y = (np.asarray(points[name]) - low) * pixels
        half = 3.2 * len(marked(name))
        for place, height in (("bottom", y - 16), ("top", y + 16)):
            inside = half - _ROOM <= x <= _PHONE[0] + _ROOM - half
            if inside and all(abs(x - left) > half + other or abs(height - level) > 14 for left, level, other in taken):
                taken.append((x, height, half))
                places[name] = place
                break
    return places


def _range(values: Iterable[float]) -> list[float]:
    """Return a range that holds all values and leaves a tenth at both ends for marks and names."""
    numbers = list(values) or [0.0, 100.0]
    room = 0.1 * (max(numbers) - min(numbers)) + 0.5
    return [round(min(numbers) - room, 2), round(max(numbers) + room, 2)]


def trade_off_figure(group: RunGroup) -> Figure:
    """Draw the accuracy on old against that on new classes, one point for each method."""
    measure = group.metric_names.measure
    points_of = {
        name: (statistics.fmean(old), statistics.fmean(new))
        for name in group.summaries()
        if (old := group.values(name, "old")) and (new := group.values(name, "new"))
    }
    places = label_places(points_of, list(main_methods(group)))
    data: list[Spec] = []
    said: list[str] = []
    for number, heading in enumerate(dict.fromkeys(method.group for method in METHODS.values())):
        symbol = _SYMBOLS[number % len(_SYMBOLS)]
        points = [(name, *place) for name, place in points_of.items() if METHODS[name].group == heading]
        said += [f"{marked(name)} {old:.1f} and {new:.1f}" for name, old, new in points]
        if not points:
            continue
        colours = [method_colour(name) for name, _, _ in points]
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": heading,
                "x": [round(old, 2) for _, old, _ in points],
                "y": [round(new, 2) for _, _, new in points],
                "text": [marked(name) if name in places else "" for name, _, _ in points],
                "customdata": [marked(name) for name, _, _ in points],
                "textposition": [f"{places.get(name, 'bottom')} center" for name, _, _ in points],
                "textfont": {"size": 11, "color": "@ink"},
                "cliponaxis": False,
                "marker": {
                    "color": colours,
                    "size": 11,
                    "symbol": [f"{symbol}-open" if METHODS[name].uses_labels else symbol for name, _, _ in points],
                    "line": {"width": 2, "color": colours},
                },
                "hovertemplate": "%{customdata}: old %{x:.1f} %, new %{y:.1f} %<extra></extra>",
            }
        )
    return Figure(
        data,
        layout(
            xaxis=axis(f"{measure} on old classes (%)", zeroline=False, range=_range(x for x, _ in points_of.values())),
            yaxis=axis(f"{measure} on new classes (%)", zeroline=False, range=_range(y for _, y in points_of.values())),
            legend=LEGEND_ABOVE,
        ),
        f"Scatter plot of {measure} in % on old and on new classes, averaged over the tasks after the first: "
        f"{'; '.join(said)}.",
        "Each point is a method: further right it forgets less, further up it learns more. Open marks use test "
        "labels. The means are over the tasks after the first; the table has all numbers.",
        kind="tall",
    )
