"""Figures for papers and slides: the specifications of the page, drawn by matplotlib as PNG, PDF and SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import figure as mpl_figure
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba

from elign.lab.report.figures import PALETTE, Figure, Spec, group_figures
from elign.lab.report.latent_space import embed, latent_figure, run_walk
from elign.lab.report.run_groups import RunGroup
from elign.utils.errors import ElignError
from elign.utils.files import write_bytes_atomic

PIXELS_PER_INCH = 150
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "star": "*", "triangle-up": "^", "x": "x"}
_MARKERS |= {"pentagon": "p", "hexagon": "h"}
# Without dates and versions the same result gives the same bytes.
_METADATA: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}

Colour = tuple[float, float, float, float]


def _colour(name: str, opacity: float = 1.0) -> Colour:
    """Return the light colour of `@name` or `@name/opacity`."""
    token, _, own = name.removeprefix("@").partition("/")
    return to_rgba(PALETTE[token][0], float(own or opacity))


def _plain(text: str) -> str:
    """Return a text without HTML; a dollar sign would start a formula."""
    return unescape(re.sub(r"<[^>]+>", "", text.replace("<br>", "\n"))).strip().replace("$", r"\$")


def _numbers(values: Sequence[float | None]) -> Any:
    return np.asarray([np.nan if value is None else value for value in values], dtype=float)


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, list) else [value] * count


def _scatter(axes: Axes, trace: Spec) -> None:
    x, y = _numbers(trace["x"]), _numbers(trace["y"])
    # An underscore keeps a trace out of the legend.
    label = _plain(trace["name"]) if trace.get("showlegend", True) and "name" in trace else "_"
    line, marker = trace.get("line", {}), trace.get("marker", {})
    if trace.get("fill") == "toself":
        axes.fill(x, y, color=_colour(trace["fillcolor"]), linewidth=0)
        return
    mode = trace["mode"]
    if "lines" in mode:
        dash = _DASHES[line.get("dash", "solid")]
        style = {"linewidth": line.get("width"), "color": _colour(line["color"]), "markersize": 3.5}
        axes.plot(x, y, dash, label=label, marker="o" if "markers" in mode else "", **style)
    else:
        _points(axes, x, y, marker, label)
    for which in ("error_x", "error_y"):
        bars = trace.get(which, {})
        if bars.get("visible", False):
            reach = {which.replace("error_", "") + "err": bars["array"]}
            axes.errorbar(x, y, fmt="none", ecolor=_colour(bars["color"]), elinewidth=1.0, capsize=2.5, **reach)
    if "text" in mode:
        for place, text, position in zip(zip(x, y, strict=True), trace["text"], trace["textposition"], strict=True):
            away = (0, -12 if position.startswith("bottom") else 6)
            axes.annotate(_plain(text), place, away, textcoords="offset points", ha="center", fontsize=7)


def _points(axes: Axes, x: Any, y: Any, marker: Spec, label: str) -> None:
    styles = list(zip(_each(marker.get("symbol", "circle"), len(x)), _each(marker["color"], len(x)), strict=True))
    line = marker.get("line", {})
    for number, (symbol, name) in enumerate(dict.fromkeys(styles)):
        shown = np.asarray([style == (symbol, name) for style in styles])
        colour = _colour(name, marker.get("opacity", 1.0))
        edge = _colour(line["color"]) if isinstance(line.get("color"), str) else colour
        kind, hollow = symbol.removesuffix("-open"), symbol.endswith("-open")
        # A cross has no inside: its lines have the colour.
        fill = {"color": colour} if kind == "x" else {"facecolors": "none" if hollow else colour, "edgecolors": edge}
        axes.scatter(
            x[shown],
            y[shown],
            s=0.4 * marker.get("size", 8) ** 2,
            marker=_MARKERS[kind],
            linewidths=1.3 if hollow or kind == "x" else line.get("width", 0) / 2,
            label="_" if number else label,
            zorder=3,
            **fill,
        )


def _bar(axes: Axes, trace: Spec) -> None:
    opacity = trace["marker"].get("opacity", 1.0)
    colours = [_colour(name, opacity) for name in _each(trace["marker"]["color"], len(trace["y"]))]
    axes.barh(_numbers(trace["y"]), _numbers(trace["x"]), height=0.65, color=colours, zorder=2)


def _heat_map(axes: Axes, trace: Spec) -> None:
    values = np.asarray([_numbers(line) for line in trace["z"]])
    stops = [(place, _colour(name)) for place, name in trace["colorscale"]]
    colours = LinearSegmentedColormap.from_list("scale", stops)
    low, high = trace["zmin"], trace["zmax"]
    image = axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(trace["x"])), trace["x"])
    axes.set_yticks(range(len(trace["y"])), trace["y"])
    if "texttemplate" in trace:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "@page" if (value - low) / (high - low) > 0.55 else "@ink"
                text = f"{value:.0f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=_colour(ink))
    elif trace.get("showscale", True):
        axes.figure.colorbar(image, ax=axes, shrink=0.8)


_DRAW = {"scatter": _scatter, "bar": _bar, "heatmap": _heat_map}


def _dress(axes: Axes, layout: Spec) -> None:
    """Draw axes, titles and notes as the layout says."""
    for which, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        spec = layout[f"{which}axis"]
        axis.set_label_text(_plain(spec.get("title", {}).get("text", "")), color=_colour("@soft"))
        if "tickvals" in spec:
            texts = [_plain(str(text)) for text in spec.get("ticktext", spec["tickvals"])]
            axis.set_ticks(spec["tickvals"], texts)
        if not spec.get("showticklabels", True):
            axis.set_ticks([])
        if "range" in spec:
            axes.set(**{f"{which}lim": spec["range"]})
        if spec.get("rangemode") == "tozero":
            axes.set(**{f"{which}lim": (0, None)})
        # Matplotlib draws the grid whenever it gets a colour.
        grid: Spec = {"color": _colour("@grid"), "linewidth": 0.7} if spec.get("showgrid", True) else {}
        axis.grid(visible=bool(grid), **grid)
    for note in layout.get("annotations", []):
        axes.annotate(_plain(note["text"]), (1.02, note["y"]), xycoords=("axes fraction", "data"), va="center")
    if "title" in layout:
        axes.set_title(_plain(layout["title"]["text"]), fontsize=10, color=_colour("@ink"))
    axes.set_axisbelow(True)
    axes.tick_params(colors=_colour("@soft"))
    axes.spines[:].set_color(_colour("@grid"))
    axes.spines[["top", "right"]].set_visible(False)


def draw(figures: Sequence[Figure], *, title: str = "", width: float = 6.4) -> mpl_figure.Figure:
    """Draw specifications of lines, points, horizontal bars or heat maps side by side, each `width` inches wide."""
    size = (width * len(figures), 4.2)
    canvas = mpl_figure.Figure(figsize=size, dpi=PIXELS_PER_INCH, facecolor="white", layout="constrained")
    if title:
        canvas.suptitle(title.replace("$", r"\$"), fontsize=11, color=_colour("@ink"), wrap=True)
    for position, figure in enumerate(figures, start=1):
        axes = canvas.add_subplot(1, len(figures), position)
        for trace in figure.data:
            _DRAW[trace["type"]](axes, trace)
        _dress(axes, figure.layout)
    handles = {
        label: handle for axes in canvas.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if handles:
        # A letter is about 0.055 inches wide.
        ncols = max(1, int(size[0] / (0.055 * max(map(len, handles)) + 0.5)))
        canvas.legend(handles.values(), handles, loc="outside lower center", ncols=ncols, fontsize=8, frameon=False)
    return canvas


def save(canvas: mpl_figure.Figure, path: Path) -> Path:
    """Write a drawing; the suffix chooses the format, and the same drawing gives the same bytes."""
    stream, suffix = io.BytesIO(), path.suffix[1:]
    # Text stays text in SVG.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elign"}):
        canvas.savefig(stream, format=suffix, metadata=_METADATA[suffix])
    write_bytes_atomic(path, stream.getvalue())
    return path


def _drawings(group: RunGroup) -> Iterator[tuple[str, mpl_figure.Figure]]:
    matrices = []
    for name, figure in group_figures(group):
        if name.startswith("matrix"):
            matrices.append(figure)
        else:
            yield name, draw([figure], title=group.name)
    yield "matrices", draw(matrices, width=4.4)
    if group.tasks > 1:
        try:
            walk = run_walk(group.runs[0])
        except (ElignError, FileNotFoundError):
            return  # its latents are not kept, or it is a detector
        figure = latent_figure(walk, embed(walk))
        yield "latents", draw([figure.at(0), figure.at(-1)], title=group.name, width=5)


def draw_figures(groups: Sequence[RunGroup], folder: Path) -> Iterator[Path]:
    """Draw the figures of all groups in all formats, and yield the path of each file."""
    for number, group in enumerate(groups, start=1):
        name = re.sub(r"[^A-Za-z0-9.]+", "-", group.name).strip("-")
        start = f"{number}-{name}-" if len(groups) > 1 else ""
        for kind, canvas in _drawings(group):
            for suffix in _METADATA:
                yield save(canvas, folder / f"{start}{kind}.{suffix}")
