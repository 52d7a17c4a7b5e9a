"""One table in five formats: the same cells everywhere, escaped for each; sections of markdown pages."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess

import pytest
from rich.console import Console

from elign.lab.report.table import Cell, Column, PageError, Table, latex_text, update_section

NASTY = "a|b <i>[b]c[/b]</i> & 50 % _x_"


@pytest.fixture
def table():
    table = Table(
        "Accuracy",
        ["method", "average", Column("gate", leave_out=("rich", "latex")), Column("note", "left")],
        caption="of two models",
        footnotes=["in %"],
    )
    table.add("base", 61.25, None, "plain", group="base")
    table.add("eli/oracle †", Cell("70.1 ± 0.3", 70.125), 3, NASTY, group="oracles", style="soft")
    table.add("repair", 72.0, 4, "default", group="oracles", style="mark")
    return table


def printed(table, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width).print(table.to_rich())
    return stream.getvalue()


def test_terminal(table):
    text = printed(table)
    assert NASTY in text
    assert "gate" not in text
    # A group that is called like its first row has no heading of its own.
    starts = [line.split()[0] for line in text.splitlines() if line.strip() and "─" not in line]
    assert starts == ["Accuracy", "of", "method", "base", "oracles", "eli/oracle", "repair", "in"]
    assert text.index("Accuracy") < text.index("of two models") < text.index("method") < text.index("in %")


@pytest.mark.parametrize("width", [48, 60])
def test_a_narrow_terminal_cuts_nothing(width):
    table = Table("", ["method", "average accuracy", "last", "forgetting"])
    table.add("eli/by-energy", *[Cell("70.1 ± 10.3", 70.1)] * 3)
    text = printed(table, width)
    assert "…" not in text
    assert "eli/by-energy" in text
    assert text.count("70.1") == text.count("±10.3") == 3


def test_markdown(table):
    lines = table.to_markdown().splitlines()
    assert lines[:4] == ["**Accuracy**", "", "of two models", ""]
    assert lines[4:7] == [
        "|  | method | average | gate | note |",
        "| --- | --- | ---: | ---: | --- |",
        "| base | base | 61.2 | – | plain |",
    ]
    assert lines[7].startswith("| oracles | eli/oracle † | 70.1 ± 0.3 | 3 | a\\|b &lt;i&gt;")
    assert lines[8].startswith("|  | repair |")
    assert lines[9:] == ["", "in %"]


def test_several_captions_and_notes_are_lists():
    table = Table("", ["x"], caption=["one", "two"], footnotes=["three", "four"])
    assert [line for line in table.to_markdown().splitlines() if line.startswith("-")] == [
        "- one", "- two", "- three", "- four",
    ]  # fmt: skip


def test_latex(table):
    text = table.to_latex()
    assert text.isascii()
    assert "\\begin{tabular}{lrl}" in text
    assert r"base & 61.2 & plain \\" in text
    assert r"eli/oracle $^\dagger$ & 70.1 $\pm$ 0.3 & a|b $<$i$>$" in text
    assert r"\textbf{repair} & \textbf{72.0}" in text
    assert r"\caption{Accuracy. of two models. in \%}" in text
    assert latex_text("50 % of a_b & {c}") == r"50 \% of a\_b \& \{c\}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(table, tmp_path):
    body = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}" + table.to_latex()
    (tmp_path / "tables.tex").write_text(body + "\\end{document}")
    subprocess.run(["pdflatex", "-halt-on-error", "tables.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_csv_has_full_numbers(table):
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert rows[0] == {"group": "base", "method": "base", "average": "61.25", "gate": "", "note": "plain"}
    assert (rows[1]["average"], rows[1]["gate"], rows[1]["note"]) == ("70.125", "3", NASTY)


def test_html(table):
    text = table.to_html()
    assert "<i>" not in text
    assert "a|b &lt;i&gt;[b]c[/b]&lt;/i&gt; &amp; 50 % _x_" in text
    assert re.findall(r'data-value="([^"]*)">', text)[:4] == ["base", "61.25", "-inf", "plain"]
    assert text.count('<tr class="mark">') == text.count('<tr class="soft">') == 1
    assert text.count("<button") == 4


def test_rows_have_as_many_cells_as_columns(table):
    with pytest.raises(ValueError, match="2 cells"):
        table.add("base", 1.0)


def test_a_section_replaces_only_what_is_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_bytes(b"top\n<!-- begin toy -->\nold\nlines\n<!-- end toy -->\nbottom")
    for _ in range(2):
        update_section(page, "toy", "| a |\n")
        assert page.read_bytes() == b"top\n<!-- begin toy -->\n| a |\n<!-- end toy -->\nbottom"
    page.write_bytes(b"<!-- begin a --><!-- end a -->\r\n<!-- begin b -->\r\nstay\r\n<!-- end b -->\r\n")
    update_section(page, "a", "x\ny")
    expected = b"<!-- begin a -->\r\nx\r\ny\r\n<!-- end a -->\r\n<!-- begin b -->\r\nstay\r\n<!-- end b -->\r\n"
    assert page.read_bytes() == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing", "no marker <!-- begin toy -->"),
        ("<!-- begin toy -->", "no marker <!-- end toy -->"),
        ("<!-- begin toy -->\n<!-- begin toy -->\n<!-- end toy -->", "2 times the marker <!-- begin toy -->"),
        ("<!-- end toy -->\n<!-- begin toy -->", "comes before"),
    ],
)
def test_unclear_markers_are_refused(tmp_path, content, message):
    page = tmp_path / "page.md"
    with pytest.raises(PageError, match=r"there is no page .*begin toy"):
        update_section(page, "toy", "new")
    page.write_text(content)
    with pytest.raises(PageError, match=message):
        update_section(page, "toy", "new")
    assert page.read_text() == content
