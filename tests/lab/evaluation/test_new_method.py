"""A method in one new file with one decorator appears in rows, tables and reports; no other file changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elign.lab.runs.run_dir import RunDir

FILE = """
import torch
from elign.lab.evaluation.methods.base import BASELINES, method


@method("newest-class", group=BASELINES, text="takes every image for the newest class")
def newest_class(inputs):
    return torch.eye(inputs.classes)[-1].expand(len(inputs.test), -1)
"""
# Stands for a file in the package: its folder is one more place where modules of the package are.
DRIVER = """
import sys
import elign.lab.evaluation.methods as package
package.__path__.append(sys.argv[1])
from elign.lab.cli.main import main
from elign.lab.evaluation.methods import METHODS
print(list(METHODS))
for command in sys.argv[2].split(";"):
    assert main(command.split()) == 0
"""
QUICK = "data=digits protocol.first=4 protocol.increment=3 data.limit=20 train.first_epochs=1 train.epochs=1"
QUICK += " aligner.iterations=2 aligner.steps=2 train.threads=1"


@pytest.fixture(scope="module")
def drill(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drill")
    (folder / "more").mkdir()
    (folder / "more" / "newest_class.py").write_text(FILE)
    out = folder / "run"
    commands = f"run {QUICK} out={out};show {out} --details;report {out} --out {folder / 'page.html'}"
    given = [sys.executable, "-c", DRIVER, str(folder / "more"), commands]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_it_is_listed_after_the_others_of_its_group(drill):
    assert "'forward/local-shift', 'newest-class', 'map/none'" in drill[1].splitlines()[0]


def test_it_has_rows_from_the_second_task_on(drill):
    rows = [row for row in RunDir(drill[0] / "run").gather().rows if row.method == "newest-class"]
    assert [(row.task, row.classifier, row.label_free) for row in rows] == [(2, "own", True), (3, "own", True)]
    assert [row.old for row in rows] == [0, 0]
    assert [row.new for row in rows] == pytest.approx([1 / 3, 1 / 3], abs=0.02)


def test_it_is_in_tables_and_in_the_report(drill):
    folder, shown = drill
    # In the table after the run, in that of `show`, and in its details.
    assert sum(line.strip().startswith("newest-class") for line in shown.splitlines()) >= 3
    page = (folder / "page.html").read_text()
    assert "newest-class" in page
    assert "takes every image for the newest class" in page
