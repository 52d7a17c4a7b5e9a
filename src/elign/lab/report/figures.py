"""The figures of a report, each as one plotly specification; colours are names of the palette, such as `@ink`."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import resources
from itertools import accumulate
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from elign.lab.evaluation.methods import METHODS, default_of, marked
from elign.lab.evaluation.metrics import deviation, mean_text
from elign.lab.report.run_groups import MASK, ORACLE, PREVIOUS, RunGroup, label_note, measure_of

PALETTE: Mapping[str, tuple[str, str]] = yaml.safe_load(
    resources.files(__package__).joinpath("templates", "palette.yaml").read_text(encoding="utf-8")
)
"""Colours by name: in light and in dark."""

CLASS_COLOURS = sum(name.startswith("class-") for name in PALETTE)

_METHOD_COLOURS = {"accent": "accent", "reference": "before", "baseline": "control", "oracle": "class-1"}
"""Colours of the palette for the colours that methods are registered with."""

_ALIGNER_COLOURS = {"base": "before", "eli": "accent", "ridge": "previous", "untrained": "control"}
_ALIGNER_COLOURS |= {"mean-shift": "class-1", "random-shift": "class-4"}


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
    day, night = (
        "".join(f"--{name}:{colours[place]};" for name, colours in PALETTE.items()) + f"color-scheme:{scheme};"
        for place, scheme in enumerate(("light", "dark"))
    )
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
    """What changes when the slider of a figure moves: of each step, positions and symbols of each trace, and a text."""

    traces: list[int]
    x: list[list[list[float | None]]]
    y: list[list[list[float | None]]]
    symbols: list[list[list[str]]]
    texts: list[str]


@dataclass(frozen=True)
class Figure:
    """A figure: traces and layout for plotly, its numbers for a reader who cannot see it, and what it shows.

    `kind` is the height that the style sheet gives it; a figure with `frames` has a slider.
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
        steps = (self.frames.x[step], self.frames.y[step], self.frames.symbols[step])
        for number, x, y, symbols in zip(self.frames.traces, *steps, strict=True):
            data[number] |= {"x": x, "y": y, "marker": {**data[number]["marker"], "symbol": symbols}}
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


def scatter(x: Sequence[float | None], y: Sequence[float | None], mode: str = "markers", **more: object) -> Spec:
    """Return a trace of points or lines."""
    return {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), **more}


def _line(name: str, x: Sequence[float], y: Sequence[float | None], colour: str, dash: str, **more: object) -> Spec:
    return scatter(
        x,
        y,
        "lines+markers",
        name=name,
        line={"color": colour, "dash": dash, "width": 2.2},
        marker={"color": colour, "size": 6},
        hovertemplate=f"{plotly_text(name)}, %{{text}}<extra></extra>",
        **more,
    )


def _error_bars(values: Sequence[Sequence[float]], colour: str) -> Spec:
    """Return error bars of one standard deviation."""
    return {
        "type": "data",
        "array": [round(deviation(each), 4) for each in values],
        "visible": any(len(each) > 1 for each in values),
        "color": colour,
        "thickness": 1.4,
        "width": 4,
    }


