"""The latent space through the Langevin steps: one scatter figure and the frames its slider shows."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elign.lab.experiments.toy_result import Picture
from elign.lab.report.embedding import Embedding
from elign.lab.report.figure import Figure, Frames, Spec, axis, floats, layout
from elign.lab.report.palette import class_colour

RIGHT, WRONG = "circle", "x"


def class_name(picture: Picture, label: int) -> str:
    """The name of a class, or its number where no name was given."""
    return picture.class_names[label] if 0 <= label < len(picture.class_names) else str(label)


def _plotly_text(text: str) -> str:
    """Text as text: plotly reads some HTML in labels, but shows the entities of quotation marks as they are."""
    return escape(text, quote=False)


def _points(positions: NDArray[Any], **more: object) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": floats(positions[:, 0], 2),
        "y": floats(positions[:, 1], 2),
        "hovertemplate": "%{fullData.name}<extra></extra>",
        **more,
    }


def _step_text(picture: Picture, embedding: Embedding, step: int) -> str:
    shown = picture.correct[step, embedding.old_index]
    share = f"{100 * float(shown.mean()):.0f} %" if len(shown) else "none"
    return f"step {step} of {len(picture.old_trajectory) - 1}, {share} of the points shown are read correctly"


def _background(picture: Picture, embedding: Embedding, members: dict[int, NDArray[np.bool_]]) -> list[Spec]:
    """What does not move: new images and the places where old ones should be."""
    new = _points(embedding.new, name="new task", marker={"color": "@new", "size": 4, "opacity": 0.55})
    targets = [
        _points(
            embedding.previous[inside],
            name=f"{_plotly_text(class_name(picture, label))}, previous model",
            legendgroup="targets",
            showlegend=False,
            marker={
                "symbol": "circle-open",
                "color": f"@{class_colour(position)}",
                "size": 9,
                "opacity": 0.32,
                "line": {"width": 1.2},
            },
        )
        for position, (label, inside) in enumerate(members.items())
    ]
    return [new, *targets]


def _legend_only(name: str, symbol: str, **marker: object) -> Spec:
    """A legend entry for a kind of mark that is spread over several traces."""
    mark = {"symbol": symbol, "color": "@soft", "size": 8, **marker}
    return {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": name, "marker": mark}


def latent_figure(picture: Picture, embedding: Embedding, *, head: str = "task 1's head") -> tuple[Figure, Frames]:
    """Old latents coloured by class, crosses where they are read wrongly, over their targets and the new task.

    Args:
        picture: The latents and which of them are classified rightly at each step.
        embedding: Their positions.
        head: What reads them.

    Returns:
        The figure at step 0 and the frames of all shown steps.
    """
    labels = picture.old_labels[embedding.old_index]
    members = {int(label): labels == label for label in np.unique(labels)}
    right = picture.correct[:, embedding.old_index]
    data = _background(picture, embedding, members)
    frames = Frames(
        traces=list(range(len(data), len(data) + len(members))),
        x=[[floats(plane[inside, 0], 2) for inside in members.values()] for plane in embedding.trajectory],
        y=[[floats(plane[inside, 1], 2) for inside in members.values()] for plane in embedding.trajectory],
        symbols=[
            [[RIGHT if ok else WRONG for ok in right[step, inside]] for inside in members.values()]
            for step in embedding.steps
        ],
        texts=[_step_text(picture, embedding, int(step)) for step in embedding.steps],
    )
    entries: list[Spec] = []
    for position, (label, inside) in enumerate(members.items()):
        marker: Spec = {
            "symbol": frames.symbols[0][position],
            "color": f"@{class_colour(position)}",
            "size": 8,
            "line": {"width": 0.6, "color": "@page"},
        }
        name = _plotly_text(class_name(picture, label))
        group = {"name": name, "legendgroup": f"class {position}"}
        data.append(_points(embedding.trajectory[0][inside], marker=marker, showlegend=False, **group))
        # The legend would otherwise show the symbol of the class's first point, which may be a cross.
        entries.append(_legend_only(name, RIGHT, color=marker["color"]) | group)
    entries.append(_legend_only("read wrongly", WRONG))
    entries.append(_legend_only("previous model", "circle-open", line={"width": 1.2}) | {"legendgroup": "targets"})
    data += entries
    x_range, y_range = embedding.limits()
    # t-SNE's axes have no unit, so none is shown; the ranges are fixed so that nothing but the points moves.
    bare: Spec = {"showticklabels": False, "zeroline": False, "showgrid": False, "fixedrange": False, "ticks": ""}
    bare |= {"showline": True, "mirror": True}
    figure = Figure(
        {
            "data": data,
            "layout": layout(
                xaxis=axis(range=list(x_range), **bare),
                yaxis=axis(range=list(y_range), **bare),
                # Replaced by the page on touch screens, where dragging must scroll.
                dragmode="zoom",
            ),
        },
        f"Scatter plot of {len(labels)} old and {len(embedding.new_index)} new latents in a common t-SNE plane. "
        f"First: {frames.texts[0]}. Last: {frames.texts[-1]}.",
        "Move the slider to let the old images' latents descend the energy. Colours are classes, crosses are images "
        f"that {head} reads wrongly, open circles show where the previous model had put the same images, and "
        "grey dots are images of the new task. All steps share one t-SNE map, in which an "
        "image's own steps do not count as its neighbours: nearness means similarity, distances "
        f"across the map mean little, and which class is read is decided in all {picture.old_previous.shape[-1]} "
        "dimensions, of which the plane shows only a shadow.",
        kind="latent",
    )
    return figure, frames
