"""Tables of the two-task experiment for the terminal and for markdown pages."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from elign.lab.experiments.toy_result import READINGS, ToyResult
from elign.lab.report.page import plain
from elign.lab.report.spread import seeds_text
from elign.lab.report.summary import mean_and_spread_text


def toy_table(result: ToyResult) -> Table:
    """The readings as a table for the terminal, readable at 80 columns.

    Args:
        result: The experiment.
    """
    caption = f"accuracy (%) on task 1; {seeds_text(len(result.seeds))}"
    table = Table(title=Text(result.title, style="bold"), caption=caption, title_justify="left", caption_justify="left")
    table.add_column("reading", no_wrap=True)
    table.add_column("mean ± std" if len(result.seeds) > 1 else "accuracy", justify="right", no_wrap=True)
    if result.printed:
        table.add_column("paper", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for name, description in READINGS.items():
        cells = [name, mean_and_spread_text(result, name)]
        if result.printed:
            cells.append(f"{result.printed[name]:g}" if name in result.printed else "–")
        # Text, not str: square brackets in a name are no markup.
        table.add_row(*(Text(cell) for cell in [*cells, description]), style="bold" if name == "eli" else None)
    return table


def markdown_cell(text: str) -> str:
    """Text for a markdown table: one line, with nothing that would end the cell or start HTML."""
    safe = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """A markdown code span that holds the text, whatever backticks are in it."""
    line = " ".join(text.split())
    fence = "`"
    while fence in line:
        fence += "`"
    room = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{room}{line}{room}{fence}"


def toy_markdown(result: ToyResult) -> str:
    """The readings as a markdown table, and below it how they were obtained.

    Args:
        result: The experiment.

    Returns:
        Markdown that ends with a line break.
    """
    columns = ["reading", "mean ± std (%)" if len(result.seeds) > 1 else "accuracy (%)"]
    columns += ["paper (%)"] if result.printed else []
    columns += ["what it is"]
    rules = [" --- ", *(" ---: " for _ in columns[1:-1]), " --- "]
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(rules)}|"]
    for name, description in READINGS.items():
        cells = [markdown_cell(name), mean_and_spread_text(result, name)]
        if result.printed:
            cells.append(f"{result.printed[name]:g}" if name in result.printed else "–")
        lines.append(f"| {' | '.join([*cells, markdown_cell(description)])} |")
    seeds = ", ".join(str(seed.seed) for seed in result.seeds)
    settings = "; ".join(
        f"{markdown_cell(name)}: {markdown_cell(plain(value))}" for name, value in result.settings.items()
    )
    machine = "; ".join(f"{markdown_cell(name)} {markdown_cell(value)}" for name, value in result.environment.items())
    lines += [
        "",
        f"Accuracy on held-out images of task 1, {seeds_text(len(result.seeds))} (seeds: {seeds}); task identity is "
        "given to every row alike.",
        f"Made by {_code(result.command)}; {settings}.",
        f"Machine: {machine}.",
    ]
    return "\n".join(lines) + "\n"
