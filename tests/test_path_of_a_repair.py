"""Through how many files the README's three lines go: whoever follows them in a debugger has to read these."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import elign

ROOT = Path(elign.__file__).parent
# 21 in version 0.1; the goal is 14.
MOST_FILES = 14


def data(*classes):
    generator = torch.Generator().manual_seed(0)
    centers = 6 * torch.randn(4, 8, generator=generator)
    labels = torch.tensor(classes).repeat(50)
    return [(centers[labels] + torch.randn(len(labels), 8, generator=generator), labels)]


@contextmanager
def files_that_run():
    """Collect the files of the package in which a function runs meanwhile."""
    names, before = set(), sys.gettrace()

    def trace(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_name != "<module>" and path.is_relative_to(ROOT):
            names.add(path.relative_to(ROOT).as_posix())

    sys.settrace(trace)
    try:
        yield names
    finally:
        sys.settrace(before)


def test_the_three_lines_go_through_few_files(tmp_path):
    torch.manual_seed(0)
    old_model, new_model = (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval() for _ in range(2))
    old_loader, new_loader = data(0, 1), data(2, 3)
    with files_that_run() as names:
        statistics = elign.ClassStatistics.from_data(old_model, "1", old_loader)
        repair = elign.Repair("1").fit(old_model, new_model, new_loader, statistics=statistics)
        repair.attach(new_model)
        logits = new_model(new_loader[0][0])
        repair.save(tmp_path / "repair.safetensors")
    assert repair.mode == "classifier"
    assert torch.isfinite(logits).all()
    assert {"repair.py", "statistics/class_statistics.py", "classifiers/gaussian.py"} <= names
    assert len(names) <= MOST_FILES, f"{len(names)} files: {', '.join(sorted(names))}"
