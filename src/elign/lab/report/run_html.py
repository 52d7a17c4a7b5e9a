"""The HTML report of class-incremental runs: one file that opens offline, with every number next to its controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from elign.lab.report.run_paper import paper_section
from elign.lab.report.run_sections import comparison_section, experiment_sections, summary_section
from elign.lab.report.runs import Experiment
from elign.lab.report.sections import Section, page_of
from elign.utils.files import write_text_atomic


def run_html(
    experiments: Sequence[Experiment],
    *,
    problems: Sequence[str] = (),
    more: Sequence[Section] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> str:
    """The report as text.

    Args:
        experiments: What to show, at least one.
        problems: A sentence about each run that cannot be shown.
        more: Further sections, shown after the comparison and before the single experiments.
        tell: Hears of what takes long.
    """
    several = len(experiments) > 1
    sections = [
        summary_section(experiments, problems),
        *([comparison_section(experiments)] if several else []),
        *([printed] if (printed := paper_section(experiments)) else []),
        *more,
        *experiment_sections(experiments, tell),
    ]
    title = f"{len(experiments)} experiments" if several else experiments[0].name
    return page_of(f"ELI: {title}", sections)


def write_run_report(
    experiments: Sequence[Experiment],
    path: Path,
    *,
    problems: Sequence[str] = (),
    more: Sequence[Section] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write the report as one HTML file; missing folders are made, an older report is replaced as a whole.

    Args:
        experiments: What to show, at least one.
        path: The file to write.
        problems: A sentence about each run that cannot be shown.
        more: Further sections.
        tell: Hears of what takes long.

    Returns:
        `path`.
    """
    write_text_atomic(path, run_html(experiments, problems=problems, more=more, tell=tell))
    return path
