"""Figures of runs for papers and slides: PNG, PDF and SVG, on white.

Draws with matplotlib's figure objects and never touches pyplot, so it needs no display and changes no global state.
"""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from elign.lab.evaluation.catalogue import READINGS
from elign.lab.report.palette import light
from elign.lab.report.run_matrices import NUMBERED_TASKS
from elign.lab.report.run_readings import ALIGNER_COLOURS, GROUP_COLOURS, ORACLE, lines, marked
from elign.lab.report.run_trade_off import label_places, old_and_new
from elign.lab.report.runs import Experiment
from elign.lab.report.spread import deviation
from elign.utils.files import write_bytes_atomic

PIXELS_PER_INCH = 150
# What the points of a scatter plot are spread over, in units of the size of its names.
_POINTS = (480, 300)
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
# Without dates and versions the same result gives the same bytes.
_METADATA: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}


def _plain(axes: Axes, *, x: str, y: str) -> None:
    axes.set_xlabel(x, color=light("soft"))
    axes.set_ylabel(y, color=light("soft"))
    axes.tick_params(colors=light("soft"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(light("grid"))
    axes.grid(color=light("grid"), linewidth=0.7)
    axes.set_axisbelow(True)


def _one(experiment: Experiment, *, width: float = 6.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, 4.2), dpi=PIXELS_PER_INCH, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    # A dollar sign would start a formula.
    axes.set_title(experiment.name.replace("$", r"\$"), fontsize=11, color=light("ink"), loc="left", wrap=True)
    return figure, axes


def _line(axes: Axes, x: Sequence[int], runs: Sequence[Sequence[float]], *, label: str, colour: str, dash: str) -> None:
    """Means, with a band of one standard deviation about solid lines."""
    by_task = list(zip(*runs, strict=True))
    means = np.asarray([statistics.fmean(values) for values in by_task])
    axes.plot(x, means, _DASHES[dash], marker="o", markersize=3.5, color=light(colour), label=label)
    # Six bands over each other would be mud.
    if len(runs) > 1 and dash == "solid":
        spreads = np.asarray([deviation(values) for values in by_task])
        axes.fill_between(x, means - spreads, means + spreads, color=light(colour), alpha=0.12, linewidth=0)


def draw_curves(experiment: Experiment) -> Figure:
    """Accuracy after each task."""
    figure, axes = _one(experiment)
    tasks = range(1, experiment.tasks + 1)
    for line in lines(experiment):
        _line(axes, tasks, experiment.curves(line.reading), label=line.label, colour=line.colour, dash=line.dash)
    _plain(axes, x="task", y=f"{experiment.terms.measure} on all classes seen (%)")
    axes.set_xticks(tasks)
    axes.legend(fontsize=8, frameon=False)
    return figure


def draw_trade_off(experiment: Experiment) -> Figure | None:
    """Old against new classes, one point for each reading; open ones use test labels."""
    figure, axes = _one(experiment)
    points = old_and_new(experiment)
    places = label_places(points, [line.reading for line in lines(experiment)], room=_POINTS)
    seen: set[str] = set()
    for name, (x, y) in points.items():
        group, label_free = READINGS[name].group, READINGS[name].label_free
        colour = light(GROUP_COLOURS.get(group, "soft"))
        fill = colour if label_free else "none"
        label = "_" if group in seen else group
        axes.scatter([x], [y], s=42, facecolors=fill, edgecolors=colour, linewidths=1.6, label=label, zorder=3)
        seen.add(group)
        if name in places:
            away = (0, -12 if places[name] == "bottom" else 6)
            axes.annotate(marked(name), (x, y), away, textcoords="offset points", ha="center", fontsize=7)
    if not seen:
        return None
    measure = experiment.terms.measure
    _plain(axes, x=f"{measure} on old classes (%)", y=f"{measure} on new classes (%)")
    axes.legend(fontsize=8, frameon=False)
    return figure


def draw_matrices(experiment: Experiment) -> Figure:
    """Accuracy matrices of base and of ELI."""
    shown = [name for name in ("base", ORACLE) if name in experiment.summaries()]
    figure = Figure(figsize=(4.4 * len(shown), 4.2), dpi=PIXELS_PER_INCH, facecolor="white", layout="constrained")
    colours = LinearSegmentedColormap.from_list("accuracy", [light("middle"), light("low")])
    for position, name in enumerate(shown, start=1):
        axes = figure.add_subplot(1, len(shown), position)
        matrix = experiment.matrix(name)
        values = np.full((len(matrix), len(matrix)), np.nan)
        for row, line in enumerate(matrix):
            values[row, : len(line)] = line
        image = axes.imshow(values, cmap=colours, vmin=0, vmax=100)
        if len(matrix) <= NUMBERED_TASKS:
            for row, line in enumerate(matrix):
                for column, value in enumerate(line):
                    ink = "white" if value > 55 else light("ink")
                    axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color=ink)
        else:
            figure.colorbar(image, ax=axes, shrink=0.8)
        ticks = range(len(matrix))
        axes.set_xticks(ticks, [str(tick + 1) for tick in ticks])
        axes.set_yticks(ticks, [str(tick + 1) for tick in ticks])
        axes.set_title(marked(name), fontsize=10, color=light("ink"))
        axes.set(xlabel=f"{experiment.terms.of_task} of task", ylabel="after task")
        axes.spines[:].set_visible(False)
    return figure


def draw_drift(experiment: Experiment) -> Figure | None:
    """Distance of old latents from the previous model's."""
    drifts = experiment.drift()
    if not drifts:
        return None
    figure, axes = _one(experiment)
    tasks = range(2, experiment.tasks + 1)
    for name, runs in drifts.items():
        label, dash = ("no aligner (base)" if name == "base" else name), "solid" if name in ("base", "eli") else "dash"
        _line(axes, tasks, runs, label=label, colour=ALIGNER_COLOURS.get(name, "soft"), dash=dash)
    _plain(axes, x="after task", y="distance from the previous model's latents")
    axes.set_xticks(tasks)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    return figure


DRAWINGS: Mapping[str, Callable[[Experiment], Figure | None]] = {
    "curves": draw_curves,
    "trade-off": draw_trade_off,
    "matrices": draw_matrices,
    "drift": draw_drift,
}


def draw_figures(experiments: Sequence[Experiment], folder: Path) -> Iterator[Path]:
    """Draw all figures of all experiments in all formats.

    Args:
        experiments: What to draw.
        folder: Where to; made if needed.

    Yields:
        The path of each file that was written.
    """
    for number, experiment in enumerate(experiments, start=1):
        name = re.sub(r"[^A-Za-z0-9.]+", "-", experiment.name).strip("-")
        start = f"{number}-{name}-" if len(experiments) > 1 else ""
        for kind, draw in DRAWINGS.items():
            figure = draw(experiment)
            if figure is None:
                continue
            for suffix, metadata in _METADATA.items():
                path = folder / f"{start}{kind}.{suffix}"
                stream = io.BytesIO()
                # Text stays text in SVG, and what is drawn at random (identifiers) is drawn alike.
                with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elign"}):
                    figure.savefig(stream, format=suffix, metadata=metadata)
                write_bytes_atomic(path, stream.getvalue())
                yield path
