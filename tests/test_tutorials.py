"""The code in the tutorials runs as it is printed, and prints what they show.

All python blocks of a page run one after the other, in one namespace and an empty folder. A text block is what the
python block before it prints; percentages and decimals may differ by as much as another processor's rounding changes a
training. The guide docs/repair.md runs in the same way.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from elign.lab.learners import LEARNERS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path.stem: path for path in (*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "repair.md")}
NEEDS = {"repair-your-model": "onnxruntime", "repair": "torch", "a-detector": "torchvision"}
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r" *(\d+\.\d+|\d+(?= ?%))")
CLOSE = 12


def follow(name, folder, monkeypatch):
    """Do what a tutorial says; what it leaves behind by name."""
    needed = NEEDS.get(name, "sklearn")
    if find_spec(needed) is None:
        pytest.skip(f"{name}.md needs {needed}")
    monkeypatch.chdir(folder)
    names, printed = {"__name__": name}, ""
    with torch.random.fork_rng(), patch.object(LEARNERS, "_found", dict(LEARNERS)):
        for kind, content in BLOCK.findall(PAGES[name].read_text(encoding="utf-8")):
            if kind == "text":
                check(printed, content)
                continue
            with redirect_stdout(io.StringIO()) as output:
                exec(compile(content, f"{name}.md", "exec", dont_inherit=True), names)
            printed = output.getvalue()
    return names


def check(printed, shown):
    """Word by word the same, percentages and decimals about the same."""
    assert NUMBER.sub(" N", printed) == NUMBER.sub(" N", shown), f"printed:\n{printed}\nshown:\n{shown}"
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    far = [(one, other) for one, other in pairs if abs(float(one) - float(other)) > CLOSE]
    assert not far, f"{far} differ by more than {CLOSE}; printed:\n{printed}"


def test_repair_your_model(tmp_path, monkeypatch):
    names = follow("repair-your-model", tmp_path, monkeypatch)
    before, base, repaired, found = (names[name] for name in ("before", "base", "repaired", "found"))
    # What the page says in words, with the smallest differences that would still bear it out.
    assert base[0] < before[0] - 0.2
    assert repaired[0] > base[0] + 0.1
    assert repaired[1] > base[1] - 0.03
    assert max(abs(one - other) for one, other in zip(found["statistics"], repaired, strict=True)) < 0.02
    assert min(found[name][0] for name in ("20 exemplars a class", "both")) > base[0] + 0.1
    assert repaired[0] > found["ELI, soft gate"][0] > base[0] + 0.05
    assert found["ELI, soft gate"][1] < base[1]
    assert found["ELI, no gate"][1] < base[1] - 0.3
    assert found["ELI, oracle"][0] > found["ELI, soft gate"][0]
    assert found["ELI, oracle"][1] == base[1]
    assert abs(found["ridge, soft gate"][0] - found["ELI, soft gate"][0]) < 0.05
    assert (tmp_path / "model.onnx").stat().st_size > 0


def test_repair(tmp_path, monkeypatch):
    follow("repair", tmp_path, monkeypatch)


def test_your_own_learner(tmp_path, monkeypatch):
    names = follow("your-own-learner", tmp_path, monkeypatch)
    assert len(names["methods"]) == 6
    for learner in ("near-latents", "finetune"):
        assert names["methods"][learner, "oracle-mask"].old > names["methods"][learner, "base"].old + 0.3
    assert names["NearLatents"].__name__ not in {cls.__name__ for cls in LEARNERS.values()}


def test_your_own_dataset(tmp_path, monkeypatch):
    names = follow("your-own-dataset", tmp_path, monkeypatch)
    assert all(0 <= names["methods"][name].old <= 1 for name in ("base", "eli/all", "eli/oracle", "oracle-mask"))
    assert (tmp_path / "out" / "mine" / "results.csv").exists()


def test_a_detector(tmp_path, monkeypatch):
    names = follow("a-detector", tmp_path, monkeypatch)
    assert names["moved"].any()
    assert names["run"].tasks() == 2


def test_every_tutorial_has_a_test():
    assert {f"test_{name.replace('-', '_')}" for name in PAGES} <= set(globals())


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_shown_that_no_code_prints(name):
    kinds = [kind for kind, _ in BLOCK.findall(PAGES[name].read_text(encoding="utf-8"))]
    assert kinds.count("python") >= 3
    assert all(before == "python" for before, kind in zip(["text", *kinds], kinds, strict=False) if kind == "text")
