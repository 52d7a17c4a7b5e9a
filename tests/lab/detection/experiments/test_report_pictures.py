"""Pictures of a report: what is drawn on them, in which colour, and that names stay within the picture."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
import torch

from elign.lab.detection.experiments.pictures import PICTURES, read_pictures
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.report.run_detections import pictures_piece
from elign.lab.report.runs import read_runs
from elign.lab.tensor_file import write_tensors

# Boxes on a picture of 64 x 64; the classes from 5 on are new.
FOUND = (
    ((2.0, 2.0, 20.0, 20.0), 0, 0.9),
    ((50.0, 0.0, 64.0, 12.0), 7, 0.5),
    ((40.0, 63.0, 60.0, 64.0), 1, 0.4),
    ((10.0, 10.0, 30.0, 30.0), 2, 0.29),
)


@pytest.fixture
def html(iod, tmp_path):
    """The pictures of a run in which every reading found the same on the first test image."""
    shutil.copytree(iod.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    picture = read_pictures(folder.task(1))[0]
    boxes, labels, scores = zip(*FOUND, strict=True)
    tensors = {"0.image": picture.image}
    tensors |= {f"0.{part}": getattr(picture.objects, part) for part in ("boxes", "labels", "difficult")}
    parts = {"boxes": torch.tensor(boxes), "scores": torch.tensor(scores), "labels": torch.tensor(labels)}
    tensors |= {f"0.{name}.{part}": value.clone() for name in picture.found for part, value in parts.items()}
    write_tensors(folder.task(1) / PICTURES, tensors, {"count": 1})
    (experiment,), _ = read_runs([folder])
    run = experiment.runs[0]
    names = ["<zero>", "one", "two", "three", "four", "five", "six", "dining table", "eight", "nine"]
    named = replace(experiment, runs=(replace(run, facts={**run.facts, "classes": names}),))
    return pictures_piece(named).html


def panels(html):
    return re.findall(r"<svg.*?</svg>", html)


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
