"""Results of a run on disk: `results.jsonl`, which is read again, and `results.csv`, for spreadsheets.

The first line of the JSON file is the run (its metadata, and how many lines follow), then come the rows, then one line
for each task. Both files are written whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from elign.lab.evaluation.metrics import Row
from elign.lab.runs.file_format import (
    HeaderLine,
    RowLine,
    TaskMetadata,
    current_row,
    current_task,
    validate,
)
from elign.lab.storage import MAKE_AGAIN, DamagedRunError, digest_of, parse_object
from elign.utils.files import write_text_atomic

JSON_NAME, CSV_NAME = "results.jsonl", "results.csv"
VERSION = 2
"""1 called methods readings."""


@dataclass(frozen=True)
class Results:
    """The content of a results file.

    Args:
        metadata: Of the run: its configuration, versions and so on. Empty in the file of one task.
        rows: One for each task, method and classifier.
        tasks: Metadata of each task, such as durations and drift.
    """

    metadata: dict[str, Any]
    rows: list[Row]
    tasks: list[dict[str, Any]]


def write_results(
    folder: Path, rows: Sequence[Row], metadata: Mapping[str, Any], *, tasks: Sequence[Mapping[str, Any]] = ()
) -> Path:
    """Write both files and return the path of `results.jsonl`; metadata and tasks are plain JSON values."""
    run = {"kind": "run", "version": VERSION, "lines": len(rows) + len(tasks), "metadata": dict(metadata)}
    lines = [{"kind": "row", **asdict(row)} for row in rows]
    lines += [{"kind": "task", "metadata": dict(task)} for task in tasks]
    rest = "".join(map(_line, lines))
    text = _line(run | {"digest": digest_of(run, rest)}) + rest
    write_csv(folder, rows)
    return write_text_atomic(folder / JSON_NAME, text)


def write_csv(folder: Path, rows: Sequence[Row]) -> None:
    """Write the file for spreadsheets, unless it is there and right."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [field.name for field in fields(Row)]
    writer.writerow(names)
    for row in rows:
        values = {**asdict(row), "by_task": ";".join(str(value) for value in row.by_task)}
        writer.writerow(["" if values[name] is None else values[name] for name in names])
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
        header = _header(path, first, following=len(lines) - 1)
        rows: list[Row] = []
        tasks: list[dict[str, Any]] = []
        for line in lines[1:]:
            number += 1
            _read_line(parse_object(line), rows, tasks)
        number = 0  # last, since what was found before says more
        # Files of the first versions have no digest.
        if "digest" in first and first.pop("digest") != digest_of(first, b"\n".join([*lines[1:], b""]).decode()):
            raise ValueError("the content of the file does not match its digest")
    except ValueError as error:
        raise DamagedRunError(f"{path}, line {number + 1}, is damaged: {error}. {MAKE_AGAIN}") from error
    return Results(header.metadata, rows, tasks)


def _header(path: Path, line: Mapping[str, Any], *, following: int) -> HeaderLine:
    header = validate(HeaderLine, {"metadata": line.get("facts"), **line})
    if header.version > VERSION:
        raise DamagedRunError(f"{path} has version {header.version}; this elign reads up to {VERSION}: upgrade elign")
    if header.lines != following:
        raise ValueError(f"{header.lines} lines should follow, not {following}")
    return header


def _read_line(line: Mapping[str, Any], rows: list[Row], tasks: list[dict[str, Any]]) -> None:
    if line.get("kind") == "task":
        values = line.get("metadata", line.get("facts"))
        if not isinstance(values, dict):
            raise ValueError("it has no metadata of a task")
        tasks.append(current_task(values))
        validate(TaskMetadata, tasks[-1])
    else:
        values = validate(RowLine, current_row(line)).model_dump(exclude={"kind"})
        rows.append(Row(**{**values, "by_task": tuple(values["by_task"])}))


def _line(content: Mapping[str, Any]) -> str:
    # In ASCII: a folder's name, which is among the metadata, need not be text in any encoding.
    return json.dumps(content, allow_nan=False) + "\n"
