"""The README's picture of the two-task experiment: latents before, latents after, accuracies with controls.

Draws with matplotlib's figure objects and never touches pyplot, so it needs no display and changes no global state.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from elign.lab.experiments.toy_result import READINGS, Picture, ToyResult
from elign.lab.report.embedding import Embedding, embed
from elign.lab.report.latent_figure import class_name
from elign.lab.report.palette import class_colour, light
from elign.lab.report.summary import CONTROLS, mean_and_spread_text
from elign.lab.report.toy_figures import seed_offsets
from elign.utils.files import write_bytes_atomic

INCHES = (15.0, 5.4)
PIXELS_PER_INCH = 100
# So many characters of legend fit below the two maps; longer class names take two lines.
ONE_LINE = 115


def _points(axes: Axes, positions: NDArray[Any], **style: Any) -> None:  # matplotlib's own options
    axes.scatter(positions[:, 0], positions[:, 1], **style)


def _draw_latents(axes: Axes, picture: Picture, embedding: Embedding, shown: int, title: str) -> None:
    """One step of the walk: crosses are read wrongly, open circles are the previous model's places."""
    labels = picture.old_labels[embedding.old_index]
    right = picture.correct[embedding.steps[shown], embedding.old_index]
    _points(axes, embedding.new, s=7, color=light("new"), alpha=0.45, linewidths=0)
    for position, label in enumerate(np.unique(labels)):
        colour = light(class_colour(position))
        inside = labels == label
        targets = embedding.previous[inside]
        _points(axes, targets, s=42, facecolors="none", edgecolors=colour, alpha=0.3, linewidths=0.9)
        place = embedding.trajectory[shown]
        _points(axes, place[inside & right], s=22, color=colour, linewidths=0)
        _points(axes, place[inside & ~right], s=24, color=colour, marker="x", linewidths=1.2)
    share = f"{100 * float(right.mean()):.0f} % of the points read correctly" if len(right) else "no points"
    axes.set_title(f"{title}\n{share}", fontsize=13, color=light("ink"), linespacing=1.35)
    x_range, y_range = embedding.limits()
    axes.set(xlim=x_range, ylim=y_range, xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_color(light("grid"))


def _legend(figure: Figure, picture: Picture, embedding: Embedding) -> None:
    """One legend for both maps, below them."""

    def entry(name: str, marker: str, colour: str, *, hollow: bool = False) -> Line2D:
        fill = "none" if hollow else colour
        return Line2D([], [], linestyle="none", marker=marker, color=colour, markerfacecolor=fill, label=name)

    labels = np.unique(picture.old_labels[embedding.old_index])
    # A dollar sign would start a formula.
    entries = [
        entry(class_name(picture, int(c)).replace("$", r"\$"), "o", light(class_colour(i)))
        for i, c in enumerate(labels)
    ]
    entries.append(entry("read wrongly", "x", light("soft")))
    entries.append(entry("previous model", "o", light("soft"), hollow=True))
    entries.append(entry("new task", ".", light("new")))
    characters = sum(4 + len(str(item.get_label())) for item in entries)
    figure.legend(
        handles=entries,
        loc="upper center",
        bbox_to_anchor=(0.305, 0.105),
        ncols=len(entries) if characters <= ONE_LINE else -(-len(entries) // 2),
        frameon=False,
        fontsize=11,
        handletextpad=0.1,
        columnspacing=1.1,
        labelcolor=light("ink"),
    )


def _draw_accuracies(axes: Axes, result: ToyResult) -> None:
    """Bars of the means with one standard deviation, a dot per seed, the numbers beside them."""
    names = list(READINGS)
    colours = ["accent" if name == "eli" else "control" if name in CONTROLS else "reference" for name in names]
    means, spreads = zip(*(result.mean_and_spread(name) for name in names), strict=True)
    rows = np.arange(len(names))
    several = len(result.seeds) > 1
    axes.barh(rows, means, height=0.62, color=[light(colour) for colour in colours])
    if several:
        axes.errorbar(means, rows, xerr=spreads, fmt="none", ecolor=light("mark"), elinewidth=1.3, capsize=3)
    for row, name in zip(rows, names, strict=True):
        values = result.values(name)
        axes.scatter(
            values,
            row + np.asarray(seed_offsets(len(values))),
            s=18,
            facecolors="white",
            edgecolors=light("mark"),
            zorder=3,
        )
        weight = "bold" if name == "eli" else "normal"
        text = mean_and_spread_text(result, name)
        axes.text(104, float(row), text, va="center", fontsize=11, color=light("ink"), fontweight=weight, clip_on=False)
    axes.set_yticks(rows, names, fontsize=12, color=light("ink"))
    axes.set(xlim=(0, 101), ylim=(len(names) - 0.4, -0.6))
    axes.set_xlabel("accuracy on task 1 (%)", fontsize=11, color=light("soft"))
    count = len(result.seeds)
    below = f"mean ± std over {count} seeds" if several else "one seed"
    axes.set_title(f"Accuracy on task 1\n{below}", fontsize=13, color=light("ink"), linespacing=1.35)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", colors=light("soft"))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(light("grid"))
    axes.grid(axis="x", color=light("grid"), linewidth=0.8)
    axes.set_axisbelow(True)


def draw_toy_picture(result: ToyResult, path: Path, *, embedding: Embedding | None = None) -> Path:
    """Draw the experiment as one PNG, about 1500 pixels wide, on white.

    Args:
        result: The experiment.
        path: The file to write; missing folders are made.
        embedding: Positions of the latents if they are known already (`embed`), else they are computed.

    Returns:
        `path`.
    """
    positions = embed(result.picture) if embedding is None else embedding
    figure = Figure(figsize=INCHES, dpi=PIXELS_PER_INCH, facecolor="white")
    # Placed by hand: the numbers right of the bars and the shared legend lie outside the panels.
    before = figure.add_axes((0.012, 0.125, 0.288, 0.735))
    after = figure.add_axes((0.312, 0.125, 0.288, 0.735))
    bars = figure.add_axes((0.705, 0.125, 0.215, 0.735))
    last = int(positions.steps[-1])
    _draw_latents(before, result.picture, positions, 0, "Old images after task 2")
    _draw_latents(after, result.picture, positions, -1, f"Aligned: {last} steps down the energy")
    _legend(figure, result.picture, positions)
    _draw_accuracies(bars, result)
    stream = io.BytesIO()
    # Without the software's version the same result gives the same bytes.
    figure.savefig(stream, format="png", metadata={"Software": None})
    write_bytes_atomic(path, stream.getvalue())
    return path
