"""The HTML report of runs: one page without network access."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from PIL import Image
from plotly.offline import get_plotlyjs
from torch import Tensor

from elign.lab.evaluation.methods import METHODS, marked
from elign.lab.evaluation.metrics import SMALLEST_SHOWN, difference_text, mean_text, seeds_text
from elign.lab.report.figures import Figure, comparison_figure, group_figures, palette_css
from elign.lab.report.latent_space import embed, energy_figure, heat_figure, latent_figure, run_walk
from elign.lab.report.run_groups import (
    MASK,
    NEAREST_MEAN,
    ORACLE,
    RunGroup,
    comparison_table,
    detection_tables,
    durations_table,
    flat_config,
    further_tables,
    methods_table,
    metric_notes,
)
from elign.lab.report.table import render
from elign.lab.runs.experiment import benchmark_of
from elign.lab.runs.run_dir import memory_text
from elign.lab.storage import read_tensors
from elign.utils.errors import ElignError
from elign.utils.files import write_text_atomic

SORT = "Choose a column title to sort by it; the third time restores this order."
Tell = Callable[[str], None]


def run_summary(group: RunGroup) -> list[str]:
    """Say the result in sentences that stay true for all numbers: base, the default, ELI without and with an oracle."""
    config, sizes, tasks, names = group.config, group.sizes, group.tasks, group.metric_names
    default, free, baseline = group.default, group.best_eli(), group.best_baseline()

    def reached(method: str, metric: str = "average") -> str:
        return f"{mean_text(group.values(method, metric))} %"

    def against(one: str, other: str) -> str:
        difference, agreement = difference_text(group.values(one), group.values(other))
        if abs(difference) < SMALLEST_SHOWN:
            return f"{reached(one)}: the same as {other}."
        more = "more" if difference > 0 else "less"
        return f"{reached(one)}: {abs(difference):.1f} points {more} than {other}, {agreement}."

    count = "1 task" if tasks == 1 else f"{tasks} tasks"
    later = f", then {'/'.join(map(str, sorted(set(sizes[1:]))))} at a time" if len(sizes) > 1 else ""
    seeds = f"seed{'s' if len(group.seeds) > 1 else ''} {', '.join(map(str, group.seeds))}"
    so_far = "" if tasks == len(sizes) else f" Only {tasks} of {len(sizes)} tasks are finished so far."
    runs = (
        f"{config['learner']['name']} learned {sum(sizes[:tasks])} classes of {config['data']['name']} in "
        f"{count} ({sizes[0]} first{later}) with the model {config['model']['name']} and "
        f"{memory_text(config)}; {seeds_text(len(group.runs))} ({seeds}).{so_far}"
    )
    if not group.values(ORACLE) or tasks < 2:
        first = f"Base reaches {reached('base')} after {count}. Methods differ from base after the second task only."
        return [runs, first]
    sentences = [
        runs,
        f"Base, without any correction, has an average {names.measure} over the tasks of {reached('base')}. It reaches "
        f"{reached('base', 'last')} after the last task, {reached('base', 'old')} on old classes and "
        f"{reached('base', 'new')} on new ones.",
    ]
    if group.values(default):
        sentences.append(f"The label-free default ({default}) reaches {against(default, 'base')}")
    if free:
        text = f"The best label-free use of ELI, {free}, reaches {against(free, 'base')}"
        if baseline:
            text += f" The best label-free baseline, {baseline}, reaches {against(baseline, free)}"
        optimistic = "They were chosen by their results on these test images, so their numbers are optimistic."
        sentences.append(f"{text} {optimistic}")
    oracle = f"An oracle knows {names.told}. With it, ELI ({ORACLE}) reaches {against(ORACLE, 'base')}"
    if group.values(MASK):
        oracle += f" Base with the same knowledge ({MASK}) reaches {against(MASK, ORACLE)}"
    if rival := group.best_baseline(uses_labels=True):
        oracle += f" The best baseline with it, {rival}, reaches {against(rival, ORACLE)}"
    return [*sentences, oracle]


class Section(NamedTuple):
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
        return render("figure", name, figure)

    def render(self, title: str, sections: Sequence[Section]) -> str:
        """Return the page, which forbids itself any connection (its content security policy).

        It looks the same without a network and years later, and tells nobody that it was opened.
        """
        frames = {name: asdict(figure.frames) for name, figure in self.figures.items() if figure.frames}
        data = {"figures": {name: figure.spec for name, figure in self.figures.items()}, "frames": frames}
        # Not escaped: constants, files of this package and the script of another one.
        texts = (palette_css() + _template("report.css"), get_plotlyjs(), _template("report.js"))
        style, plotly, script = map(Markup, texts)
        return str(render("page", title, sections, style, data, plotly, script))


def _template(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _text(*sentences: str, kind: str = "note") -> Markup:
    return render("text", sentences, kind)


def _join(*parts: Markup) -> Markup:
    return Markup("\n").join(parts)


def group_sections(group: RunGroup, page: Page, tell: Tell, *, prefix: str = "") -> Iterator[Section]:
    """Yield what is said about one group; `prefix` tells the names of its figures from those of other groups."""
    names = group.metric_names

    def draw(name: str, figure: Figure) -> Markup:
        return page.figure(f"{prefix}{name}", figure)

    drawn = {name: draw(name, figure) for name, figure in group_figures(group)}
    matrices = [html for name, html in drawn.items() if name.startswith("matrix")]
    yield Section("averages", f"Average {names.measure}", drawn["averages"])
    yield Section("curves", f"{names.measure.capitalize()} after each task", drawn["curves"])
    yield Section("methods", "All methods", _methods(group))
    if "trade-off" in drawn:
        yield Section("trade-off", "Old against new classes", drawn["trade-off"])
    yield Section("matrices", "Each task over time", render("columns", matrices))
    if "drift" in drawn:
        yield Section("drift", "Drift of old latents", drawn["drift"])
    # Detectors store no latents.
    if group.tasks > 1 and names.item == "image":
        tell(f"{group.name}: mapping latents")
        yield Section("latents", "Latent space before and after alignment", _latents(group, draw))
    if tables := list(detection_tables(group)):
        pictures = pictures_html(group)
        shown = [] if pictures is None else [render("heading", "On test images"), pictures]
        yield Section("detections", "Detections", _join(_text(SORT), *(table.to_html() for table in tables), *shown))
    yield Section("runs", "How this was run", _runs(group))


def _methods(group: RunGroup) -> Markup:
    notes = "; ".join(metric_notes([group]))
    parts = [_text(SORT), methods_table(group).to_html(), _text(f"{notes}.", kind="note after")]
    if group.methods(NEAREST_MEAN):
        title = "The same with the nearest mean of exemplars as classifier"
        parts.append(render("folded", title, methods_table(group, NEAREST_MEAN).to_html()))
    return _join(*parts)


def _latents(group: RunGroup, draw: Callable[[str, Figure], Markup]) -> Markup:
    """Draw the latents of the first run."""
    run = group.runs[0]
    try:
        walk = run_walk(run)
    except (ElignError, FileNotFoundError) as error:
        return _text(f"The latents of {run.folder.path} cannot be shown: {error}")
    embedding = embed(walk)
    intro, shown = f"Seed {run.seed}, after task {group.tasks}.", len(set(walk.old_labels[embedding.old_index]))
    if shown < walk.old_classes:
        intro += f" The map shows {shown} of the {walk.old_classes} old classes; the figures below it show all."
    sources = (
        "Old: test images of old classes. New: training images of the new task, augmented, under both models: the "
        "pairs that the energy model was fitted to."
    )
    return _join(
        _text(intro),
        draw("latent", latent_figure(walk, embedding)),
        render("heading", "Energies"),
        _text(sources),
        draw("energy", energy_figure(walk)),
        render("heading", "Move of each dimension"),
        draw("heat", heat_figure(walk)),
    )


def _runs(group: RunGroup) -> Markup:
    metadata = group.runs[0].metadata
    command = f"{benchmark_of(metadata).command} {' '.join(map(str, metadata.get('overrides', [])))}"
    settings = {key: _setting(value) for key, value in flat_config(group.config).items()}
    environment = {key: _setting(value) for key, value in metadata["environment"].items()}
    remarks = [f"{sentence}." for sentence in group.remarks]
    return render("run", durations_table(group).to_html(), remarks, command, settings, environment)


def _setting(value: object) -> str:
    """Return a setting as a reader writes it: yes and no, lists without brackets."""
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def run_html(groups: Sequence[RunGroup], *, problems: Sequence[str] = (), tell: Tell = lambda text: None) -> str:
    """Return the report of at least one group, with a sentence about each run that cannot be shown.

    `tell` is called with a text before something that takes long.
    """
    page, several = Page(), len(groups) > 1
    summaries = [(group.name, run_summary(group)) for group in groups]
    sections = [Section("summary", "Summary", render("summary", summaries, problems))]
    if several:
        figure = page.figure("comparison", comparison_figure(groups))
        html = _join(_text(SORT), comparison_table(groups).to_html(), figure)
        sections.append(Section("comparison", "Experiments compared", html))
    sections += [Section(name, table.title, table.to_html()) for name, table in further_tables(groups).items()]
    for number, group in enumerate(groups, start=1):
        parts = group_sections(group, page, tell, prefix=f"e{number}-" if several else "")
        if several:
            html = _join(*(_join(render("heading", part.title), part.html) for part in parts))
            sections.append(Section(f"experiment-{number}", group.name, html))
        else:
            sections += parts
    return page.render(f"ELI: {f'{len(groups)} experiments' if several else groups[0].name}", sections)


def write_run_report(groups: Sequence[RunGroup], path: Path, **options: Any) -> Path:
    """Write the report as one HTML file, with the options of `run_html`; missing folders are made."""
    return write_text_atomic(path, run_html(groups, **options))


LEAST_SCORE = 0.3
"""Detections of lower scores are not drawn."""


def pictures_html(group: RunGroup) -> Markup | None:
    """Draw the test images that the first run has stored for its last task; None if there are none."""
    run = group.runs[0]
    try:
        tensors, metadata = read_tensors(run.folder.task(group.tasks - 1) / "pictures.safetensors")
    except FileNotFoundError:
        return None
    rows = [
        [
            _picture(f"Image {place + 1}, {marked(method)}", f"{place}", f"{place}.{method}", tensors, group)
            for method in METHODS
            if f"{place}.{method}.boxes" in tensors
        ]
        for place in range(metadata["count"])
    ]
    note = (
        f"Seed {run.seed}, after task {group.tasks}: the first test images that show an old object, with detections "
        f"of a score of at least {LEAST_SCORE:g}."
    )
    return render("pictures", note, rows)


def _picture(title: str, there: str, found: str, tensors: Mapping[str, Tensor], group: RunGroup) -> dict[str, Any]:
    """Return what the template needs to draw an image, its objects (`there`) and what a method `found`."""
    names, old_classes = group.runs[0].metadata["classes"], sum(group.sizes[: group.tasks - 1])
    image = tensors[f"{there}.image"]
    _, height, width = image.shape
    parts = (tensors[f"{found}.{part}"].tolist() for part in ("boxes", "scores", "labels"))
    shown = [each for each in zip(*parts, strict=True) if each[1] >= LEAST_SCORE]
    said = ", ".join(f"{names[label]} {score:.2f}" for _, score, label in shown) or "nothing"
    objects = ", ".join(str(names[label]) for label in tensors[f"{there}.labels"].tolist()) or "nothing"
    boxes, labels = [_rectangle(box, "there") for box in tensors[f"{there}.boxes"].tolist()], []
    # The best last: where boxes meet, later ones cover earlier ones.
    for box, score, label in sorted(shown, key=lambda each: each[1]):
        kind = "old" if label < old_classes else "new"
        boxes.append(_rectangle(box, kind))
        labels.append(_label(box, f"{names[label]} {score:.2f}", kind, width, height))
    stream = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, format="PNG", optimize=True)
    return {
        "title": title,
        "alternative": f"{title}: found {said}; there is {objects}",
        "width": width,
        "height": height,
        "data": f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}",
        "boxes": boxes,
        "labels": labels,
    }


def _rectangle(box: Sequence[float], kind: str) -> dict[str, str]:
    left, top, right, bottom = box
    numbers = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return {"kind": kind, **{name: f"{value:.1f}" for name, value in numbers.items()}}


def _label(box: Sequence[float], text: str, kind: str, width: int, height: int) -> dict[str, str]:
    """Place a name in the upper corner of its box that leaves more room before the edge of the picture."""
    left, top, right, _ = box
    size = max(width, height) / 22
    x, anchor = (left + size / 6, "start") if left + right < width else (right - size / 6, "end")
    y = min(top + size, height - size / 4)
    return {"kind": kind, "text": text, "anchor": anchor, "x": f"{x:.1f}", "y": f"{y:.1f}", "size": f"{size:.1f}"}