def main_methods(group: RunGroup) -> dict[str, tuple[str, str]]:
    """Return the few methods that figures follow, those that the group has, with label and dash."""
    chosen = {
        group.default: ("label-free default", "solid"),
        "base": ("", "solid"),
        group.best_eli(): ("best label-free ELI", "dash"),
        group.best_baseline(): ("best label-free baseline", "dash"),
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
    tasks, names, several = list(range(1, group.tasks + 1)), group.metric_names, len(group.runs) > 1
    classes = list(accumulate(group.sizes))[: group.tasks]
    data: list[Spec] = []
    said: list[str] = []
    for name, (label, dash) in main_methods(group).items():
        by_task, colour = list(zip(*group.curves(name), strict=True)), method_colour(name)
        means = [statistics.fmean(values) for values in by_task]
        # Six bands over each other cannot be told apart: dashed lines have none.
        if several and dash == "solid":
            reach = np.asarray([deviation(values) for values in by_task])
            edge = floats([*(means + reach), *reversed(means - reach)], 2)
            look: Spec = {"fill": "toself", "fillcolor": f"{colour}/0.14", "line": {"width": 0}, "hoverinfo": "skip"}
            data.append(scatter([*tasks, *reversed(tasks)], edge, "lines", legendgroup=name, showlegend=False, **look))
        texts = [
            f"task {task}: {mean_text(values)} % of {seen} classes"
            for task, values, seen in zip(tasks, by_task, classes, strict=True)
        ]
        data.append(_line(label, tasks, floats(means, 2), colour, dash, text=texts, legendgroup=name))
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
    series = (
        ("base", "base", method_colour("base"), "circle"),
        (default, f"{default} (label-free default)", method_colour(default), "square"),
        (ORACLE, marked(ORACLE), method_colour(ORACLE), "circle-open"),
        (MASK, marked(MASK), method_colour(MASK), "diamond-open"),
        (None, "best label-free ELI", "@accent", "circle"),
    )
    data: list[Spec] = []
    said: list[list[str]] = [[] for _ in groups]
    for method, label, colour, symbol in series:
        points: list[tuple[int, str, list[float]]] = []
        for row, group in enumerate(groups):
            name = method or group.best_eli()
            if name and (values := group.values(name)):
                said[row].append(f"{marked(name)} {mean_text(values)}")
                points.append((row, f"{said[row][-1]} %", values))
        if points:
            rows, texts, several = zip(*points, strict=True)
            trace = scatter(
                [round(statistics.fmean(values), 2) for values in several],
                rows,
                name=label,
                error_x=_error_bars(several, colour),
                text=list(texts),
                marker={"color": colour, "size": 11, "symbol": symbol, "line": {"width": 2, "color": colour}},
                hovertemplate="%{text}<extra></extra>",
            )
            data.append(trace)
    labels = ["<br>".join(map(escape, textwrap.wrap(group.name, _LABEL_WIDTH))) for group in groups]
    numbers = "; ".join(f"{group.name}: {', '.join(each)}" for group, each in zip(groups, said, strict=True))
    return Figure(
        data,
        layout(xaxis=axis(f"average {measure} (%)", zeroline=False), yaxis=_row_axis(labels), legend=LEGEND_ABOVE),
        f"Dot plot of the average {measure} in % of each experiment. {numbers}.",
        f"Average {measure} over tasks, the first included; bars: one standard deviation over the seeds. "
        f"{label_note(groups)}",
        kind="tall" if len(groups) > 5 else "",
    )


def averages_figure(group: RunGroup) -> Figure:
    """Draw the average accuracy of the main methods as bars, one dot for each seed."""
    shown = {marked(name): group.values(name) for name in main_methods(group)}
    rows, seeds, measure = list(range(len(shown))), len(group.runs), group.metric_names.measure
    bars: Spec = {
        "type": "bar",
        "orientation": "h",
        "y": rows,
        "x": [round(statistics.fmean(values), 3) for values in shown.values()],
        "text": list(shown),
        "textposition": "none",
        "marker": {"color": [method_colour(name) for name in main_methods(group)], "opacity": 0.55},
        "hovertemplate": "%{text}: mean %{x:.1f} %<extra></extra>",
        "showlegend": False,
    }
    dots = scatter(
        [round(value, 3) for values in shown.values() for value in values],
        # Equal values of several seeds must not hide each other.
        [round(row + 0.4 * (place + 0.5) / seeds - 0.2, 3) for row in rows for place in range(seeds)],
        text=[f"{name}, seed {seed}" for name in shown for seed in group.seeds],
        marker={"color": "@page", "size": 7, "line": {"color": "@mark", "width": 1.4}},
        hovertemplate="%{text}: %{x:.1f} %<extra></extra>",
        showlegend=False,
    )
    numbers = [
        # Beside the bars, where no dot can cross it.
        {"xref": "paper", "x": 1, "xshift": 8, "xanchor": "left", "y": row, "yref": "y", "showarrow": False}
        | {"text": f"<b>{mean_text(values)}</b>", "font": {"size": 12, "color": "@ink"}}
        for row, values in enumerate(shown.values())
    ]
    said = "; ".join(f"{name} {mean_text(values)} %" for name, values in shown.items())
    return Figure(
        [bars, dots],
        layout(
            xaxis=axis(f"average {measure} (%)", range=[0, 101]),
            yaxis=_row_axis([plotly_text(name) for name in shown], showgrid=False),
            annotations=numbers,
            margin={"l": 8, "r": 92, "t": 12, "b": 8},
            bargap=0.35,
        ),
        f"Bar chart of the average {measure} over tasks: {said}.",
        f"Average {measure} over tasks, the first included{'; each dot is one seed' if seeds > 1 else ''}. "
        f"{label_note([group])}",
    )


_LABEL_WIDTH = 20
# More numbers than this do not fit into the cells on a phone.
NUMBERED_TASKS = 11


def matrix_figure(group: RunGroup, method: str) -> Figure:
    """Draw the accuracy on the classes of each task (across) after each task (down)."""
    names, matrix, title = group.metric_names, group.matrix(method), marked(method)
    tasks = [str(number) for number in range(1, len(matrix) + 1)]
    numbers = len(matrix) <= NUMBERED_TASKS
    trace: Spec = {
        "type": "heatmap",
        "x": tasks,
        "y": tasks,
        "z": [floats(line, 2) + [None] * (len(matrix) - len(line)) for line in matrix],
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "colorscale": [[0, "@middle"], [1, "@low"]],
        "showscale": not numbers,
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hovertemplate": "task %{x} after task %{y}: %{z:.1f} %<extra></extra>",
        **({"texttemplate": "%{z:.0f}", "textfont": {"size": 12}} if numbers else {}),
    }
    last = ", ".join(f"{value:.1f}" for value in matrix[-1])
    learned = ", ".join(f"{line[-1]:.1f}" for line in matrix)
    return Figure(
        [trace],
        layout(
            title={"text": f"<b>{plotly_text(title)}</b>", "font": {"size": 14}, "x": 0.02, "y": 0.98},
            xaxis=axis(f"{names.of_task} of task", type="category", showgrid=False),
            yaxis=axis("after task", type="category", autorange="reversed", showgrid=False),
            margin={"l": 8, "r": 8, "t": 34, "b": 8},
        ),
        f"{names.measure.capitalize()} matrix of {title} in %. Each task when it was learned: "
        f"{learned}. The same tasks after the last one: {last}.",
        f"{title}: a column shows how the {names.measure} on the {names.of_task} of one task "
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
        colour, dash = f"@{_ALIGNER_COLOURS.get(name, 'soft')}", "solid" if name in ("base", "eli") else "dash"
        said.append(f"{label}: {', '.join(f'{mean:.3g}' for mean in means)}")
        # Side by side, so that error bars do not cover each other.
        places = [round(task + 0.03 * (number - (len(drifts) - 1) / 2), 3) for task in tasks]
        texts = [f"task {task}: {mean_text(each, 2)}" for task, each in zip(tasks, by_task, strict=True)]
        errors = _error_bars(by_task, colour)
        data.append(_line(label, places, floats(means, 4), colour, dash, text=texts, error_y=errors))
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
    points = {
        name: (statistics.fmean(old), statistics.fmean(new))
        for name in group.summaries()
        if (old := group.values(name, "old")) and (new := group.values(name, "new"))
    }
    places = label_places(points, list(main_methods(group)))
    data: list[Spec] = []
    said: list[str] = []
    for number, heading in enumerate(dict.fromkeys(method.group for method in METHODS.values())):
        names = [name for name in points if METHODS[name].group == heading]
        said += [f"{marked(name)} {points[name][0]:.1f} and {points[name][1]:.1f}" for name in names]
        if not names:
            continue
        symbol, colours = _SYMBOLS[number % len(_SYMBOLS)], [method_colour(name) for name in names]
        trace = scatter(
            [round(points[name][0], 2) for name in names],
            [round(points[name][1], 2) for name in names],
            "markers+text",
            name=heading,
            text=[marked(name) if name in places else "" for name in names],
            customdata=[marked(name) for name in names],
            textposition=[f"{places.get(name, 'bottom')} center" for name in names],
            textfont={"size": 11, "color": "@ink"},
            cliponaxis=False,
            marker={
                "color": colours,
                "size": 11,
                "symbol": [f"{symbol}-open" if METHODS[name].uses_labels else symbol for name in names],
                "line": {"width": 2, "color": colours},
            },
            hovertemplate="%{customdata}: old %{x:.1f} %, new %{y:.1f} %<extra></extra>",
        )
        data.append(trace)
    x, y = (
        axis(f"{measure} on {part} classes (%)", zeroline=False, range=_range(each[place] for each in points.values()))
        for place, part in enumerate(("old", "new"))
    )
    return Figure(
        data,
        layout(xaxis=x, yaxis=y, legend=LEGEND_ABOVE),
        f"Scatter plot of {measure} in % on old and on new classes, averaged over the tasks after the first: "
        f"{'; '.join(said)}.",
        "Each point is a method: further right it forgets less, further up it learns more. Open marks use test "
        "labels. The means are over the tasks after the first; the table has all numbers.",
        kind="tall",
    )


def group_figures(group: RunGroup) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of the numbers of a group, by name."""
    yield "averages", averages_figure(group)
    yield "curves", curves_figure(group)
    if group.tasks > 1:
        yield "trade-off", trade_off_figure(group)
    for number, name in enumerate(name for name in ("base", ORACLE) if name in group.summaries()):
        yield f"matrix-{number}", matrix_figure(group, name)
    if group.drift():
        yield "drift", drift_figure(group)
