"""A page as a list of sections: each brings its HTML, and the figures and sliders that the HTML has places for.

Knows nothing of any experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from elign.lab.report.figure import Figure, Frames
from elign.lab.report.page import Grid, figure_html, prose, render_page, table_html


@dataclass(frozen=True)
class Piece:
    """HTML, and the data of the figures in it.

    Args:
        html: What the page shows.
        figures: By name; names must differ within a page.
        frames: What sliders step through, by the name of their figure.
    """

    html: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)
    frames: dict[str, Frames] = field(default_factory=dict)

    def __add__(self, other: Piece) -> Piece:
        return Piece(f"{self.html}\n{other.html}", self.figures | other.figures, self.frames | other.frames)


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading of its own.

    Args:
        identifier: Of the heading, for links; differs within a page.
        title: The heading, as text.
        piece: What stands below it.
    """

    identifier: str
    title: str
    piece: Piece


def joined(pieces: Iterable[Piece]) -> Piece:
    """One piece of several, in their order."""
    return sum(pieces, Piece())


def drawing(name: str, figure: Figure, frames: Frames | None = None) -> Piece:
    """A figure, with a slider above it if there are frames."""
    return Piece(figure_html(name, figure, frames=frames), {name: figure}, {name: frames} if frames else {})


def table(grid: Grid) -> Piece:
    """A sortable table."""
    return Piece(table_html(grid))


def words(sentences: Iterable[str], *, kind: str = "") -> Piece:
    """Paragraphs of plain text."""
    attribute = f' class="{escape(kind)}"' if kind else ""
    return Piece("".join(f"<p{attribute}>{prose(sentence)}</p>\n" for sentence in sentences))


def boxed(piece: Piece, kind: str) -> Piece:
    """A piece inside an element of a class that the style sheet knows."""
    return Piece(f'<div class="{escape(kind)}">\n{piece.html}</div>', piece.figures, piece.frames)


def folded(title: str, piece: Piece) -> Piece:
    """A piece that is shown when its title is chosen."""
    return Piece(f"<details><summary>{escape(title)}</summary>\n{piece.html}</details>", piece.figures, piece.frames)


def heading(title: str) -> Piece:
    """A heading within a section."""
    return Piece(f"<h3>{escape(title)}</h3>")


def page_of(title: str, sections: Sequence[Section]) -> str:
    """A whole page with a list of its sections at the top.

    Args:
        title: Page title and main heading.
        sections: In their order on the page.
    """
    entries = "".join(f'<li><a href="#{escape(s.identifier)}">{escape(s.title)}</a></li>\n' for s in sections)
    contents = Piece(f'<nav aria-label="Contents"><ul>\n{entries}</ul></nav>\n')
    whole = joined([contents, *(_section(section) for section in sections)])
    return render_page(title=title, body=whole.html, figures=whole.figures, frames=whole.frames)


def _section(section: Section) -> Piece:
    name, piece = escape(section.identifier), section.piece
    html = f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(section.title)}</h2>\n{piece.html}\n</section>'
    return Piece(html, piece.figures, piece.frames)
