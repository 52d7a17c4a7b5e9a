"""The sections of the report of runs.

A *topic* is one thing to say about one experiment. With a single experiment each topic is a section of the page; with
several, each experiment is a section that holds all topics. To add one, write a function and put it into `TOPICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from elign.lab.evaluation.table import NEAREST_MEAN
from elign.lab.experiments.kinds import kind_of
from elign.lab.report.embedding import embed
from elign.lab.report.latent_figure import latent_figure
from elign.lab.report.page import pairs_html
from elign.lab.report.run_curves import comparison_figure, curves_figure
from elign.lab.report.run_detections import class_table, coco_table, pictures_piece, unknown_table
from elign.lab.report.run_latents import RunPicture, run_picture
from elign.lab.report.run_matrices import drift_figure, matrix_figure
from elign.lab.report.run_readings import ORACLE, note
from elign.lab.report.run_summary import run_summary
from elign.lab.report.run_tables import comparison_table, durations_table, metric_notes, readings_table
from elign.lab.report.run_trade_off import trade_off_figure
from elign.lab.report.runs import Experiment, flat_config
from elign.lab.report.sections import Piece, Section, boxed, drawing, folded, heading, joined, table, words
from elign.lab.report.toy_figures import energy_figure, heat_figure
from elign.utils.errors import ElignError

SORT = "Choose a column title to sort by it; a third time restores this order."


@dataclass(frozen=True, eq=False)
class Subject:
    """An experiment on the page.

    Args:
        experiment: The runs.
        prefix: What the names of its figures begin with.
        tell: Hears of what takes long.
    """

    experiment: Experiment
    prefix: str
    tell: Callable[[str], None] = field(default=lambda text: None)


def curves_topic(subject: Subject) -> Piece:
    """Accuracy after each task."""
    return drawing(f"{subject.prefix}curves", curves_figure(subject.experiment))


def readings_topic(subject: Subject) -> Piece:
    """The table of all readings."""
    experiment = subject.experiment
    piece = words([SORT], kind="note") + table(readings_table(experiment))
    piece += words([f"{note([experiment])} {metric_notes([experiment])}"], kind="note after")
    if experiment.summaries(NEAREST_MEAN):
        means = table(readings_table(experiment, NEAREST_MEAN))
        piece += folded("The same with the nearest mean of exemplars as classifier", means)
    return piece


def trade_off_topic(subject: Subject) -> Piece | None:
    """Old against new classes."""
    if subject.experiment.tasks < 2:
        return None
    return drawing(f"{subject.prefix}trade-off", trade_off_figure(subject.experiment))


def matrices_topic(subject: Subject) -> Piece:
    """Accuracy matrices of base and of ELI."""
    experiment = subject.experiment
    shown = [name for name in ("base", ORACLE) if name in experiment.summaries()]
    figures = [
        drawing(f"{subject.prefix}matrix-{number}", matrix_figure(experiment, name))
        for number, name in enumerate(shown)
    ]
    return boxed(joined(figures), "columns")


def drift_topic(subject: Subject) -> Piece | None:
    """Drift after each task."""
    if not subject.experiment.drift():
        return None
    return drawing(f"{subject.prefix}drift", drift_figure(subject.experiment))


def latents_topic(subject: Subject) -> Piece | None:
    """The latent space of the last task, energies and moves."""
    experiment = subject.experiment
    if experiment.tasks < 2 or experiment.detects:
        return None
    run = experiment.runs[0]
    subject.tell(f"{experiment.name}: mapping latents")
    try:
        picture = run_picture(run)
    except (ElignError, FileNotFoundError) as error:
        return words([f"The latents of {run.folder.path} cannot be shown: {error}"], kind="note")
    intro = f"Seed {run.seed}, after task {picture.task}."
    shown = len({int(label) for label in picture.map.old_labels})
    if shown < picture.classes:
        intro += (
            f" The map shows {shown} of the {picture.classes} old classes; all numbers below it are of all of them."
        )
    return words([intro], kind="note") + _latent_drawings(subject, picture)


def _latent_drawings(subject: Subject, picture: RunPicture) -> Piece:
    figure, frames = latent_figure(picture.map, embed(picture.map), head="the head, with all classes to choose from,")
    sources = (
        "Old: test images of old classes. New: training images of the new task, augmented, under both models: "
        "the pairs that the energy model learned from."
    )
    return joined(
        [
            drawing(f"{subject.prefix}latent", figure, frames),
            heading("Energies"),
            words([sources], kind="note"),
            drawing(f"{subject.prefix}energy", energy_figure(picture.measured)),
            heading("Move of each dimension"),
            drawing(f"{subject.prefix}heat", heat_figure(picture.measured)),
        ]
    )


def detections_topic(subject: Subject) -> Piece | None:
    """The precision of each class, other measures where there are any, and what was found on test images."""
    experiment = subject.experiment
    if not experiment.detects:
        return None
    grids = [class_table(experiment), coco_table(experiment), unknown_table(experiment)]
    piece = words([SORT], kind="note") + joined([table(grid) for grid in grids if grid is not None])
    pictures = pictures_piece(experiment)
    return piece if pictures is None else piece + heading("On test images") + pictures


def runs_topic(subject: Subject) -> Piece:
    """How to make the runs again: command, durations, configuration, environment."""
    experiment = subject.experiment
    facts = experiment.runs[0].facts
    again = f"{kind_of(facts).command} {' '.join(map(str, facts.get('overrides', [])))}"
    command = Piece(f'<pre tabindex="0"><code>{escape(again)}</code></pre>')
    settings = {key: "–" if value is None else value for key, value in flat_config(experiment.config).items()}
    lists = boxed(
        joined(
            [
                Piece(f"<div><h3>Configuration</h3>\n{pairs_html(settings)}</div>"),
                Piece(f"<div><h3>Environment</h3>\n{pairs_html(facts['environment'])}</div>"),
            ]
        ),
        "columns",
    )
    remarks = words([f"{sentence}." for sentence in experiment.remarks], kind="note after")
    return (
        table(durations_table(experiment))
        + remarks
        + heading("Command")
        + command
        + folded("Configuration and environment", lists)
    )


TOPICS: tuple[tuple[str, str, Callable[[Subject], Piece | None]], ...] = (
    ("curves", "{measure} after each task", curves_topic),
    ("readings", "All readings", readings_topic),
    ("trade-off", "Old against new classes", trade_off_topic),
    ("matrices", "What becomes of each task", matrices_topic),
    ("drift", "Drift of old latents", drift_topic),
    ("latents", "Latent space before and after alignment", latents_topic),
    ("detections", "What is found", detections_topic),
    ("runs", "How this was run", runs_topic),
)
"""What is said about each experiment: identifier, heading, and what makes it (None where there is nothing to say).

