"""Pictures of a report: what is drawn on them, in which colour, and that names stay within the picture."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from elign.lab.report.run_report import pictures_html
from elign.lab.runs.run_dir import RunDir
from elign.lab.storage import write_tensors

# Boxes on a picture of 64 x 64; the classes from 4 on are new.
FOUND = (
    ((2.0, 2.0, 20.0, 20.0), 0, 0.9),
    ((50.0, 0.0, 64.0, 12.0), 6, 0.5),
    ((40.0, 63.0, 60.0, 64.0), 1, 0.4),
    ((10.0, 10.0, 30.0, 30.0), 2, 0.29),
)
NAMES = ["<zero>", "one", "two", "three", "four", "five", "dining table"]


@pytest.fixture
def group(build_group, tmp_path):
    group = build_group(base=[50, 40], classifier="detector")
    run = group.runs[0]
    return replace(group, runs=(replace(run, folder=RunDir(tmp_path), metadata={**run.metadata, "classes": NAMES}),))


@pytest.fixture
def html(group, tmp_path):
    """The pictures of a run in which every method found the same."""
    boxes, labels, scores = map(torch.tensor, zip(*FOUND, strict=True))
    tensors = {"0.image": torch.zeros(3, 64, 64, dtype=torch.uint8)}
    tensors |= {"0.boxes": boxes[:2].clone(), "0.labels": labels[:2].clone(), "0.difficult": torch.zeros(2).bool()}
    for name in ("base", "eli/oracle", "eli/by-prediction"):
        parts = {"boxes": boxes, "scores": scores, "labels": labels}
        tensors |= {f"0.{name}.{part}": value.clone() for part, value in parts.items()}
    (tmp_path / "task-01").mkdir()
    write_tensors(tmp_path / "task-01" / "pictures.safetensors", tensors, {"count": 1})
    return pictures_html(group)


def test_a_run_may_have_none(group):
    assert pictures_html(group) is None


def panels(html):
    return re.findall(r"<svg.*?</svg>", html, re.DOTALL)


def test_what_is_drawn(html):
    assert len(panels(html)) == 3
    for panel in panels(html):
        assert len(re.findall(r'<rect class="(old|new)"', panel)) == 3
        assert re.findall(r'<text class="(\w+)"[^>]*>([^<]*)', panel) == [
            # The surest last, so that nothing covers its name.
            ("old", "one 0.40"),
            ("new", "dining table 0.50"),
            ("old", "&lt;zero&gt; 0.90"),
        ]
        assert panel.rindex("<rect") < panel.index("<text")
        # Each box has an edge, which is seen where its colour is not.
        assert panel.count('class="edge"') == len(re.findall(r'<rect class="(old|new|there)"', panel))
        assert "found &lt;zero&gt; 0.90, dining table 0.50, one 0.40; there is" in panel


def test_names_stay_within_the_picture(html):
    pattern = r'<text class="\w+" x="([\d.]+)" y="([\d.]+)" font-size="([\d.]+)" text-anchor="(\w+)">([^<]*)'
    placed = re.findall(pattern, panels(html)[0])
    assert len(placed) == 3
    for x, y, size, anchor, text in placed:
        # A letter of a usual font is about 0.6 of its size wide.
        width = 0.6 * float(size) * len(text.replace("&lt;", "<").replace("&gt;", ">"))
        left = float(x) if anchor == "start" else float(x) - width
        assert left >= 0
        assert left + width <= 64
        assert float(size) <= float(y) + 1
        assert float(y) <= 64


def test_the_boxes_are_explained(html):
    assert re.findall(r'<li class="(\w+)">', html) == ["old", "new", "there"]
