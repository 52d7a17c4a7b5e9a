"""The HTML report of runs: one page without network access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from markupsafe import Markup
from plotly.offline import get_plotlyjs

from elign.lab.report.detection_pictures import pictures_html
from elign.lab.report.figures import (
    Figure,
    averages_figure,
    comparison_figure,
    curves_figure,
    drift_figure,
    matrix_figure,
    palette_css,
    trade_off_figure,
)
from elign.lab.report.latent_space import embed, energy_figure, heat_figure, latent_figure, run_latents
from elign.lab.report.rendering import read_template, render_page, render_part
from elign.lab.report.run_groups import ORACLE, RunGroup, flat_config
from elign.lab.report.summary import run_summary
from elign.lab.report.tables import (
    NEAREST_MEAN,
    comparison_table,
    detection_tables,
    durations_table,
    further_tables,
    methods_table,
    metric_notes,
)
from elign.lab.runs.experiment import benchmark_of
from elign.utils.errors import ElignError
from elign.utils.files import write_text_atomic

SORT = "Choose a column title to sort by it; the third time restores this order."
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Section:
    """A part of the page: its anchor, its heading and what stands below."""

    name: str
    title: str
    html: Markup


@dataclass
class Page:
    """A page in the making: it collects the data of its figures, whose names differ."""

    figures: dict[str, Figure] = field(default_factory=dict)

    def figure(self, name: str, figure: Figure) -> Markup:
        """Add a figure and return its place."""
        self.figures[name] = figure
        return render_part("figure", name, figure)

    def render(self, title: str, sections: Sequence[Section]) -> str:
        """Return the page.

        The page forbids itself any connection (its content security policy): it looks the same without a network and
        years later, and tells nobody that it was opened.
        """
        frames = {name: asdict(figure.frames) for name, figure in self.figures.items() if figure.frames}
        return render_page(
            title=title,
            sections=sections,
            style=Markup(palette_css()) + read_template("report.css"),  # noqa: S704  (constants)
            data={"figures": {name: figure.spec for name, figure in self.figures.items()}, "frames": frames},
            plotly=Markup(get_plotlyjs()),  # noqa: S704  (the script of a package)
            script=read_template("report.js"),
        )


def _text(*sentences: str, kind: str = "note") -> Markup:
    return render_part("text", sentences, kind)


def _join(*parts: Markup) -> Markup:
    return Markup("\n").join(parts)


def group_sections(
    group: RunGroup, page: Page, *, prefix: str = "", tell: Tell = lambda text: None
) -> Iterator[Section]:
    """Yield what is said about one group.

    Args:
        group: The runs.
        page: Takes the figures.
        prefix: Of the names of its figures.
        tell: Is called with a text before something that takes long.
    """
    names = group.metric_names
    averages = page.figure(f"{prefix}averages", averages_figure(group))
    yield Section("averages", f"Average {names.measure}", averages)
    curves = page.figure(f"{prefix}curves", curves_figure(group))
    yield Section("curves", f"{names.measure.capitalize()} after each task", curves)
    yield Section("methods", "All methods", _methods(group))
    if group.tasks > 1:
        trade_off = page.figure(f"{prefix}trade-off", trade_off_figure(group))
        yield Section("trade-off", "Old against new classes", trade_off)
    shown = [name for name in ("base", ORACLE) if name in group.summaries()]
    matrices = [page.figure(f"{prefix}matrix-{n}", matrix_figure(group, name)) for n, name in enumerate(shown)]
    yield Section("matrices", "Each task over time", render_part("columns", matrices))
    if group.drift():
        yield Section("drift", "Drift of old latents", page.figure(f"{prefix}drift", drift_figure(group)))
    if group.tasks > 1 and (latents := _latents(group, page, prefix, tell)):
        yield Section("latents", "Latent space before and after alignment", latents)
    if tables := list(detection_tables(group)):
        pictures = pictures_html(group)
        drawn = [] if pictures is None else [render_part("heading", "On test images"), pictures]
        yield Section("detections", "Detections", _join(_text(SORT), *(table.to_html() for table in tables), *drawn))
    yield Section("runs", "How this was run", _runs(group))


def _methods(group: RunGroup) -> Markup:
    notes = "; ".join(metric_notes([group]))
    parts = [_text(SORT), methods_table(group).to_html(), _text(f"{notes}.", kind="note after")]
    if group.methods(NEAREST_MEAN):
        title = "The same with the nearest mean of exemplars as classifier"
        parts.append(render_part("folded", title, methods_table(group, NEAREST_MEAN).to_html()))
    return _join(*parts)


def _latents(group: RunGroup, page: Page, prefix: str, tell: Tell) -> Markup | None:
    """Draw the latents of the first run; None if it stores none, as detectors do."""
    run = group.runs[0]
    if group.metric_names.item != "image":
        return None
    tell(f"{group.name}: mapping latents")
    try:
        latents = run_latents(run)
    except (ElignError, FileNotFoundError) as error:
        return _text(f"The latents of {run.folder.path} cannot be shown: {error}")
    intro = f"Seed {run.seed}, after task {latents.task}."
    shown = len({int(label) for label in latents.map.old_labels})
    if shown < latents.classes:
        intro += f" The map shows {shown} of the {latents.classes} old classes; the figures below it show all."
    sources = (
        "Old: test images of old classes. New: training images of the new task, augmented, under both models: the "
        "pairs that the energy model was fitted to."
    )
    return _join(
        _text(intro),
        page.figure(f"{prefix}latent", latent_figure(latents.map, embed(latents.map))),
        render_part("heading", "Energies"),
        _text(sources),
        page.figure(f"{prefix}energy", energy_figure(latents.measured)),
        render_part("heading", "Move of each dimension"),
        page.figure(f"{prefix}heat", heat_figure(latents.measured)),
    )


def _runs(group: RunGroup) -> Markup:
    metadata = group.runs[0].metadata
    command = f"{benchmark_of(metadata).command} {' '.join(map(str, metadata.get('overrides', [])))}"
    settings = {key: setting_text(value) for key, value in flat_config(group.config).items()}
    remarks = [f"{sentence}." for sentence in group.remarks]
    environment = {key: setting_text(value) for key, value in metadata["environment"].items()}
    return render_part("run", durations_table(group).to_html(), remarks, command, settings, environment)


def setting_text(value: object) -> str:
    """Return a setting as a reader writes it: yes and no, lists without brackets."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def run_html(groups: Sequence[RunGroup], *, problems: Sequence[str] = (), tell: Tell = lambda text: None) -> str:
    """Return the report.

    Args:
        groups: At least one.
        problems: A sentence about each run that cannot be shown.
        tell: Is called with a text before something that takes long.
    """
    page, several = Page(), len(groups) > 1
    summaries = [(group.name, run_summary(group)) for group in groups]
    sections = [Section("summary", "Summary", render_part("summary", summaries, problems))]
    if several:
        figure = page.figure("comparison", comparison_figure(groups))
        html = _join(_text(SORT), comparison_table(groups).to_html(), figure)
        sections.append(Section("comparison", "Experiments compared", html))
    sections += [Section(name, table.title, table.to_html()) for name, table in further_tables(groups).items()]
    for number, group in enumerate(groups, start=1):
        if not several:
            sections += group_sections(group, page, tell=tell)
            continue
        parts = group_sections(group, page, prefix=f"e{number}-", tell=tell)
        html = _join(*(_join(render_part("heading", part.title), part.html) for part in parts))
        sections.append(Section(f"experiment-{number}", group.name, html))
    return page.render(f"ELI: {f'{len(groups)} experiments' if several else groups[0].name}", sections)


def write_run_report(
    groups: Sequence[RunGroup], path: Path, *, problems: Sequence[str] = (), tell: Tell = lambda text: None
) -> Path:
    """Write the report as one HTML file, see `run_html`; missing folders are made."""
    write_text_atomic(path, run_html(groups, problems=problems, tell=tell))
    return path
