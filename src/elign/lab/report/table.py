"""One table for all outputs: terminal, LaTeX, CSV, HTML by templates, and sections of markdown pages."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich import box
from rich import table as rich_table
from rich.text import Text

from elign.utils.errors import ElignError
from elign.utils.files import write_text_atomic

_TEMPLATES = Environment(
    loader=PackageLoader("elign.lab.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
# A number stays on one line with its sign or its deviation.
_TEMPLATES.filters["prose"] = lambda text: escape(text).replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def render(name: str, /, *values: object) -> Markup:
    """Fill a macro of `templates/report.html`; values are escaped, `Markup` is not."""
    return Markup(getattr(_TEMPLATES.get_template("report.html").module, name)(*values))  # noqa: S704  (escaped)


Format = Literal["rich", "markdown", "latex", "csv", "html"]

MISSING = "–"
"""Text of a cell without a value."""

_SHORT = 24  # Longer texts may wrap in HTML.
_WIDEST_TITLE = 32  # Longer row titles may wrap on the terminal.
_RICH_STYLES = {"mark": "bold", "soft": "dim", "": ""}
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "–": "--",
    "<": r"$<$",
    ">": r"$>$",
}


@dataclass(frozen=True)
class Column:
    """A column: its heading, `right` for numbers and `left` for text, and the formats that have no room for it."""

    title: str
    align: Literal["left", "right"] = "right"
    leave_out: Collection[Format] = ()


@dataclass(frozen=True)
class Cell:
    """What is shown, and the number that HTML sorts by and CSV contains; None for text."""

    text: str
    number: float | None = None

    @classmethod
    def of(cls, value: Cell | str | float | None, digits: int = 1) -> Cell:
        """Make a cell of a plain value: a dash for None, a fixed number of decimals for a float."""
        if isinstance(value, Cell):
            return value
        if value is None:
            return cls(MISSING)
        if isinstance(value, str):
            return cls(value)
        return cls(f"{value:.{digits}f}" if isinstance(value, float) else str(value), float(value))


@dataclass(frozen=True)
class Row:
    """A row: its cells, the group it belongs to, and `mark` (stands out) or `soft` (steps back)."""

    cells: tuple[Cell, ...]
    group: str = ""
    style: Literal["", "mark", "soft"] = ""


@dataclass
class Table:
    """A table with its title, caption and footnotes.

    Args:
        title: Above the table.
        columns: A plain text is a column of numbers, except the first one.
        caption: What the table shows; several sentences become a list.
        footnotes: Below the table.

    Example:
        >>> table = Table("Accuracy", ["method", "average"], footnotes=["in %"])
        >>> table.add("base", 61.25)
        >>> table.add("repair", Cell("70.1 ± 0.3", 70.1), style="mark")
        >>> print(table.to_markdown())
        **Accuracy**
        <BLANKLINE>
        | method | average |
        | --- | ---: |
        | base | 61.2 |
        | repair | 70.1 ± 0.3 |
        <BLANKLINE>
        in %
        <BLANKLINE>
    """

    title: str
    columns: Sequence[Column | str]
    caption: Sequence[str] | str = ()
    footnotes: Sequence[str] = ()
    rows: list[Row] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.columns = [
            column if isinstance(column, Column) else Column(column, "right" if number else "left")
            for number, column in enumerate(self.columns)
        ]
        self.caption = (self.caption,) if isinstance(self.caption, str) and self.caption else tuple(self.caption)

    def add(self, *values: Cell | str | float | None, group: str = "", style: Literal["", "mark", "soft"] = "") -> None:
        """Append a row, one value for each column (see `Cell.of`); add rows of one group one after the other.

        Raises:
            ValueError: There are more or fewer values than columns.
        """
        if len(values) != len(self.columns):
            raise ValueError(f"a row of {len(values)} cells does not fit into {len(self.columns)} columns")
        self.rows.append(Row(tuple(map(Cell.of, values)), group, style))

    def to_rich(self) -> rich_table.Table:
        """Return the table for the terminal."""
        table = rich_table.Table(
            title=Text("\n".join([self.title, *self.caption]), style="bold") if self.title or self.caption else None,
            caption=Text("\n".join(self.footnotes)) if self.footnotes else None,
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 0, 0, 1),
        )
        columns, rows = self._shown("rich")
        for number, column in enumerate(columns):
            cells = [row.cells[number].text.replace("± ", "±") for row in rows]
            # Row titles are not cut, since they tell rows apart; numbers may go below each other.
            parts = cells if column.align == "left" else [part for text in cells for part in text.split()]
            least = max((len(part[:_WIDEST_TITLE]) for part in (*column.title.split(), *parts)), default=0)
            # Rich would make a column narrower than `min_width` and cut the last one.
            fixed = all(len(text) <= least for text in (column.title, *cells))
            table.add_column(Text(column.title), justify=column.align, min_width=least, no_wrap=fixed, overflow="fold")
        for group, members in groupby(rows, key=lambda row: row.group):
            table.add_section()
            each = list(members)
            if group and group != each[0].cells[0].text:
                table.add_row(Text(group, style="italic"))
            for row in each:
                texts = (Text(cell.text.replace("± ", "±")) for cell in row.cells)
                table.add_row(*texts, style=_RICH_STYLES[row.style])
        return table

    def to_markdown(self) -> str:
        """Return the title in bold, the caption, the table and the footnotes; groups become the first column."""
        columns, rows = self._shown("markdown")
        lines = [f"**{markdown_text(self.title)}**", ""] if self.title else []
        bullet = "- " if len(self.caption) > 1 else ""
        lines += [*(f"{bullet}{markdown_text(sentence)}" for sentence in self.caption), ""] if self.caption else []
        grouped = any(row.group for row in rows)
        heads = [""] * grouped + [markdown_text(column.title) for column in columns]
        rules = ["---"] * grouped + ["---" if column.align == "left" else "---:" for column in columns]
        lines += [_bars(heads), _bars(rules)]
        previous = ""
        for row in rows:
            group = [markdown_text(row.group) if row.group != previous else ""] * grouped
            lines.append(_bars([*group, *(markdown_text(cell.text) for cell in row.cells)]))
            previous = row.group
        bullet = "- " if len(self.footnotes) > 1 else ""
        lines += ["", *(f"{bullet}{markdown_text(note)}" for note in self.footnotes)] if self.footnotes else []
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        r"""Return a `tabular` of the package booktabs in a `table` with its caption."""
        columns, rows = self._shown("latex")
        said = ". ".join(text.rstrip(".") for text in (self.title, *self.caption, *self.footnotes) if text)
        lines = ["\\begin{table}", f"\\caption{{{latex_text(said)}}}"]
        lines += [f"\\begin{{tabular}}{{{''.join(column.align[0] for column in columns)}}}", "\\toprule"]
        lines.append(" & ".join(latex_text(column.title) for column in columns) + r" \\")
        for group, members in groupby(rows, key=lambda row: row.group):
            lines.append("\\midrule")
            if group:
                lines.append(f"\\multicolumn{{{len(columns)}}}{{l}}{{\\textit{{{latex_text(group)}}}}} \\\\")
            for row in members:
                texts = [latex_text(cell.text) for cell in row.cells]
                bold = [f"\\textbf{{{text}}}" for text in texts] if row.style == "mark" else texts
                lines.append(" & ".join(bold) + r" \\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"

    def to_csv(self) -> str:
        """Return comma-separated values: full numbers, empty fields for missing ones, groups in the first column."""
        columns, rows = self._shown("csv")
        grouped = any(row.group for row in rows)
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*["group"] * grouped, *(column.title for column in columns)])
        for row in rows:
            writer.writerow([*[row.group] * grouped, *map(_csv_value, row.cells)])
        return stream.getvalue()

    def to_html(self) -> Markup:
        """Return a table with header buttons to sort it, which scrolls sideways on narrow screens."""
        columns, rows = self._shown("html")
        label = ": ".join(text for text in (self.title, ". ".join(self.caption)) if text)
        shown = [
            {"style": row.style, "cells": list(map(_html_cell, row.cells, (column.align for column in columns)))}
            for row in rows
        ]
        return render("table", label, columns, shown, self.footnotes)

    def _shown(self, form: Format) -> tuple[list[Column], list[Row]]:
        """Return the columns of a format and the rows with these columns only."""
        numbered = [(n, c) for n, c in enumerate(self.columns) if isinstance(c, Column) and form not in c.leave_out]
        rows = [Row(tuple(row.cells[number] for number, _ in numbered), row.group, row.style) for row in self.rows]
        return [column for _, column in numbered], rows


def _bars(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _csv_value(cell: Cell) -> str | float:
    if cell.number is not None:
        return int(cell.number) if float(cell.number).is_integer() else cell.number
    return "" if cell.text == MISSING else cell.text


def _html_cell(cell: Cell, align: str) -> dict[str, str]:
    if align == "right":
        # A missing number sorts below all others.
        value = "-inf" if cell.number is None else str(cell.number)
        return {"text": cell.text, "value": value, "kind": "number"}
    value = cell.text if cell.number is None else str(cell.number)
    # Short texts stay on one line; sentences wrap, but not into a column of single words.
    return {"text": cell.text, "value": value, "kind": "words" if len(cell.text) > _SHORT else "word"}


def markdown_text(text: str) -> str:
    """Escape a text so that markdown shows it as it is, on one line."""
    safe = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("&", "&amp;")
    return safe.replace("<", "&lt;").replace(">", "&gt;")


def latex_text(text: str) -> str:
    r"""Escape what LaTeX would read as a command.

    Example:
        >>> latex_text("eli/oracle † 50 ± 1 %")
        'eli/oracle $^\\dagger$ 50 $\\pm$ 1 \\%'
    """
    return "".join(_LATEX.get(character, character) for character in text)


class PageError(ElignError):
    """A page that is not there, or whose markers are missing, doubled or in the wrong order."""


def update_section(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` in a markdown file.

    The markers and everything outside them stay as they are, line ends included; the file is replaced as a whole.

    Raises:
        PageError: A marker is missing or doubled, or the end comes before the beginning.
    """
    head, tail = around_section(path, name)
    line_end = "\r\n" if "\r\n" in head + tail else "\n"
    lines = text.strip("\r\n").splitlines()
    write_text_atomic(path, line_end.join([head, *lines, tail]))


def around_section(path: Path, name: str) -> tuple[str, str]:
    """Return what stands before and after a section, its markers included; errors as of `update_section`.

    A command that updates a section at its end calls this at its start, so that a wrong file is known at once.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if not path.is_file():
        raise PageError(f"there is no page {path}: make one that holds the lines {begin} and {end}")
    # Bytes, since reading as text would turn Windows line ends into others.
    page = path.read_bytes().decode("utf-8")
    for marker in (begin, end):
        if (found := page.count(marker)) != 1:
            problem = f"has {found} times the marker" if found else "has no marker"
            raise PageError(f"{path} {problem} {marker}: exactly one is needed")
    head, rest = page.split(begin)
    if end not in rest:
        raise PageError(f"{path}: {end} comes before {begin}")
    return head + begin, end + rest.split(end)[1]
