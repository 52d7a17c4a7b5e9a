"""Results of a run on disk: `results.jsonl`, which is read again, and `results.csv`, for spreadsheets.

The first line of the JSON file is the run (its facts, and how many lines follow), then come the rows, then one line for
each task. Both files are written whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from elign.lab.evaluation.evaluate import TaskEvaluation
from elign.lab.evaluation.scoring import Row
from elign.lab.json_file import digest_of
from elign.lab.tensor_file import MAKE_AGAIN, DamagedRunError
from elign.utils.files import write_text_atomic

JSON_NAME, CSV_NAME = "results.jsonl", "results.csv"
VERSION = 1
_TEXT, _FRACTION = ("reading", "classifier"), ("accuracy", "aligned_share")
_OPTIONAL = ("old", "new", "among_old", "gate_accuracy")


@dataclass(frozen=True)
class Results:
    """What a results file holds.

    Args:
        facts: Of the run: its name, seed, versions, whatever was written.
        rows: One for each task, reading and classifier.
        tasks: Facts of each task, such as durations and drift.
    """

    facts: dict[str, Any]
    rows: list[Row]
    tasks: list[dict[str, Any]]


def task_facts(task: int, evaluation: TaskEvaluation) -> dict[str, Any]:
    """What is kept of an evaluation beside its rows, as plain values: durations and drift."""
    drift = {name: asdict(drift) for name, drift in evaluation.drift.items()}
    return {"task": task, "seconds": dict(evaluation.seconds), "drift": drift}


def write_results(
    folder: Path, rows: Sequence[Row], facts: Mapping[str, Any], *, tasks: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write both files, over those that are there.

    Args:
        folder: Where to; made if needed.
        rows: Of all tasks so far.
        facts: Of the run, plain JSON values.
        tasks: Facts of each task, plain JSON values; `task_facts` makes them.

    Returns:
        The path of `results.jsonl`.
    """
    run = {"kind": "run", "version": VERSION, "lines": len(rows) + len(tasks), "facts": dict(facts)}
    lines = [{"kind": "row", **asdict(row)} for row in rows] + [{"kind": "task", "facts": dict(task)} for task in tasks]
    rest = "".join(map(_line, lines))
    write_csv(folder, rows)
    return write_text_atomic(folder / JSON_NAME, _line(run | {"digest": digest_of(run, rest)}) + rest)


def write_csv(folder: Path, rows: Sequence[Row]) -> None:
    """Write the file for spreadsheets, unless it is there and right: nobody reads it again, so nobody sees damage."""
    path, text = folder / CSV_NAME, _csv(rows)
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text_atomic(path, text)


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote.

    Args:
        path: A `results.jsonl`.

    Raises:
        DamagedRunError: The file is damaged, foreign or newer; the message names the line.
        FileNotFoundError: There is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        lines = path.read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise _damaged(path, path.read_bytes()[: error.start].count(b"\n") + 1, "it is not text") from error
    if lines.pop() or not lines:
        raise _damaged(path, len(lines) + 1, "it is cut off")
    parsed = [_parse(path, number, line) for number, line in enumerate(lines, start=1)]
    facts = _run(path, parsed[0], following=len(parsed) - 1)
    rows: list[Row] = []
    tasks: list[dict[str, Any]] = []
    for number, line in enumerate(parsed[1:], start=2):
        kind = line.pop("kind", None)
        if kind == "row":
            rows.append(_row(path, number, line))
        elif kind == "task" and isinstance(line.get("facts"), dict):
            tasks.append(line["facts"])
        else:
            raise _damaged(path, number, f"it is neither a row nor a task but {kind!r}")
    # Last, since what was found before says more.
    _check_digest(path, parsed[0], "".join(f"{line}\n" for line in lines[1:]))
    return Results(facts=facts, rows=rows, tasks=tasks)


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number, f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _damaged(path, number, "it is not a JSON object")
    return value


def _check_digest(path: Path, first: dict[str, Any], rest: str) -> None:
    # Files of older versions have none.
    if "digest" in first and first.pop("digest") != digest_of(first, rest):
        raise _damaged(path, 1, "the content of the file does not match its digest")


def _run(path: Path, line: Mapping[str, Any], *, following: int) -> dict[str, Any]:
    facts, version = line.get("facts"), line.get("version")
    if line.get("kind") != "run" or not isinstance(facts, dict) or not isinstance(version, int):
        raise _damaged(path, 1, "it does not describe a run")
    if version > VERSION:
        raise DamagedRunError(f"{path} has version {version}; this elign reads up to {VERSION}: upgrade elign")
    if line.get("lines") != following:
        raise _damaged(path, following + 1, f"the file ends here, but {line.get('lines')} lines were written after 1")
    return facts


def _row(path: Path, number: int, line: Mapping[str, Any]) -> Row:
    names = [field.name for field in fields(Row)]
    wrong = sorted(set(names) ^ set(line))
    if wrong:
        raise _damaged(path, number, f"its row lacks, or has too many of: {', '.join(wrong)}")
    checks = {
        "task": _whole(line["task"]) and line["task"] >= 1,
        "label_free": isinstance(line["label_free"], bool),
        "by_task": isinstance(line["by_task"], list) and all(_fraction(value) for value in line["by_task"]),
        **{name: isinstance(line[name], str) for name in _TEXT},
        **{name: _fraction(line[name]) for name in _FRACTION},
        **{name: line[name] is None or _fraction(line[name]) for name in _OPTIONAL},
    }
    for name, good in checks.items():
        if not good:
            raise _damaged(path, number, f"its {name} is {line[name]!r}")
    return Row(**{**line, "by_task": tuple(line["by_task"])})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _line(content: Mapping[str, Any]) -> str:
    # In ASCII: a folder's name, which is among the facts, need not be text in any encoding.
    return json.dumps(content, allow_nan=False) + "\n"


def _csv(rows: Sequence[Row]) -> str:
    """Rows as a flat table; what has no value is empty, `by_task` is joined by semicolons."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [field.name for field in fields(Row)]
    writer.writerow(names)
    for row in rows:
        values = {**asdict(row), "by_task": ";".join(str(value) for value in row.by_task)}
        writer.writerow(["" if values[name] is None else values[name] for name in names])
    return stream.getvalue()


def _damaged(path: Path, number: int, why: str) -> DamagedRunError:
    return DamagedRunError(f"{path}, line {number}, is damaged: {why}. {MAKE_AGAIN}")
