"""Results on disk: there and back, and named errors for what is damaged."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.evaluation.metrics import Row, summarise
from elign.lab.runs.experiment import benchmark_of
from elign.lab.runs.run_dir import JSON_NAME, Results, RunDir, read_results, write_results
from elign.lab.storage import DamagedRunError

METADATA = {"name": "a run", "seed": 3, "versions": {"torch": "2"}, "title": "täsk\u2028"}
DRIFT = {"base": {"distance": 0.5, "cosine_distance": 0.25, "moved": 0.0}}
ROWS = [
    Row(task, method, "fc", True, 0.875, 0.5, None, 0.25, None, 0.0, (0.5,) * task)
    for task in (1, 2, 3)
    for method in ("base", "eli/all")
]
TASKS = [
    {"task": task, "evaluation_version": 1, "seconds": {"train": 1.5}, "drift": DRIFT if task > 1 else {}}
    for task in (1, 2, 3)
]


@pytest.fixture
def path(tmp_path):
    return write_results(tmp_path / "new folder", Results(METADATA, ROWS, TASKS))


def test_there_and_back(path):
    assert read_results(path) == Results(METADATA, ROWS, TASKS)
    kinds = [json.loads(line)["kind"] for line in path.read_text().split("\n")[:-1]]
    assert kinds == ["run", *["row"] * len(ROWS), *["task"] * 3]
    assert [entry.name for entry in sorted(path.parent.iterdir())] == ["results.csv", "results.jsonl"]
    with path.with_name("results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, ROWS, strict=True):
        assert (line["method"], float(line["accuracy"]), line["new"]) == (row.method, row.accuracy, "")
        assert tuple(float(value) for value in line["by_task"].split(";")) == row.by_task


def test_a_file_of_a_version_without_digests_is_read(path):
    change(path, 1, edited(digest="remove"))
    assert read_results(path) == Results(METADATA, ROWS, TASKS)


def test_numbers_that_are_none_are_refused_before_anything_is_written(path):
    with pytest.raises(ValueError, match="JSON"):
        write_results(path.parent, Results({"seed": float("nan")}, ROWS, []))
    assert read_results(path).metadata == METADATA


def change(path, number, edit):
    lines = path.read_text().split("\n")
    lines[number - 1] = edit(lines[number - 1])
    path.write_text("\n".join(lines))


def edited(**values):
    def edit(line):
        return json.dumps({k: v for k, v in (json.loads(line) | values).items() if v != "remove"})

    return edit


@pytest.mark.parametrize(
    ("number", "edit", "message"),
    [
        (1, edited(kind="row"), "line 1, is damaged: kind"),
        (1, edited(version=None), "line 1, is damaged: version"),
        (1, edited(metadata=[]), "line 1, is damaged: metadata"),
        (1, edited(version=99), "upgrade elign"),
        (1, edited(lines=5), "5 lines should follow"),
        (1, edited(lines="9"), "line 1, is damaged: lines"),
        (1, lambda line: "[]", "line 1, is damaged: it holds no object"),
        (4, lambda line: line[:20], "line 4, is damaged"),
        (4, lambda line: "[" * 100_000, "line 4, .*deeply"),
        (4, edited(accuracy="remove"), "line 4, .*accuracy"),
        (4, edited(accuracy=1.5), "line 4, .*accuracy.*not 1.5"),
        (4, edited(accuracy=10**400), "line 4, .*accuracy"),
        (4, edited(accuracy=None), "line 4, .*accuracy.*not None"),
        (4, edited(task=True), "line 4, .*task.*not True"),
        (4, edited(task=0), "line 4, .*task"),
        (4, edited(task=10**9), "line 4, .*task"),
        (4, edited(label_free=1), "line 4, .*label_free.*not 1"),
        (4, edited(by_task=[0.1, "x"]), "line 4, .*by_task"),
        (4, edited(method=3), "line 4, .*method.*not 3"),
        (4, edited(extra=3), "line 4, .*extra"),
        (4, edited(kind="nonsense"), "line 4, .*neither"),
        (8, edited(metadata=[]), "line 8, .*metadata"),
        (8, edited(metadata={}), "line 8, .*task"),
        (8, edited(metadata={"task": 10**9}), "line 8, .*task"),
        (8, edited(metadata={"task": 1, "seconds": 3}), "line 8, .*seconds"),
        (8, edited(metadata={"task": 1, "seconds": {"fit": "x"}}), "line 8, .*seconds.fit"),
        (8, edited(metadata={"task": 1, "drift": {"base": {}}}), "line 8, .*drift.base.distance"),
        (8, edited(metadata={"task": 1, "drift": [1]}), "line 8, .*drift"),
        (8, edited(metadata={"task": 1, "evaluation_version": "1"}), "line 8, .*evaluation_version"),
        (8, edited(metadata={"task": 1, "average_precision": 1}), "line 8, .*average_precision"),
        (8, edited(metadata={"task": 1, "unknown": {}}), "line 8, .*unknown.area_under_roc"),
    ],
)
def test_tampered_lines_are_named(path, number, edit, message):
    change(path, number, edit)
    with pytest.raises(DamagedRunError, match=message):
        read_results(path)


OLD_RUN = RunDir(Path(__file__).with_name("old_run"))


def test_a_run_of_version_0_1_loads_with_identical_numbers():
    """The folder was written by version 0.1; what it says is taken from its files without the reader."""
    found = OLD_RUN.gather()
    lines = [json.loads(line) for line in (OLD_RUN.path / JSON_NAME).read_text().splitlines()]
    rows = [line for line in lines if line["kind"] == "row"]
    assert len(found.rows) == len(rows) == 47
    for row, line in zip(found.rows, rows, strict=True):
        stored = [line[field.name if field.name != "method" else "reading"] for field in dataclasses.fields(Row)]
        assert [*dataclasses.astuple(row)[:-1], list(row.by_task)] == stored
    assert read_results(OLD_RUN.path / JSON_NAME).rows == found.rows
    tasks = [line["facts"] for line in lines if line["kind"] == "task"]
    assert [task["drift"] for task in found.tasks] == [task["drift"] for task in tasks]
    assert [task["evaluation_version"] for task in found.tasks] == [task["edition"] for task in tasks] == [1, 1]
    assert found.tasks[1]["seconds"]["methods"] == tasks[1]["seconds"]["readings"]
    # As `eli show` of version 0.1 printed it.
    summaries = {summary.method: summary for summary in summarise(found.rows) if summary.classifier in ("fc", "blend")}
    shown = {name: [f"{100 * value:.1f}" for value in (s.average, s.last)] for name, s in summaries.items()}
    assert shown["base"] == ["32.6", "30.6"]
    assert shown["blend"] == ["54.4", "74.3"]
    assert shown["mean-shift/oracle"] == ["33.7", "32.8"]
    metadata = found.metadata
    assert (metadata["benchmark"], metadata["precision"], metadata["channels_last"]) == ("classification", "32", False)
    config = benchmark_of(metadata).from_dict(metadata["config"])
    assert (config.train.fast, config.train.threads, config.protocol.first) == (False, 1, 5)


def test_cut_off_anywhere(path):
    whole = path.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1, whole.rindex(b"\n", 0, -1) + 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedRunError, match=r"line \d+, is damaged"):
            read_results(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_results(tmp_path / "results.jsonl")


@fuzz(150)
@given(data=st.data())
def test_no_damage_passes(tmp_path, data):
    path = write_results(tmp_path, Results(METADATA, ROWS, TASKS))
    path.write_bytes(data.draw(damaged((path.read_bytes(),), text=True)))
    found = answer(lambda: read_results(path), names=path)
    first = json.loads(path.read_bytes().split(b"\n")[0]) if found else {}
    # Without its digest a file is one of an older version, which nothing vouches for.
    assert found is None or found == Results(METADATA, ROWS, TASKS) or "digest" not in first


def test_metadata_that_are_no_text_can_be_written(tmp_path):
    metadata = {"overrides": ["out=f\udce4lder"]}  # a folder's name in Latin-1, as Python sees it
    assert read_results(write_results(tmp_path, Results(metadata, ROWS, []))).metadata == metadata
