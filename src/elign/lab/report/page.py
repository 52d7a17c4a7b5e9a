"""The shell of a self-contained HTML page: escaping, tables, figures, embedded data and scripts.

Knows nothing of any experiment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template

from plotly.offline import get_plotlyjs

from elign.lab.report.figure import Figure, Frames
from elign.lab.report.palette import palette_css

SHORT = 24


@dataclass(frozen=True)
class Cell:
    """A table cell: the text shown and the value it is sorted by."""

    text: str
    value: float | str

    @classmethod
    def number(cls, value: float, digits: int = 1) -> Cell:
        """A number with fixed decimals."""
        return cls(f"{value:.{digits}f}", value)

    @classmethod
    def words(cls, text: str) -> Cell:
        """A piece of text, sorted by itself."""
        return cls(text, text)


def prose(text: str) -> str:
    """Escaped text in which a number stays on one line with its sign or its spread."""
    return escape(text).replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def read_template(name: str) -> str:
    """The text of a file in `templates/`."""
    return (resources.files("elign.lab.report") / "templates" / name).read_text(encoding="utf-8")


def fill(name: str, **parts: str) -> str:
    """A template with its `$names` replaced; the parts are HTML already, so callers escape what is text."""
    return Template(read_template(name)).substitute(parts)


def json_script(identifier: str, data: object) -> str:
    """Data for the page's script, in a form that cannot end the script element early."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, code)
    return f'<script type="application/json" id="{escape(identifier)}">{text}</script>'


def _cell_html(cell: Cell, *, first: bool) -> str:
    text, value = escape(cell.text), escape(str(cell.value))
    if first:
        return f'<th scope="row" data-value="{value}">{text}</th>'
    # Short words stay on one line; sentences wrap, but not into a column of single words.
    kind = "number" if not isinstance(cell.value, str) else "words" if len(cell.text) > SHORT else "word"
    return f'<td class="{kind}" data-value="{value}">{text}</td>'


@dataclass(frozen=True)
class Grid:
    """A table before it is written in some format.

    Args:
        caption: What the table shows.
        header: Column titles.
        rows: Cells of each row; the first one is the row's title.
        mark: Title of a row to set off from the others.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    mark: str = ""


def table_html(grid: Grid) -> str:
    """A table that is sorted by its header buttons and scrolls sideways on narrow screens."""
    heads = "".join(f'<th scope="col"><button type="button">{escape(title)}</button></th>' for title in grid.header)
    body = "".join(
        f"<tr{' class=mark' if row[0].text == grid.mark else ''}>"
        + "".join(_cell_html(cell, first=position == 0) for position, cell in enumerate(row))
        + "</tr>\n"
        for row in grid.rows
    )
    caption = escape(grid.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">\n<table class="sortable">'
        f"<caption><span>{caption}</span></caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def figure_html(name: str, figure: Figure, *, frames: Frames | None = None) -> str:
    """The place of a figure: drawn by the script from the embedded data of the same name.

    Args:
        name: Key of the figure's specification.
        figure: What is said about it, and its height.
        frames: What a slider above the figure steps through, if there is one.
    """
    kind = f" plot-{escape(figure.kind)}" if figure.kind else ""
    return (
        f'<figure>{_slider(name, frames) if frames else ""}\n<div class="plot{kind}" id="figure-{escape(name)}" '
        f'data-figure="{escape(name)}" role="img" aria-label="{escape(figure.alternative)}"></div>\n'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _slider(name: str, frames: Frames) -> str:
    """Native controls, so that keyboard and screen reader work without further code."""
    first, step = escape(frames.texts[0]), f"step-{escape(name)}"
    return (
        f'<div class="controls" data-walk="{escape(name)}"><button type="button" class="play">Play</button>'
        f'<label for="{step}">Langevin step</label>'
        f'<input type="range" id="{step}" min="0" max="{len(frames.texts) - 1}" step="1" value="0" '
        f'aria-valuetext="{first}"><output for="{step}" aria-live="polite">{first}</output></div>'
    )


def pairs_html(pairs: Mapping[str, object]) -> str:
    """Names and values, such as a configuration."""
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(plain(value))}</dd></div>\n" for name, value in pairs.items()
    )
    return f"<dl>\n{rows}</dl>"


def plain(value: object) -> str:
    """A setting as a reader writes it: yes and no, lists without brackets."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def render_page(
    *, title: str, body: str, figures: Mapping[str, Figure], frames: Mapping[str, Frames] | None = None
) -> str:
    """A whole page that needs nothing but itself.

    The page forbids itself any connection (its content security policy), so that a report opened years later or
    without a network looks the same and tells nobody that it was opened.

    Args:
        title: Page title and main heading, as text.
        body: HTML of the sections.
        figures: What the body has places for (`figure_html`), by name.
        frames: What sliders step through, by the name of their figure.
    """
    data = {
        "figures": {name: figure.spec for name, figure in figures.items()},
        "frames": {name: each.as_json() for name, each in (frames or {}).items()},
    }
    return fill(
        "page.html",
        title=escape(title),
        style=palette_css() + read_template("report.css"),
        body=body,
        data=json_script("report-data", data),
        plotly=get_plotlyjs(),
        script=read_template("report.js"),
    )
