"""The interactive figures of the toy report, each with its words.

Those that are drawn from a `Picture` alone (heat map, energies) serve the report of runs too.
"""

from __future__ import annotations

from html import escape

import numpy as np

from elign.lab.experiments.toy_result import READINGS, Picture, ToyResult
from elign.lab.report.embedding import finite_images
from elign.lab.report.figure import Figure, Spec, axis, floats, layout
from elign.lab.report.summary import CONTROLS, mean_and_spread_text

SHOWN_DIMENSIONS = 64
HISTOGRAM_BINS = 50
LOSS_POINTS = 1000

OLD_CURVES = (
    ("old, current model", "before alignment", "before", "dot"),
    ("old, aligned", "aligned", "aligned", "solid"),
    ("old, previous model", "previous model", "previous", "dash"),
)
NEW_CURVES = (
    ("new, current model", "current model", "before", "dot"),
    ("new, previous model", "previous model", "previous", "dash"),
)


def seed_offsets(count: int, room: float = 0.4) -> list[float]:
    """Heights of the dots of `count` seeds about the middle of their bar: equal values must not hide each other."""
    return [room * (position + 0.5) / count - room / 2 for position in range(count)]


def _bar_colour(reading: str) -> str:
    return "@accent" if reading == "eli" else "@control" if reading in CONTROLS else "@reference"


def accuracy_figure(result: ToyResult) -> Figure:
    """Bars of the mean accuracy of each reading, a dot per seed, error bars of one standard deviation."""
    names = list(READINGS)
    rows = list(range(len(names)))
    summary = {name: result.mean_and_spread(name) for name in names}
    bars: Spec = {
        "type": "bar",
        "orientation": "h",
        "name": "mean",
        "y": rows,
        "x": [round(summary[name][0], 3) for name in names],
        "text": names,
        "textposition": "none",
        "marker": {"color": [_bar_colour(name) for name in names]},
        "hovertemplate": "%{text}: mean %{x:.1f} %<extra></extra>",
        "showlegend": False,
    }
    if len(result.seeds) > 1:
        spreads = [round(summary[name][1], 3) for name in names]
        bars["error_x"] = {"type": "data", "array": spreads, "color": "@mark", "thickness": 1.5, "width": 5}
    dots: Spec = {
        "type": "scatter",
        "mode": "markers",
        "name": "one seed",
        "y": [row + offset for row in rows for offset in seed_offsets(len(result.seeds))],
        "x": [round(value, 3) for name in names for value in result.values(name)],
        "text": [f"{name}, seed {seed.seed}" for name in names for seed in result.seeds],
        "marker": {"color": "@page", "size": 7, "line": {"color": "@mark", "width": 1.4}},
        "hovertemplate": "%{text}: %{x:.1f} %<extra></extra>",
    }
    data = [bars, dots]
    printed = [name for name in names if name in result.printed]
    if printed:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "printed in the paper",
                "y": [names.index(name) for name in printed],
                "text": printed,
                "x": [result.printed[name] for name in printed],
                "marker": {"symbol": "diamond-open", "color": "@before", "size": 12, "line": {"width": 2.5}},
                "hovertemplate": "%{text}, paper: %{x} %<extra></extra>",
            }
        )
    values = [
        # Beside the plot, where no bar, dot or error bar can cross it.
        {"xref": "paper", "x": 1, "xshift": 8, "xanchor": "left", "y": row, "yref": "y", "showarrow": False}
        | {"text": f"<b>{mean_and_spread_text(result, name)}</b>", "font": {"size": 12, "color": "@ink"}}
        for row, name in enumerate(names)
    ]
    said = "; ".join(f"{name} {mean_and_spread_text(result, name)} %" for name in names)
    return Figure(
        {
            "data": data,
            "layout": layout(
                xaxis=axis("accuracy on task 1 (%)", range=[0, 101]),
                yaxis=axis(
                    tickvals=rows, ticktext=names, ticksuffix="  ", range=[len(rows) - 0.5, -0.5], showgrid=False
                ),
                annotations=values,
                margin={"l": 8, "r": 92, "t": 12, "b": 8},
                legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
                bargap=0.35,
            ),
        },
        f"Bar chart of the accuracy on task 1: {said}.",
        "Each bar is the mean accuracy on task 1's held-out images, each dot one seed"
        + (", each error bar one standard deviation over the seeds" if len(result.seeds) > 1 else "")
        + ". The gap between “base” and “previous model” is what was forgotten; a method is worth its cost only "
        "where it passes the controls.",
    )


