"""Drills: a new learner and a new data set are one file with one decorator each, and then work everywhere.

Each file is put into a folder on the package's search path, in a process of its own; nothing else changes.
"""

import json
import subprocess
import sys

import pytest

LEARNER = '''
"""Shrinks the logits."""

from pydantic import PositiveFloat

from elign.lab.learners.base import LEARNERS, Learner, LearnerOptions, Loss


@LEARNERS.register("drill-shrink")
class DrillShrink(Learner):
    """Cross entropy + `strength` times the mean square of the logits."""

    class Options(LearnerOptions):
        strength: PositiveFloat = 0.5

    default_head = "linear"

    def forward(self, images, labels):
        terms, logits = super().forward(images, labels)
        return Loss(terms | {"size": self.options.strength * logits.square().mean()}, logits)
'''

DATA = '''
"""Bars at four heights."""

import torch

from elign.lab.data.base import DATASETS, ImageData, MemorySource


@DATASETS.register("drill-bars")
class DrillBars(MemorySource):
    """Noise and a bright row, whose height is the class."""

    class_count = 4
    images = "digits"
    crop_padding = 0
    flip = False

    def load(self, root):
        labels = torch.arange(80) % 4
        images = torch.randint(90, (80, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        images[torch.arange(80), 0, 2 * labels] = 255
        return ImageData(self.name, images[:60], labels[:60], images[60:], labels[60:], ("a", "b", "c", "d"))
'''

# Prints the code and the output of each command.
PROGRAM = """
import contextlib, io, json, sys

import elign.lab.data
import elign.lab.learners
from elign.lab.cli.main import main

elign.lab.learners.__path__.append("learners")
elign.lab.data.__path__.append("data")
found = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(words)
    found.append((code, out.getvalue()))
print(json.dumps(found))
"""

BOTH = ["learner=drill-shrink", "data=drill-bars"]
SHORT = ["protocol=half-1", "train.first_epochs=1", "train.epochs=1", "learner.strength=2", "out=out/drill"]
COMMANDS = {
    "data": ["data"],
    "show": ["data", "drill-bars"],
    "keys": ["run", "--keys"],
    "run": ["run", *BOTH, *SHORT],
    "list": ["list"],
    "negative": ["run", *BOTH, "learner.strength=-1"],
    "misspelt": ["run", *BOTH, "learner.strenght=1"],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drill")
    for name, content in (("learners", LEARNER), ("data", DATA)):
        (folder / name).mkdir()
        (folder / name / f"drill_{name}.py").write_text(content)
    return folder


@pytest.fixture(scope="module")
def said(root):
    """The code and the output of each command, in a process that has both files on its search paths."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([*COMMANDS.values()])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    return dict(zip(COMMANDS, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_both_are_listed(said):
    code, text = said["data"]
    assert code == 0
    assert any(line.split()[:3] == ["drill-bars", "found", "4"] for line in text.splitlines()), text
    assert "1 x 8 x 8" in said["show"][1]
    code, text = said["keys"]
    assert code == 0
    assert all(name in text for name in ("drill-shrink", "drill-bars"))


def test_both_run_and_are_shown(root, said):
    code, text = said["run"]
    assert code == 0, text
    config = json.loads((root / "out/drill/run.json").read_text())["config"]
    assert config["learner"] == {
        **{"name": "drill-shrink", "head": "linear", "freeze_old": False, "imprint": True},
        "options": {"strength": 2.0},
    }
    assert (config["data"]["name"], config["model"]["name"]) == ("drill-bars", "conv")
    assert (root / "out/drill/results.jsonl").stat().st_size > 0
    code, text = said["list"]
    assert code == 0
    assert "drill-shrink" in text


@pytest.mark.parametrize("command", ["negative", "misspelt"])
def test_its_options_are_checked(said, command):
    code, text = said[command]
    assert code == 1
    assert "learner.stren" in text


LIST = """
import sys
from elign.lab.cli.main import main
assert main(["list", sys.argv[1]]) == 0
learners = {"icarl", "lucir", "aanet", "finetune"}
print([name for name in sys.modules if name.rpartition(".")[2] in learners and name.startswith("elign.lab.learners")])
"""


def test_a_list_of_runs_imports_no_learner(root, said):
    done = subprocess.run([sys.executable, "-c", LIST, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
