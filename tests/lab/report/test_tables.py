"""Tables for the terminal and for markdown."""

from __future__ import annotations

import io

from rich.console import Console

from elign.lab.experiments.toy_result import READINGS
from elign.lab.report.tables import toy_markdown, toy_table


def printed_table(result):
    stream = io.StringIO()
    Console(file=stream, width=80).print(toy_table(result))
    return stream.getvalue()


def test_terminal_table_fits_80_columns(result):
    text = printed_table(result)
    assert max(len(line) for line in text.splitlines()) <= 80
    for name in READINGS:
        assert name in text
    assert "83.5 ± 0.8" in text
    assert "83.44" in text
    assert "…" not in text


def test_terminal_table_without_printed_numbers(build):
    text = printed_table(build(printed={}, seeds=1, title="[red]not markup[/red]"))
    assert "paper" not in text
    assert "±" not in text
    assert "[red]not markup[/red]" in text


def test_markdown(result):
    text = toy_markdown(result)
    lines = text.splitlines()
    assert lines[0] == "| reading | mean ± std (%) | paper (%) | what it is |"
    assert f"| eli | 83.5 ± 0.8 | 83.44 | {READINGS['eli']} |" in lines
    assert f"| ridge | 71.0 ± 0.8 | – | {READINGS['ridge']} |" in lines
    assert {line.count("|") for line in lines[: 2 + len(READINGS)]} == {5}
    assert "`elign toy --data digits --seeds 0 1 2`" in text
    assert "seeds: 0, 1, 2" in text
    assert "latent dimension: 32" in text
    assert "task identity is given to every row alike" in text


def test_markdown_without_printed_numbers_and_with_odd_commands(build):
    text = toy_markdown(build(printed={}, command="elign toy `date`"))
    assert "paper" not in text
    assert "`` elign toy `date` ``" in text