In a heading, {measure} is what the experiment's main number is called.
"""


def _title(title: str, experiment: Experiment) -> str:
    return title.format(measure=experiment.terms.measure.capitalize())


def summary_section(experiments: Sequence[Experiment], problems: Sequence[str]) -> Section:
    """The report in plain words."""
    several = len(experiments) > 1
    pieces = [(heading(each.name) if several else Piece()) + words(run_summary(each)) for each in experiments]
    left_out = words([f"Not shown: {problem}" for problem in problems], kind="note after")
    return Section("summary", "Summary", boxed(joined(pieces), "summary") + left_out)


def comparison_section(experiments: Sequence[Experiment]) -> Section:
    """Experiments beside each other."""
    piece = words([SORT], kind="note") + table(comparison_table(experiments))
    piece += words([note(experiments)], kind="note after") + drawing("comparison", comparison_figure(experiments))
    return Section("comparison", "Experiments compared", piece)


def experiment_sections(experiments: Sequence[Experiment], tell: Callable[[str], None]) -> Iterator[Section]:
    """All topics of all experiments."""
    if len(experiments) == 1:
        subject = Subject(experiments[0], "", tell)
        for identifier, title, make in TOPICS:
            if (piece := make(subject)) is not None:
                yield Section(identifier, _title(title, experiments[0]), piece)
        return
    for number, experiment in enumerate(experiments, start=1):
        subject = Subject(experiment, f"e{number}-", tell)
        parts = [
            heading(_title(title, experiment)) + piece
            for _, title, make in TOPICS
            if (piece := make(subject)) is not None
        ]
        yield Section(f"experiment-{number}", experiment.name, joined(parts))
