"""Runs are found, read without being changed, grouped by group and named apart."""

from __future__ import annotations

import json
import shutil

import pytest

from elign.lab.report.run_groups import find_runs, read_runs
from elign.lab.runs.run_dir import RunDir, RunError
from elign.lab.storage import read_object, write_object


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_seeds_are_grouped_and_nothing_is_written(run_folders):
    before = contents(run_folders)
    groups, problems = read_runs(find_runs([run_folders]))
    assert [(each.name, each.seeds, each.tasks) for each in groups] == [
        ("icarl on digits, 4+3", [0, 1], 3),
        ("lucir on digits, 4+3", [0], 3),
    ]
    assert problems == []
    assert contents(run_folders) == before


def test_numbers_are_those_of_the_results(run_folders):
    (group,) = read_runs([RunDir(run_folders / "lucir")])[0]
    lines = (run_folders / "lucir" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    base = [row for row in rows if row.get("method") == "base" and row["classifier"] == "fc"]
    assert group.curves("base") == [[pytest.approx(100 * row["accuracy"]) for row in base]]
    assert group.matrix("base")[2] == [pytest.approx(100 * value) for value in base[2]["by_task"]]
    assert group.values("base", "last") == [pytest.approx(100 * base[2]["accuracy"])]
    assert group.values("base", "gate_accuracy") == []
    assert set(group.drift()) == {"base", "eli", "mean-shift", "ridge", "random-shift", "untrained"}
    assert len(group.drift()["eli"][0]) == 2


def test_groups_that_differ_in_a_setting_are_told_apart(run_folders, tmp_path):
    shutil.copytree(run_folders / "lucir", tmp_path / "other")
    metadata = read_object(tmp_path / "other" / "run.json")
    metadata["config"]["train"]["learning_rate"] = 0.5
    write_object(tmp_path / "other" / "run.json", metadata)
    groups, _ = read_runs(find_runs([run_folders / "lucir", tmp_path]))
    assert [each.name for each in groups] == [
        "lucir on digits, 4+3, train.learning_rate=0.1",
        "lucir on digits, 4+3, train.learning_rate=0.5",
    ]


def test_a_run_that_is_less_far_is_not_averaged(run_folders, tmp_path):
    shutil.copytree(run_folders / "icarl-1", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "task-02")
    (group,) = read_runs([RunDir(tmp_path / "run"), RunDir(run_folders / "icarl-0")])[0]
    assert group.seeds == [0]
    assert "(seed 1) has finished 2 of 3 tasks" in group.remarks[0]


def test_what_cannot_be_read_is_named(run_folders, tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    shutil.copytree(run_folders / "lucir", tmp_path / "empty", ignore=shutil.ignore_patterns("task-*"))
    with pytest.raises(RunError, match="no results yet"):
        read_runs(find_runs([tmp_path]))
    groups, problems = read_runs(find_runs([tmp_path, run_folders / "lucir"]))
    assert len(groups) == 1
    assert "damaged" in problems[0]
    assert "has no results yet" in problems[1]
    with pytest.raises(RunError, match="there is no run in"):
        find_runs([tmp_path / "nowhere"])
