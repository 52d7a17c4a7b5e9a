"""The code in docs/integrations.md: what can run runs on the stand-ins, the rest is quoted from examples that run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import elign

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")


def block(title):
    """The code under a heading."""
    return re.search(rf"^## {title}$.*?```python\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE).group(1)


@pytest.mark.parametrize("name", ["Avalanche", "Lightning", "transformers", "timm"])
def test_quoted_lines_stand_in_the_example(name):
    example = (ROOT / "examples" / f"{name.lower()}_elign.py").read_text(encoding="utf-8")
    lines = [line.split("  # noqa")[0].strip() for line in example.splitlines()]
    quoted = [line.strip() for line in block(name).splitlines() if line.strip()]
    assert len(quoted) >= 6
    assert [line for line in quoted if line not in lines] == []


def test_the_class_for_pycil_runs(stand_in, digits, monkeypatch):
    pycil = stand_in("pycil_stand_in")
    monkeypatch.setitem(sys.modules, "models.finetune", pycil)
    names = {}
    exec(block("PyCIL"), names)
    learner, manager = names["Learner"]({"seed": 0}), pycil.DataManager(digits)
    for _ in range(2):
        learner.incremental_train(manager)
        assert 0 < learner.eval_task()[0] <= 100
        learner.after_task()
    assert isinstance(learner.task_repair.fitted, elign.Repair)


def test_the_class_for_mammoth_runs(stand_in, digits, new_net, monkeypatch):
    mammoth = stand_in("mammoth_stand_in")
    monkeypatch.setitem(sys.modules, "models.sgd", mammoth)
    names = {}
    exec(block("mammoth"), names)
    model, dataset = names["Model"](new_net()), mammoth.ContinualDataset(digits)
    for task in range(2):
        mammoth.train(model, dataset, task)
    x, _ = digits.test
    outputs = mammoth.evaluate(model, x)
    model.task_repair.enabled = False
    assert not torch.equal(outputs, mammoth.evaluate(model, x))
