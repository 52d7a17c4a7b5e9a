"""`report.html` of a repair: one page without scripts and without network access."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from elign.lab.data.base import DamagedFileError
from elign.lab.data.pictures import cut_strip, read_picture
from elign.lab.repairing.repair_job import Repaired, TestResult
from elign.lab.report.figures import palette_css
from elign.utils.files import write_text_atomic

_ALTERNATIVES = {"bias offset": "One offset for the new classes", "retrained head": "A retrained head"}
_GROUPS = {"balanced": "All classes", "old": "Old classes", "new": "New classes"}
_ATTACH = 'import elign\nrepair = elign.Repair.load("repair.safetensors")\nrepair.attach(model)'
_MOST, _PICTURES, _SIDE = 3, 4, 72
_ROW, _GAP = 32, 34  # pixels of a bar with its text, and of the title of a group


def write_page(content: Mapping[str, Any], done: Repaired) -> Path:
    """Write the page of a repair whose `report.json` holds this content."""
    environment = Environment(
        loader=PackageLoader("elign.lab.repairing"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["percent"] = lambda value: f"{100 * value:.1f}\u00a0%"
    environment.filters["size"] = _size
    style = resources.files("elign.lab.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
    page = environment.get_template("repair.html").render(
        content=content,
        style=palette_css() + style,
        cards=_cards(content),
        groups=_bars(content),
        changes=_changes(content["classes"], done.test),
        attach=_ATTACH,
        tested=done.test is not None,
        names=_ALTERNATIVES,
    )
    return write_text_atomic(done.request.out / "report.html", page)


def _size(number: int) -> str:
    return f"{number / 1e6:.1f}\u00a0MB" if number >= 1e5 else f"{number / 1e3:.1f}\u00a0kB"


def _cards(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return title, number, and old and new accuracy of each card."""
    accuracy, best = content["accuracy"], content["accuracy"]["best alternative"]
    rows = (
        ("Before", accuracy["before"], "the head alone"),
        ("After", accuracy["after"], "this repair"),
        (
            "Best simple alternative",
            accuracy["alternatives"].get(best),
            _ALTERNATIVES.get(best, "none to compare with"),
        ),
    )
    return [
        {"title": title, "row": row, "text": f"{text}, {content['measured_on']}" if row else text}
        for title, row, text in rows
    ]


def _bars(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the groups of bars with their places in pixels from the top of the chart."""
    accuracy, best = content["accuracy"], content["accuracy"]["best alternative"]
    series = [("before", accuracy["before"], "before"), (best, accuracy["alternatives"].get(best), "control")]
    series += [("after", accuracy["after"], "accent")]
    shown = [(name, row, colour) for name, row, colour in series if row]
    groups, top = list[dict[str, Any]](), 0
    for key, title in _GROUPS.items() if shown else ():
        bars = [
            {"name": name, "value": row[key], "colour": colour, "top": top + _GAP + place * _ROW}
            for place, (name, row, colour) in enumerate(shown)
        ]
        groups.append({"title": title, "top": top, "bars": bars})
        top += _GAP + len(shown) * _ROW + 8
    return groups


def _changes(classes: Sequence[Mapping[str, Any]], test: TestResult | None) -> list[dict[str, Any]]:
    """Return the classes that gained and lost most, with pictures of them."""
    if test is None:
        return []
    measured = [each for each in classes if "after" in each]
    ranked = sorted(measured, key=lambda each: each["after"] - each["before"], reverse=True)
    gained = [each for each in ranked[:_MOST] if each["after"] > each["before"]]
    lost = [each for each in reversed(ranked[-_MOST:]) if each["after"] < each["before"]]
    return [
        {"title": title, "classes": [{**each, "pictures": _thumbnails(test, each, won=won)} for each in some]}
        for title, some, won in (("Gained most", gained, True), ("Lost most", lost, False))
        if some
    ]


def _thumbnails(test: TestResult, entry: Mapping[str, Any], *, won: bool) -> list[dict[str, str]]:
    """Return small pictures of a class: first those whose prediction became right (or wrong, where it lost)."""
    mine = (test.labels == entry["output"]).nonzero().squeeze(1)
    right_before, right_after = (scores[mine].argmax(dim=1) == entry["output"] for scores in (test.before, test.after))
    turned = (right_after & ~right_before) if won else (right_before & ~right_after)
    chosen = mine[turned.int().argsort(descending=True, stable=True)][:_PICTURES]
    found = []
    for row in chosen.tolist():
        file = test.pictures.files[int(test.rows[row])]
        try:
            image = cut_strip(read_picture(test.pictures.root / file))
        except DamagedFileError:  # it was good a minute ago
            continue
        image.thumbnail((_SIDE, _SIDE), Image.Resampling.BILINEAR)
        data = io.BytesIO()
        image.save(data, "JPEG", quality=80)
        found.append({"name": file, "data": f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"})
    return found
