"""What detection runs have of their own in a report: each class, COCO's numbers, the unknown, images and finds."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from elign.lab.evaluation.catalogue import READINGS
from elign.lab.evaluation.class_details import COCO, UNKNOWN
from elign.lab.report.page import Cell, Grid
from elign.lab.report.run_readings import FREE_ELI, ORACLE, best, marked
from elign.lab.report.run_tables import value_cell
from elign.lab.report.runs import Experiment
from elign.lab.report.sections import Piece, boxed, joined, words

if TYPE_CHECKING:
    from torch import Tensor

    from elign.lab.detection.evaluation.average_precision import Detections
    from elign.lab.detection.experiments.pictures import KeptPicture

LEAST_SCORE = 0.3
"""Detections of lower scores are not drawn."""


def class_table(experiment: Experiment) -> Grid:
    """Average precision of each class after the last finished task: base, ELI, and the best label-free ELI."""
    free = best(experiment, FREE_ELI)
    readings = [name for name in ("base", ORACLE, free) if name and experiment.values(name) is not None]
    names = experiment.runs[0].facts["classes"][: sum(experiment.sizes[: experiment.tasks])]
    precisions = [run.tasks[-1]["average_precision"] for run in experiment.runs]
    task_of = [number for number, size in enumerate(experiment.sizes, start=1) for _ in range(size)]
    rows = [
        [
            Cell.words(str(name)),
            Cell(str(task_of[label]), task_of[label]),
            *(value_cell(_values(precisions, reading, label)) for reading in readings),
        ]
        for label, name in enumerate(names)
    ]
    caption = f"Average precision of each class after task {experiment.tasks}, in %"
    return Grid(caption, ["class", "task", *(marked(name) for name in readings)], rows)


def coco_table(experiment: Experiment) -> Grid | None:
    """COCO's means over classes of every reading after the last finished task; None if they were not asked for."""
    found = [run.tasks[-1].get("coco", {}) for run in experiment.runs]
    names = [name for name in READINGS if all(name in each for each in found)]
    if not names:
        return None
    rows = [
        [
            Cell.words(marked(name)),
            *(value_cell([100 * each[name][part] for each in found]) for part in COCO),
        ]
        for name in names
    ]
    caption = f"COCO's average precision after task {experiment.tasks}, means over classes, in %"
    return Grid(caption, ["reading", *COCO], rows)


def unknown_table(experiment: Experiment) -> Grid | None:
    """How well unknown objects were told apart after each task; None where nothing is said of the unknown."""
    runs = [[task for task in run.tasks if "unknown" in task] for run in experiment.runs]
    tasks = [tasks[0] for tasks in zip(*runs, strict=False)]
    if not tasks:
        return None
    names = list(tasks[0]["unknown"]["area_under_roc"])
    rows = []
    for place, task in enumerate(tasks):
        areas = [run[place]["unknown"]["area_under_roc"] for run in runs]
        values = [value_cell([100 * each[name] for each in areas]) for name in names]
        rows.append([Cell(str(task["task"]), task["task"]), *values])
    return Grid(UNKNOWN, ["after task", *names], rows)


def _values(precisions: Sequence[dict[str, list[float | None]]], reading: str, label: int) -> list[float] | None:
    """One for each run; None if a run has none: there is no such object in its test images."""
    values = [each[reading][label] for each in precisions if reading in each]
    known = [100 * value for value in values if value is not None]
    return known if len(known) == len(precisions) else None


def pictures_piece(experiment: Experiment) -> Piece | None:
    """Test images of the last task with what was found on them, before and after alignment."""
    from elign.lab.detection.experiments.pictures import SHOWN, read_pictures

    run = experiment.runs[0]
    folder = run.folder.task(experiment.tasks - 1)
    try:
        pictures = read_pictures(folder)
    except FileNotFoundError:
        return None
    names = [str(name) for name in run.facts["classes"]]
    known = sum(experiment.sizes[: experiment.tasks - 1])
    note = (
        f"Seed {run.seed}, after task {experiment.tasks}: the first test images that show an old object, with "
        f"detections that have a score of at least {LEAST_SCORE:g}."
    )
    rows = []
    for number, picture in enumerate(pictures, start=1):
        panels = [
            _panel(picture, picture.found[reading], f"Image {number}, {marked(reading)}", names, known)
            for reading in SHOWN
            if reading in picture.found
        ]
        rows.append(boxed(joined(panels), "panels"))
    return words([note], kind="note") + _key() + joined(rows)


def _key() -> Piece:
    """What the boxes stand for."""
    meanings = {"old": "found, of an old class", "new": "found, of a new class", "there": "what is there"}
    items = "".join(f'<li class="{kind}">{escape(text)}</li>' for kind, text in meanings.items())
    return Piece(f'<ul class="key">{items}</ul>')


def _panel(picture: KeptPicture, found: Detections, title: str, names: Sequence[str], known: int) -> Piece:
    """One image with the boxes of one reading, as a drawing that carries its picture in itself."""
    _, height, width = picture.image.shape
    shown = [
        (box.tolist(), int(label), float(score))
        for box, label, score in zip(found.boxes, found.labels, found.scores, strict=True)
        if float(score) >= LEAST_SCORE
    ]
    said = ", ".join(f"{names[label]} {score:.2f}" for _, label, score in shown) or "nothing"
    there = ", ".join(names[int(label)] for label in picture.objects.labels) or "nothing"
    alternative = f"{title}: found {said}; there is {there}"
    boxes, labels = "".join(_rectangle(box.tolist(), "there") for box in picture.objects.boxes), ""
    # The best last, and names after all boxes: where they meet, what comes later covers what came before.
    for box, label, score in sorted(shown, key=lambda each: each[2]):
        kind = "old" if label < known else "new"
        boxes += _rectangle(box, kind)
        labels += _label(box, f"{names[label]} {score:.2f}", kind, of=(width, height))
    drawing = (
        f'<svg class="picture" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(alternative)}">'
        f'<image href="{_data(picture.image)}" width="{width}" height="{height}"/>{boxes}{labels}</svg>'
    )
    return Piece(f"<figure>{drawing}<figcaption>{escape(title)}</figcaption></figure>")


def _rectangle(box: Sequence[float], kind: str) -> str:
    left, top, right, bottom = box
    place = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    # Twice: pictures are light here and dark there, and every colour needs an edge to be seen on all of them.
    return f'<rect class="edge" {place}/><rect class="{kind}" {place}/>'


def _label(box: Sequence[float], text: str, kind: str, *, of: tuple[int, int]) -> str:
    """In an upper corner of the box, the one that leaves more room before the edge of the picture cuts it off."""
    left, top, right, _ = box
    width, height = of
    size = max(of) / 22
    at_left = left + right < width
    x, anchor = (left + size / 6, "start") if at_left else (right - size / 6, "end")
    place = f'x="{x:.1f}" y="{min(top + size, height - size / 4):.1f}" font-size="{size:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def _data(image: Tensor) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
