"""Results on disk: there and back, and named errors for what is damaged."""

from __future__ import annotations

import csv
import json

import pytest

from elign.lab.evaluation.results import read_results, task_facts, write_results
from elign.lab.tensor_file import DamagedRunError

FACTS = {"name": "a run", "seed": 3, "versions": {"torch": "2"}, "title": "täsk\u2028"}


@pytest.fixture
def path(run, tmp_path):
    tasks = [task_facts(number, evaluation) for number, evaluation in enumerate(run.evaluations, start=1)]
    return write_results(tmp_path / "new folder", run.rows, FACTS, tasks=tasks)


def test_there_and_back(run, path):
    found = read_results(path)
    assert found.facts == FACTS
    assert found.rows == run.rows
    assert [task["task"] for task in found.tasks] == [1, 2, 3]
    assert found.tasks[2]["drift"]["ridge"]["distance"] == run.evaluations[2].drift["ridge"].distance
    assert found.tasks[1]["seconds"] == run.evaluations[1].seconds
    kinds = [json.loads(line)["kind"] for line in path.read_text().split("\n")[:-1]]
    assert kinds == ["run", *["row"] * len(run.rows), *["task"] * 3]
    assert [entry.name for entry in sorted(path.parent.iterdir())] == ["results.csv", "results.jsonl"]


def test_csv(run, path):
    with path.with_name("results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(run.rows)
    for line, row in zip(lines, run.rows, strict=True):
        assert (int(line["task"]), line["reading"], line["classifier"]) == (row.task, row.reading, row.classifier)
        assert float(line["accuracy"]) == row.accuracy
        assert line["old"] == ("" if row.old is None else str(row.old))
        assert tuple(float(value) for value in line["by_task"].split(";")) == row.by_task
        assert line["label_free"] == str(row.label_free)


def test_written_over(run, path):
    write_results(path.parent, run.rows[:1], {"seed": 4})
    found = read_results(path)
    assert (found.facts, found.rows, found.tasks) == ({"seed": 4}, run.rows[:1], [])


def test_numbers_that_are_none_are_refused_before_anything_is_written(run, path):
    with pytest.raises(ValueError, match="JSON"):
        write_results(path.parent, run.rows, {"seed": float("nan")})
    assert read_results(path).facts == FACTS


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
        (1, edited(kind="row"), "line 1, is damaged: it does not describe a run"),
        (1, edited(version=None), "line 1, is damaged: it does not describe a run"),
        (1, edited(version=99), "upgrade elign"),
        (1, edited(lines=5), "but 5 lines were written"),
        (1, lambda line: "[]", "line 1, is damaged: it is not a JSON object"),
        (4, lambda line: line[:20], "line 4, is damaged: it is not JSON"),
        (4, edited(accuracy="remove"), "line 4, .*accuracy"),
        (4, edited(accuracy=1.5), "line 4, .*its accuracy is 1.5"),
        (4, edited(accuracy=None), "line 4, .*its accuracy is None"),
        (4, edited(task=True), "line 4, .*its task is True"),
        (4, edited(label_free=1), "line 4, .*its label_free is 1"),
        (4, edited(by_task=[0.1, "x"]), "line 4, .*its by_task"),
        (4, edited(reading=3), "line 4, .*its reading is 3"),
        (4, edited(extra=3), "line 4, .*extra"),
        (4, edited(kind="nonsense"), "line 4, .*'nonsense'"),
    ],
)
def test_damaged_lines_are_named(path, number, edit, message):
    change(path, number, edit)
    with pytest.raises(DamagedRunError, match=message):
        read_results(path)


def test_cut_off_anywhere(path):
    whole = path.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1, whole.rindex(b"\n", 0, -1) + 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedRunError, match=r"line \d+, is damaged"):
            read_results(path)


def test_not_text(path):
    whole = path.read_bytes()
    place = whole.index(b"\n") + 5
    path.write_bytes(whole[:place] + b"\xff" + whole[place:])
    with pytest.raises(DamagedRunError, match="line 2, is damaged: it is not text"):
        read_results(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_results(tmp_path / "results.jsonl")
