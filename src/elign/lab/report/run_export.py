"""The tables of runs for other programs: markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence

from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.statistics import paired_difference
from elign.lab.evaluation.table import HEAD, NEAREST_MEAN
from elign.lab.report.page import Grid
from elign.lab.report.run_paper import TITLE, paper_notes, paper_table
from elign.lab.report.run_readings import MARK, note
from elign.lab.report.run_tables import COLUMNS, comparison_table, metric_notes, readings_table
from elign.lab.report.runs import Experiment
from elign.lab.report.spread import CONFIDENCE, deviation
from elign.lab.report.tables import markdown_cell

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MARK: r"$^\dagger$",
    "–": "--",
    "<": r"$<$",
    ">": r"$>$",
}


def _grids(experiments: Sequence[Experiment]) -> list[tuple[str, Grid]]:
    """The tables with their headings: experiments compared, then all readings of each."""
    several = [("Experiments compared", comparison_table(experiments))] if len(experiments) > 1 else []
    printed = paper_table(experiments)
    several += [(TITLE, printed)] if printed else []
    return several + [(each.name, readings_table(each)) for each in experiments]


def markdown(experiments: Sequence[Experiment]) -> str:
    """Each table under a heading, the meaning of the columns at the end."""
    lines: list[str] = []
    for title, grid in _grids(experiments):
        lines += [f"### {markdown_cell(title)}", "", f"{markdown_cell(grid.caption)}.", ""]
        lines += [f"| {' | '.join(map(markdown_cell, grid.header))} |", "|" + " --- |" * len(grid.header)]
        lines += [f"| {' | '.join(markdown_cell(cell.text) for cell in row)} |" for row in grid.rows]
        lines += [""]
    lines += [f"- {markdown_cell(note)}" for note in paper_notes(experiments)]
    return "\n".join([*lines, "", f"{note(experiments)} {markdown_cell(metric_notes(experiments))}"]) + "\n"


def latex(experiments: Sequence[Experiment]) -> str:
    r"""Each table as a `tabular` of the package booktabs, in a `table` with its caption."""
    lines = ["% needs \\usepackage{booktabs}"]
    for title, grid in _grids(experiments):
        # What a reading is, is said in the text of a paper and not in its tables.
        keep = [number for number, name in enumerate(grid.header) if name not in ("what it is", "test labels")]
        lines += ["\\begin{table}", f"\\caption{{{latex_text(f'{title}. {grid.caption}. {note(experiments)}')}}}"]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(keep) - 1)}}}", "\\toprule"]
        lines += [_latex_row([grid.header[number] for number in keep]), "\\midrule"]
        lines += [_latex_row([row[number].text for number in keep]) for row in grid.rows]
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(lines)


def latex_text(text: str) -> str:
    r"""Text with everything that LaTeX would read as a command escaped.

    Example:
        >>> latex_text("eli/oracle † 50 ± 1 %")
        'eli/oracle $^\\dagger$ 50 $\\pm$ 1 \\%'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(map(latex_text, cells))} \\\\"


def comma_separated(experiments: Sequence[Experiment]) -> str:
    """One line for each experiment, reading and classifier; means and standard deviations in columns of their own.

    All numbers in percent; empty where there is none, and for the deviation of a single run.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = [name for metric in COLUMNS for name in (metric, f"{metric}_std")] + ["gain", "gain_low", "gain_high"]
    writer.writerow(["experiment", "reading", "classifier", "uses_test_labels", "runs", "tasks", *columns])
    for each in experiments:
        for classifiers in (HEAD, NEAREST_MEAN):
            for name, summaries in each.summaries(classifiers).items():
                label_free = READINGS[name].label_free
                start = [
                    each.name,
                    name,
                    summaries[0].classifier,
                    "no" if label_free else "yes",
                    len(each.runs),
                    each.tasks,
                ]
                numbers = [_mean_and_deviation(each.values(name, metric, classifiers)) for metric in COLUMNS]
                gain = _gain(each.values(name, classifiers=classifiers), each.values("base", classifiers=classifiers))
                writer.writerow([*start, *(number for pair in numbers for number in pair), *gain])
    return stream.getvalue()


def _mean_and_deviation(values: Sequence[float] | None) -> tuple[str, str]:
    if not values:
        return "", ""
    return f"{statistics.fmean(values):.4f}", f"{deviation(values):.4f}" if len(values) > 1 else ""


def _gain(values: Sequence[float] | None, base: Sequence[float] | None) -> tuple[str, str, str]:
    if not values or not base:
        return "", "", ""
    gain = paired_difference(values, base, confidence=CONFIDENCE)
    low, high = ("", "") if gain.interval is None else (f"{bound:.4f}" for bound in gain.interval)
    return f"{gain.mean:.4f}", low, high


FORMATS: Mapping[str, Callable[[Sequence[Experiment]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
"""What makes each format of `elign report --format`."""
