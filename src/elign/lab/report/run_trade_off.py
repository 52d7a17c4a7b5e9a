"""Old against new classes: what a reading gains on one and pays on the other.

Where the points and their names go is also used by `run_drawings.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from elign.lab.evaluation.catalogue import READINGS
from elign.lab.report.figure import LEGEND_ABOVE, Figure, Spec, axis, layout
from elign.lab.report.run_readings import GROUP_COLOURS, lines, marked
from elign.lab.report.runs import Experiment

PHONE = (250, 330)
"""Pixels that a figure's points are spread over on a narrow screen."""
_ROOM = 25
"""Pixels left and right of them."""


def old_and_new(experiment: Experiment) -> dict[str, tuple[float, float]]:
    """Mean accuracy, or what it is here, on old and on new classes of each reading that has both."""
    return {
        name: (statistics.fmean(old), statistics.fmean(new))
        for name in experiment.summaries()
        if (old := experiment.values(name, "old")) and (new := experiment.values(name, "new"))
    }


def label_places(
    points: Mapping[str, tuple[float, float]], wanted: Sequence[str], *, room: tuple[int, int] = PHONE
) -> dict[str, str]:
    """Where the names of some points go: "bottom" or "top"; those that would cover another one are left out.

    Args:
        points: Places of all points.
        wanted: Names to be shown, the most important first.
        room: Pixels that the points are spread over.
    """
    if not points:
        return {}
    corners = np.asarray(list(points.values()))
    low = corners.min(axis=0)
    pixels = np.asarray(room) / np.maximum(corners.max(axis=0) - low, 1e-9)
    taken: list[tuple[float, float, float]] = []
    places: dict[str, str] = {}
    for name in (name for name in wanted if name in points):
        x, y = (np.asarray(points[name]) - low) * pixels
        half = 3.2 * len(marked(name))
        for place, height in (("bottom", y - 16), ("top", y + 16)):
            inside = half - _ROOM <= x <= room[0] + _ROOM - half
            if inside and all(abs(x - left) > half + other or abs(height - level) > 14 for left, level, other in taken):
                taken.append((x, height, half))
                places[name] = place
                break
    return places


def _range(values: Iterable[float]) -> list[float]:
    """A range that holds all values and leaves a tenth at both ends for marks and names."""
    numbers = list(values) or [0.0, 100.0]
    room = 0.1 * (max(numbers) - min(numbers)) + 0.5
    return [round(min(numbers) - room, 2), round(max(numbers) + room, 2)]


def trade_off_figure(experiment: Experiment) -> Figure:
    """Accuracy on old classes against accuracy on new ones, one point for each reading."""
    points_of, measure = old_and_new(experiment), experiment.terms.measure
    places = label_places(points_of, [line.reading for line in lines(experiment)])
    data: list[Spec] = []
    said: list[str] = []
    for group in dict.fromkeys(entry.group for entry in READINGS.values()):
        points = [(name, *place) for name, place in points_of.items() if READINGS[name].group == group]
        said += [f"{marked(name)} {old:.1f} and {new:.1f}" for name, old, new in points]
        if not points:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": group,
                "x": [round(old, 2) for _, old, _ in points],
                "y": [round(new, 2) for _, _, new in points],
                "text": [marked(name) if name in places else "" for name, _, _ in points],
                "customdata": [marked(name) for name, _, _ in points],
                "textposition": [f"{places.get(name, 'bottom')} center" for name, _, _ in points],
                "textfont": {"size": 11, "color": "@ink"},
                "cliponaxis": False,
                "marker": {
                    "color": f"@{GROUP_COLOURS.get(group, 'soft')}",
                    "size": 11,
                    # Open: not to be had without test labels.
                    "symbol": ["circle" if READINGS[name].label_free else "circle-open" for name, _, _ in points],
                    "line": {"width": 2, "color": f"@{GROUP_COLOURS.get(group, 'soft')}"},
                },
                "hovertemplate": "%{customdata}: old %{x:.1f} %, new %{y:.1f} %<extra></extra>",
            }
        )
    return Figure(
        {
            "data": data,
            "layout": layout(
                xaxis=axis(
                    f"{measure} on old classes (%)", zeroline=False, range=_range(x for x, _ in points_of.values())
                ),
                yaxis=axis(
                    f"{measure} on new classes (%)", zeroline=False, range=_range(y for _, y in points_of.values())
                ),
                legend=LEGEND_ABOVE,
            ),
        },
        f"Scatter plot of {measure} in % on old and on new classes, averaged over the tasks after the first: "
        f"{'; '.join(said)}.",
        "Each point is a reading; further right remembers more, further up learns more. What is moved from one to the "
        "other is no gain. Open circles use test labels. The means are over the tasks after the first; the table "
        "has all numbers.",
        kind="tall",
    )
