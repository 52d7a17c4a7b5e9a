"""The shell of a self-contained HTML page: escaping, tables, figures, embedded data and scripts.

Knows nothing of any experiment. Imported by the report modules of `eli.lab.report` that write HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from eli.lab.report.palette import palette_css


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
    return (resources.files("eli.lab.report") / "templates" / name).read_text(encoding="utf-8")


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
    kind = "words" if isinstance(cell.value, str) else "number"
    return f'<td class="{kind}" data-value="{value}">{text}</td>'


def table_html(caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell]], *, mark: str = "") -> str:
    """A table that is sorted by its header buttons and scrolls sideways on narrow screens.

    Args:
        caption: What the table shows.
        header: Column titles.
        rows: Cells of each row; the first one is the row's title.
        mark: Title of a row to set off from the others.
    """
    heads = "".join(f'<th scope="col"><button type="button">{escape(title)}</button></th>' for title in header)
    body = "".join(
        f"<tr{' class=mark' if row[0].text == mark else ''}>"
        + "".join(_cell_html(cell, first=position == 0) for position, cell in enumerate(row))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">\n<table class="sortable">'
        f"<caption><span>{escape(caption)}</span></caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def figure_html(name: str, alternative: str, caption: str, *, before: str = "") -> str:
    """The place of a figure: drawn by the script from the embedded data of the same name.

    Args:
        name: Key of the figure's specification.
        alternative: Its numbers, for readers who cannot see it.
        caption: What one sees and what it means.
        before: HTML of controls above it.
    """
    return (
        f'<figure>{before}\n<div class="plot plot-{escape(name)}" id="figure-{escape(name)}" '
        f'data-figure="{escape(name)}" role="img" aria-label="{escape(alternative)}"></div>\n'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
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


def render_page(*, title: str, body: str, data: Mapping[str, Any]) -> str:
    """A whole page that needs nothing but itself.

    The page forbids itself any connection (its content security policy), so that a report opened years later or
    without a network looks the same and tells nobody that it was opened.

    Args:
        title: Page title and main heading, as text.
        body: HTML of the sections.
        data: `figures` (specifications by name) and whatever else the script reads.
    """
    return fill(
        "page.html",
        title=escape(title),
        style=palette_css() + read_template("report.css"),
        body=body,
        data=json_script("report-data", data),
        plotly=get_plotlyjs(),
        script=read_template("report.js"),
    )
