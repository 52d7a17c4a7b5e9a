"""Tables on the page of results are made again from `measured/` and compared."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from elign.lab.paper.reproduction import plan_experiments
from elign.lab.paper.request import read_request
from elign.lab.runs.run_dir import RunDir

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "measured"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"<!-- begin (\S+) -->\n(.*?)\n<!-- end \1 -->", PAGE, flags=re.DOTALL))
RUNS = [RunDir(file.parent) for file in sorted(MEASURED.glob("*/*/run.json"))]


def commands():
    """The tables on the page that come from kept results: section and words of the command."""
    for name, text in SECTIONS.items():
        made_by = re.search(r"^Made by `elign reproduce (label-free .*)`\.$", text, flags=re.MULTILINE)
        # Where a folder of pictures is, and so which run that is, differs from machine to machine.
        if made_by and "train.fast=true" in made_by[1] and "data.path" not in made_by[1]:
            yield pytest.param(text, made_by[1].split(), id=name)


def test_there_are_tables_and_runs():
    assert RUNS
    assert list(commands())


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.path.name)
def test_a_kept_run_is_whole_and_names_no_place(folder):
    results = folder.gather()
    assert len(results.tasks) == len(results.metadata["sizes"])
    files = [file for file in folder.path.glob("**/*") if file.is_file()]
    assert {file.name for file in files} == {"run.json", "results.jsonl"}
    assert not any('"/' in file.read_text(encoding="utf-8") for file in files if file.name == "run.json")


@pytest.mark.parametrize(("text", "words"), list(commands()))
def test_a_table_is_what_was_measured(text, words, tmp_path):
    shutil.copytree(MEASURED / "runs", tmp_path / "runs")
    (plan,) = plan_experiments(*read_request([*words, f"out={tmp_path}"]))
    assert all(job.done for job in plan.jobs)
    assert plan.tables()[0].to_markdown().strip() == text.strip()
