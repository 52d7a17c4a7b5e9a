"""A figure as a plain plotly specification with its words, and what all figures have in common.

A specification is what `Plotly.newPlot` takes, with colours written as names of `palette.PALETTE` (`"@ink"`, or
`"@ink/0.3"` with an opacity) that the page resolves for its theme. Knows nothing of any experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Spec = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


LEGEND_ABOVE: Spec = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "@ink"}}


@dataclass(frozen=True)
class Figure:
    """A figure and what is said about it."""

    spec: Spec
    """`data` and `layout` for plotly."""
    alternative: str
    """What a reader who cannot see the figure is told: its numbers."""
    caption: str
    """What one sees and what it means."""
    kind: str = ""
    """Which height the style sheet gives it; empty for the usual one."""


@dataclass(frozen=True)
class Frames:
    """What changes when the slider moves; `traces` says which traces of the figure the lists belong to."""

    traces: list[int]
    x: list[list[list[float | None]]]
    y: list[list[list[float | None]]]
    symbols: list[list[list[str]]]
    texts: list[str]

    def as_json(self) -> dict[str, Any]:
        """The same under the names that the page's script reads."""
        return {"traces": self.traces, "x": self.x, "y": self.y, "symbols": self.symbols, "texts": self.texts}


def axis(title: str = "", **more: object) -> Spec:
    """An axis in the page's colours; labels make their own room."""
    text: Spec = {"title": {"text": title, "font": {"size": 13}}} if title else {}
    base = {"gridcolor": "@grid", "zerolinecolor": "@grid", "linecolor": "@grid", "automargin": True}
    return {**base, "fixedrange": True, **text, **more}


def layout(**more: object) -> Spec:
    """What all figures share: transparent ground, the page's font, a legend below."""
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


def floats(values: NDArray[Any], digits: int = 3) -> list[float | None]:
    """Rounded numbers for JSON, which has no NaN: those become null and leave a gap."""
    return [round(float(value), digits) if np.isfinite(value) else None for value in values]
