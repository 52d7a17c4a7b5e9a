"""What was measured and what the page of results says: tables are made again from the kept readings and compared."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from elign.lab.experiments.classification import KIND
from elign.lab.experiments.editions import of_edition
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.reproduce.catalogue import EXPERIMENTS, planned
from elign.lab.reproduce.request import read_request
from elign.lab.reproduce.sheet import sheet_markdown

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "measured"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"<!-- begin (\S+) -->\n(.*?)\n<!-- end \1 -->", PAGE, flags=re.DOTALL))
RUNS = [RunFolder(file.parent) for file in sorted(MEASURED.glob("runs/*/run.json"))]


def commands():
    """The tables on the page that come from kept readings: section and words of the command."""
    for name, text in SECTIONS.items():
        made_by = re.search(r"^Made by `elign reproduce (label-free .*)`\.$", text, flags=re.MULTILINE)
        # Where a folder of pictures is, and so which run that is, differs from machine to machine.
        if made_by and "train.precision=bf16" in made_by[1] and "data.path" not in made_by[1]:
            yield pytest.param(text, made_by[1].split(), id=name)


def test_there_are_tables_and_runs():
    assert RUNS
    assert list(commands())


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.path.name)
def test_a_kept_run_is_whole_and_names_no_place(folder):
    results = folder.gather()
    assert len(results.tasks) == len(results.facts["sizes"])
    assert {file.name for file in folder.path.glob("**/*.*")} == {"run.json", "results.jsonl"}
    assert '"/' not in (folder.path / "run.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(("text", "words"), list(commands()))
def test_a_table_is_what_was_measured(text, words, tmp_path):
    if not all(of_edition(folder.gather().tasks, KIND.edition) for folder in RUNS):
        pytest.skip("the kept readings are of an older edition: their models are gone, so they cannot be read anew")
    shutil.copytree(MEASURED / "runs", tmp_path / "runs")
    names, request = read_request(tuple(EXPERIMENTS), [*words, f"out={tmp_path}"])
    (experiment,) = planned(names, request)
    assert all(job.done for job in experiment.jobs)
    assert sheet_markdown(experiment.sheet()).strip() == text.strip()
