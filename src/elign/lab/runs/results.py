"""Results of a run on disk: `results.jsonl`, which is read again, and `results.csv`, for spreadsheets.

The first line of the JSON file is the run (its metadata, and how many lines follow), then come the rows (the fields of
`elign.lab.evaluation.metrics.Row`), then one line for each task. Both files are written whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from elign.lab.evaluation.metrics import Row, TaskNumber
from elign.lab.storage import MAKE_AGAIN, DamagedRunError, OpenModel, check_values, digest_of, parse_object
from elign.utils.files import write_text_atomic

JSON_NAME, CSV_NAME = "results.jsonl", "results.csv"
VERSION = 2
"""1 called methods readings."""

_Number = Annotated[float, Field(allow_inf_nan=False)]


class _Header(OpenModel):
    kind: Literal["run"]
    version: int
    lines: Annotated[int, Field(ge=0)]
    metadata: dict[str, Any]


class _Drift(OpenModel):
    distance: _Number
    cosine_distance: _Number
    moved: _Number


class _UnknownObjects(OpenModel):
    area_under_roc: dict[str, _Number]


class TaskMetadata(OpenModel):
    """What is stored of a task beside its rows; the last three are of detectors."""

    task: TaskNumber
    evaluation_version: Annotated[int, Field(ge=0)]
    seconds: dict[str, _Number]
    drift: dict[str, _Drift]
    average_precision: dict[str, list[_Number | None]] = Field(default={})
    coco: dict[str, dict[str, _Number | list[_Number | None]]] = Field(default={})
    unknown: _UnknownObjects | None = None


@dataclass(frozen=True)
class Results:
    """The content of a results file.

    Args:
        metadata: Of the run: its configuration, versions and so on. Empty in the file of one task.
        rows: One for each task, method and classifier.
        tasks: Metadata of each task, such as durations and drift; see `TaskMetadata`.
    """

    metadata: dict[str, Any]
    rows: list[Row]
    tasks: list[dict[str, Any]]


def write_results(folder: Path, results: Results) -> Path:
    """Write both files and return the path of `results.jsonl`; metadata and tasks are plain JSON values."""
    lines = [{"kind": "row", **asdict(row)} for row in results.rows]
    lines += [{"kind": "task", "metadata": dict(task)} for task in results.tasks]
    run = {"kind": "run", "version": VERSION, "lines": len(lines), "metadata": dict(results.metadata)}
    rest = "".join(map(_line, lines))
    write_csv(folder, results.rows)
    return write_text_atomic(folder / JSON_NAME, _line(run | {"digest": digest_of(run, rest)}) + rest)


def _line(content: Mapping[str, Any]) -> str:
    # In ASCII: a folder's name, which is among the metadata, need not be text in any encoding.
    return json.dumps(content, allow_nan=False) + "\n"


def write_csv(folder: Path, rows: Sequence[Row]) -> None:
    """Write the file for spreadsheets, unless it is there and right."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**asdict(row), "by_task": ";".join(map(str, row.by_task))} for row in rows)
    path, text = folder / CSV_NAME, stream.getvalue()
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text_atomic(path, text)


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote, in this version or an older one.

    Raises:
        DamagedRunError: The file is damaged, foreign or newer; the message names the line.
        FileNotFoundError: There is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    lines = path.read_bytes().split(b"\n")
    number = 0
    try:
        if lines.pop() or not lines:
            number = len(lines)
            raise ValueError("it is cut off")
        first = parse_object(lines[0])
        # Version 0.1 called metadata facts, methods readings and the evaluation version edition.
        header = check_values(_Header, {"metadata": first.get("facts"), **first})
        if header.version > VERSION:
            found = f"{path} has version {header.version}; this elign reads up to {VERSION}"
            raise DamagedRunError(f"{found}: upgrade elign")
        if header.lines != len(lines) - 1:
            raise ValueError(f"{header.lines} lines should follow, not {len(lines) - 1}")
        results = Results(header.metadata, [], [])
        for line in lines[1:]:
            number += 1
            _read_line(parse_object(line), results)
        number = 0  # last, since what was found before says more
        # Files of the first versions have no digest.
        if "digest" in first and first.pop("digest") != digest_of(first, b"\n".join([*lines[1:], b""]).decode()):
            raise ValueError("the content of the file does not match its digest")
    except ValueError as error:
        raise DamagedRunError(f"{path}, line {number + 1}, is damaged: {error}. {MAKE_AGAIN}") from error
    return results


def _read_line(line: dict[str, Any], results: Results) -> None:
    kind = line.pop("kind", None)
    if kind == "row":
        row = {"method" if name == "reading" else name: value for name, value in line.items()}
        results.rows.append(check_values(Row, row))
        return
    values = line.get("metadata", line.get("facts"))
    if kind != "task" or not isinstance(values, dict):
        raise ValueError("it is neither a row nor the metadata of a task")
    task = {"evaluation_version" if name == "edition" else name: value for name, value in values.items()}
    # In the order of the file: what is read is written again byte for byte.
    task.setdefault("evaluation_version", 0), task.setdefault("seconds", {}), task.setdefault("drift", {})
    if isinstance(task["seconds"], Mapping):
        task["seconds"] = {"methods" if name == "readings" else name: n for name, n in task["seconds"].items()}
    check_values(TaskMetadata, task)
    results.tasks.append(task)