def heat_figure(picture: Picture) -> Figure:
    """How far each latent dimension has moved at each step, averaged over the old images (z_i - z_0)."""
    finite = finite_images(picture)
    walk = picture.old_trajectory[:, finite].astype(np.float64)
    count, _, dimension = walk.shape
    # With no image left there is nothing to average, and nothing is shown to move.
    moved = (walk - walk[:1]).mean(axis=1).T if finite.any() else np.zeros((dimension, count))
    furthest = np.abs(moved).max(axis=1)
    shown = np.sort(np.argsort(-furthest, kind="stable")[:SHOWN_DIMENSIONS])
    # Zero in the middle of the colours: the sign is the first thing one reads.
    bound = float(furthest.max()) or 1.0
    trace: Spec = {
        "type": "heatmap",
        "x": list(range(count)),
        "y": [str(index) for index in shown],
        "z": [floats(row, 5) for row in moved[shown]],
        "zmin": -bound,
        "zmax": bound,
        "colorscale": [[0, "@low"], [0.5, "@middle"], [1, "@high"]],
        "colorbar": {"title": {"text": "z<sub>i</sub> − z<sub>0</sub>"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "dimension %{y}, step %{x}: %{z:.3f}<extra></extra>",
    }
    most = int(furthest.argmax())
    which = "" if dimension <= len(shown) else f" Shown are the {len(shown)} of {dimension} dimensions that move most."
    if not finite.all():
        which += f" {int((~finite).sum())} of {len(finite)} images are left out: their latents overflowed."
    return Figure(
        {
            "data": [trace],
            "layout": layout(
                xaxis=axis("Langevin step", showgrid=False),
                yaxis=axis("latent dimension", type="category", autorange="reversed", showgrid=False),
            ),
        },
        f"Heat map of the mean displacement of {len(shown)} latent dimensions over {count - 1} steps. "
        f"Dimension {most} moves most, by {moved[most, -1]:+.2f} at the last step; the median dimension moves by "
        f"{np.median(np.abs(moved[:, -1])):.2f} in absolute value.{which}",
        "Each row is one latent dimension, each column one step; the colour is how far old images have moved from "
        "where they started, on average over the images. A row that takes one colour was pushed one way by the energy "
        "model; a row without colour stayed where it was on average." + which,
        kind="heat",
    )


def energy_figure(picture: Picture) -> Figure:
    """Histograms of the energies of old images (before, aligned, previous model) and of new images."""
    energies = {name: values[np.isfinite(values)].astype(np.float64) for name, values in picture.energy.items()}
    energies = {name: values for name, values in energies.items() if len(values)}
    # A few far-off energies must not press all others into one bar; they are counted in the outermost ones.
    low = min((float(np.percentile(v, 0.5)) for v in energies.values()), default=0.0)
    high = max((float(np.percentile(v, 99.5)) for v in energies.values()), default=1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
    data: list[Spec] = []
    said: list[str] = []
    for row, curves in enumerate((OLD_CURVES, NEW_CURVES), start=1):
        for name, label, colour, dash in curves:
            if name not in energies:
                continue
            counts, _ = np.histogram(np.clip(energies[name], edges[0], edges[-1]), bins=edges)
            said.append(f"{name} {np.median(energies[name]):.2f}")
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": label,
                    "x": floats((edges[:-1] + edges[1:]) / 2, 4),
                    "y": floats(100 * counts / len(energies[name])),
                    "yaxis": "y" if row == 1 else "y2",
                    "legend": "legend" if row == 1 else "legend2",
                    "line": {"shape": "hvh", "color": f"@{colour}", "dash": dash, "width": 2},
                    "fill": "tozeroy",
                    "fillcolor": f"@{colour}/0.14",
                    "hovertemplate": f"{escape(name)}: %{{y:.1f}} % near %{{x:.2f}}<extra></extra>",
                }
            )
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "font": {"color": "@ink"}}
    return Figure(
        {
            "data": data,
            "layout": layout(
                xaxis=axis("energy", anchor="y2", zeroline=False),
                yaxis=axis("share (%)", domain=[0.6, 1.0], rangemode="tozero"),
                yaxis2=axis("share (%)", domain=[0.0, 0.4], rangemode="tozero"),
                legend={**legend, "y": 1.0, "title": {"text": "<b>old</b>", "font": {"size": 13}}},
                legend2={**legend, "y": 0.4, "title": {"text": "<b>new</b>", "font": {"size": 13}}},
            ),
        },
        f"Histograms of energies; medians: {', '.join(said)}." if said else "No energies were stored.",
        "Low energy means “looks like a latent of the previous model”. Alignment walks downhill, so aligned latents "
        "should lie left of where they started: overlap with the previous model's curve is the aim, further left means "
        "that the walk went past it. The outermost bins also count what lies beyond them.",
        kind="energy",
    )


def loss_figure(picture: Picture) -> Figure:
    """The training loss of the energy model."""
    loss = picture.loss.astype(np.float64)
    block = max(1, -(-len(loss) // LOSS_POINTS))
    starts = np.arange(0, len(loss), block)
    means = [float(loss[start : start + block].mean()) for start in starts]
    trace: Spec = {
        "type": "scatter",
        "mode": "lines",
        "x": [int(start) + 1 for start in starts],
        "y": floats(np.asarray(means), 4),
        "line": {"color": "@accent", "width": 1.8},
        "hovertemplate": "iteration %{x}: %{y:.3f}<extra></extra>",
        "showlegend": False,
    }
    ends = f" It goes from {means[0]:.2f} to {means[-1]:.2f}." if means else ""
    averaged = f" Each point is the mean of {block} iterations." if block > 1 else ""
    return Figure(
        {
            "data": [trace],
            "layout": layout(xaxis=axis("iteration"), yaxis=axis("loss")),
        },
        f"Line chart of the energy model's training loss over {len(loss)} iterations.{ends}",
        "The loss is the mean energy of the previous model's latents minus that of the sampled ones: below zero the "
        "energy model tells the two apart; near zero it cannot, or the sampled latents have become alike." + averaged,
    )
