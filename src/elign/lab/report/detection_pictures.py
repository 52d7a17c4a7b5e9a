"""Test images of detectors with the boxes that methods found, as drawings for a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from PIL import Image
from torch import Tensor

from elign.lab.evaluation.methods import METHODS, marked
from elign.lab.report.run_groups import RunGroup
from elign.lab.report.table import render
from elign.lab.storage import read_tensors

LEAST_SCORE = 0.3
"""Detections of lower scores are not drawn."""


def pictures_html(group: RunGroup) -> Markup | None:
    """Draw the test images that the first run has stored for its last task; None if there are none.

    Raises:
        DamagedRunError: The file cannot be read.
    """
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
