"""The folder of a run: its files, how each is written and read, and its lock.

    run.json                    configuration, versions, precision and threads
    task-00/model.safetensors   the model after the task, and which exemplars are kept: the task is learned
    task-00/latents.safetensors latents of that model: all that methods need
    task-00/results.jsonl, .csv what methods reached: the task is finished
    task-00/aligners/           the fitted aligners, classifiers and corrections
    task-00/prototypes.safetensors, statistics.safetensors  of all classes in this task's space, for the next task
    progress.safetensors        state within a task that takes long
    results.jsonl, results.csv  the results of all tasks so far
    evaluations/NAME/           results of the same models with other aligners, in the same form

Every file is written whole or not at all. The first line of a `results.jsonl` is the run (its metadata, and how many
lines follow), then come the rows (the fields of `elign.lab.evaluation.metrics.Row`), then one line for each task.
`results.csv` repeats the rows for spreadsheets.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import count, takewhile
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from elign.lab.config.composition import upgrade
from elign.lab.evaluation.metrics import MAX_TASKS, Row, TaskNumber
from elign.lab.registry import LEARNERS
from elign.lab.storage import (
    MAKE_AGAIN,
    DamagedRunError,
    OpenModel,
    check_values,
    digest_of,
    parse_object,
    read_object,
    read_tensors,
    write_object,
    write_tensors,
)
from elign.utils.errors import ElignError
from elign.utils.files import write_bytes_atomic, write_text_atomic

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: IO[str]) -> None:
        handle.seek(0)
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: IO[str]) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


JSON_NAME, CSV_NAME = "results.jsonl", "results.csv"
_VERSION = 2
"""Of results files; 1 called methods readings."""

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
    run = {"kind": "run", "version": _VERSION, "lines": len(lines), "metadata": dict(results.metadata)}
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
        if header.version > _VERSION:
            found = f"{path} has version {header.version}; this elign reads up to {_VERSION}"
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


FORMAT = 1
ARCHIVED = "archived"
"""Key in the metadata of a copy without models; see `archiving.py`."""
_START_AGAIN = "this run cannot be resumed; start it again in another folder"


class RunError(ElignError):
    """A folder without a run, or with another run than was meant; the message says what to do."""


class _Named(OpenModel):
    name: str


class _Learner(_Named):
    options: dict[str, bool | int | float | str]


class _Protocol(OpenModel):
    name: str | None
    first: int | None
    increment: int | None


class _Train(OpenModel):
    first_epochs: int
    epochs: int


class _Memory(OpenModel):
    per_class: int | None
    budget: int | None = None


class _Config(OpenModel):
    """What summaries of a run show; `from_dict` of the benchmark checks the rest when the run is opened."""

    seed: int
    learner: _Learner
    data: _Named
    protocol: _Protocol
    model: _Named
    train: _Train
    memory: _Memory
    aligner: dict[str, Any]


class RunMetadata(OpenModel):
    """The content of `run.json`."""

    benchmark: str
    config: _Config
    classes: list[str]
    sizes: Annotated[list[Annotated[int, Field(ge=1, le=10**6)]], Field(min_length=1, max_length=MAX_TASKS)]
    precision: Literal["32", "bf16"]
    channels_last: bool
    threads: Annotated[int, Field(ge=1, le=10_000)] | None = None
    training_digest: str | None = None
    environment: dict[str, str] = Field(default={})
    started: str = ""
    overrides: list[str] = Field(default=[])
    evaluation: list[str] = Field(default=[])
    archived: bool = False


def _current(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `run.json` of any version as that of today's."""
    new = dict(values)
    if "benchmark" not in new:
        new["benchmark"] = new.pop("kind", "classification")
    # Version 0.1 chose precision and layout by a race and called the result its speed.
    speed = new.pop("speed", None)
    if "precision" not in new and isinstance(speed, Mapping):
        new |= speed
    if isinstance(new.get("config"), Mapping):
        new["config"] = upgrade(new["config"], threads=new.get("threads"), precision=new.get("precision"))
    return new


class RunDir:
    """The files of one run in a folder, which need not exist yet."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.tensorboard = self.path / "tensorboard"
        self._run_json = self.path / "run.json"
        self._progress = self.path / "progress.safetensors"

    @property
    def exists(self) -> bool:
        """Whether there is a run in this folder.

        Raises:
            RunError: There are parts of a run without its `run.json`, or this is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file, and a run needs a folder")
        if self._run_json.is_file():
            return True
        parts = [*self.path.glob("task-*/*"), *self.path.glob(self._progress.name)]
        if parts:
            raise RunError(
                f"{self.path} has {parts[0].relative_to(self.path)} but no run.json; give out=DIR for another folder, "
                "or remove this one"
            )
        return False

    def evaluation(self, name: str) -> RunDir:
        """Return the folder of an evaluation of this run."""
        return RunDir(self.path / "evaluations" / name)

    def evaluations(self) -> list[RunDir]:
        """Return the evaluations of this run, by name."""
        return [RunDir(file.parent) for file in sorted(self.path.glob("evaluations/*/run.json"))]

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Write `run.json`, the first file of a run."""
        write_object(self._run_json, {"format": FORMAT, **metadata})

    def metadata(self) -> dict[str, Any]:
        """Read and check `run.json`; see `RunMetadata`.

        Raises:
            RunError: There is no run here, or a newer elign made it.
            DamagedRunError: The file is damaged.
        """
        if not self._run_json.is_file():
            raise RunError(f"there is no run in {self.path}; 'elign list' shows the runs of a folder")
        try:
            content = read_object(self._run_json)
            if content.get("format") != FORMAT:
                raise RunError(
                    f"{self._run_json} has format {content.get('format')!r}, this elign reads {FORMAT}: upgrade elign"
                )
            metadata = _current(content)
            check_values(RunMetadata, metadata)
        except ValueError as error:
            raise DamagedRunError(f"{self._run_json} is damaged ({error}); {_START_AGAIN}") from error
        return metadata

    def task(self, number: int) -> Path:
        """Return the folder of a task."""
        return self.path / f"task-{number:02d}"

    def task_file(self, number: int, name: str) -> Path:
        """Return a file of tensors of a task: `model`, `latents`, `pairs`, `prototypes`, `statistics`, `oracle`."""
        return self.task(number) / f"{name}.safetensors"

    def aligner_file(self, number: int, name: str) -> Path:
        """Return the file of a fitted aligner."""
        return self.task_file(number, f"aligners/{name.replace('/', '-')}")

    def tasks(self) -> int:
        """Return how many tasks are learned."""
        return sum(1 for _ in takewhile(self.is_learned, count()))

    def is_learned(self, number: int) -> bool:
        """Return whether the model after this task is there."""
        return self.task_file(number, "model").is_file()

    def save_model(
        self, number: int, state: Mapping[str, Tensor], ranked: Mapping[int, Tensor], metadata: Mapping[str, Any]
    ) -> None:
        """Write the learner's state after a task with the ranked exemplars: with this file the task is learned."""
        memory = {f"memory.{label}": ranks for label, ranks in ranked.items()}
        write_tensors(self.task_file(number, "model"), {**state, **memory}, metadata)

    def load_model(self, number: int) -> tuple[dict[str, Tensor], dict[int, Tensor], dict[str, Any]]:
        """Return the learner's state after a task, the ranked exemplars of each class, and the metadata.

        Raises:
            DamagedRunError: The file is damaged or of something else.
        """
        tensors, metadata = read_tensors(self.task_file(number, "model"))
        state = {name: tensor for name, tensor in tensors.items() if not name.startswith("memory.")}
        labels = {name: name.removeprefix("memory.") for name in tensors if name not in state}
        seconds = metadata.setdefault("seconds", 0.0)
        if not all(re.fullmatch("[0-9]{1,9}", label) for label in labels.values()) or not _is_number(seconds):
            raise DamagedRunError(f"{self.task_file(number, 'model')} is of something else. {MAKE_AGAIN}")
        # By label: a safetensors file lists its tensors in an order of its own.
        ranked = {int(label): tensors[name] for name, label in labels.items()}
        return state, dict(sorted(ranked.items())), metadata

    def finished_tasks(self) -> int:
        """Return how many tasks have results."""
        return sum(1 for _ in takewhile(lambda number: (self.task(number) / JSON_NAME).is_file(), count()))

    def results(self, number: int) -> Results | None:
        """Return the results of a task, None if there are none yet.

        Raises:
            DamagedRunError: The file is damaged, or of another task.
        """
        file = self.task(number) / JSON_NAME
        if not file.is_file():
            return None
        results = read_results(file)
        if ({row.task for row in results.rows} | {task["task"] for task in results.tasks}) - {number + 1}:
            raise DamagedRunError(f"{file} is of another task. {MAKE_AGAIN}")
        return results

    def write_task_results(self, number: int, results: Results) -> None:
        """Write the results of a task: with these files it is finished."""
        write_results(self.task(number), results)

    def copy_task_results(self, number: int, source: RunDir) -> None:
        """Copy the results of a task from another folder, without the file for spreadsheets."""
        write_bytes_atomic(self.task(number) / JSON_NAME, (source.task(number) / JSON_NAME).read_bytes())

    def gather(self) -> Results:
        """Return the results of all tasks so far."""
        found: list[Results] = []
        while (results := self.results(len(found))) is not None:
            found.append(results)
        return self._together(found)

    def write_results(self, by_task: Sequence[Results]) -> None:
        """Write the files that repeat the results of all tasks so far."""
        write_results(self.path, self._together(by_task))

    def repair_results(self, by_task: Sequence[Results]) -> None:
        """Write the files that repeat others again, where they are missing or differ: after a kill, or damage."""
        for number, results in enumerate(by_task):
            write_csv(self.task(number), results.rows)
        whole = self._together(by_task)
        try:
            intact = read_results(self.path / JSON_NAME) == whole
        except (FileNotFoundError, DamagedRunError):
            intact = False
        if intact:
            write_csv(self.path, whole.rows)
        else:
            write_results(self.path, whole)

    def result_files(self) -> list[Path]:
        """Return the files with the results of all tasks, as far as they are there."""
        return [file for file in (self.path / JSON_NAME, self.path / CSV_NAME) if file.is_file()]

    def _together(self, by_task: Sequence[Results]) -> Results:
        rows = [row for results in by_task for row in results.rows]
        return Results(self.metadata(), rows, [task for results in by_task for task in results.tasks])

    def save_progress(self, number: int, state: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Write the state of a task that is being trained, and metadata about it."""
        write_tensors(self._progress, state, {"task": number, **metadata})

    def progress(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the state that was saved of this task and its metadata; None if there is none, or it is damaged."""
        try:
            tensors, metadata = read_tensors(self._progress)
        except (FileNotFoundError, DamagedRunError):
            return None
        numbers = [metadata.get(name) for name in ("epoch", "step", "seconds")]
        return (tensors, metadata) if metadata.get("task") == number and all(map(_is_number, numbers)) else None

    def drop_progress(self) -> None:
        """Remove the state within a task, once the task is learned."""
        self._progress.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in this folder; the lock ends with the process, however it ends.

        Raises:
            RunError: Another process is at work here.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a") as handle:
            for attempt in range(5):
                try:
                    _lock(handle)
                    break
                except OSError:
                    if attempt == 4:
                        message = f"another process is at work in {self.path}; wait for it, or stop it"
                        raise RunError(message) from None
                    time.sleep(0.02)  # `is_locked` of another process holds the lock for a moment
            yield

    def is_locked(self) -> bool:
        """Return whether a process is at work in this folder."""
        if not (self.path / ".lock").is_file():
            return False
        try:
            with self.locked():
                return False
        except RunError:
            return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def refuse_archived(folder: RunDir, metadata: Mapping[str, Any]) -> None:
    """Raise `RunError` if a folder is an archive, which has no models."""
    if metadata.get(ARCHIVED):
        raise RunError(
            f"{folder.path} is an archive: it holds results and no models. Use the run that it was made from, "
            "or start it again in another folder"
        )


def resume_command(folder: RunDir, metadata: Mapping[str, Any]) -> str:
    """Return what the user types to resume a run, or an evaluation of one."""
    if metadata.get("evaluation") is None:
        return shlex.join(["elign", "resume", str(folder.path)])
    run = str(folder.path.parent.parent)
    return shlex.join(["elign", "evaluate", run, *metadata["evaluation"], "--name", folder.path.name])


def protocol_text(config: Mapping[str, Any]) -> str:
    """Return the protocol's name, or the sizes of its tasks: "half-5", "4+2"."""
    protocol = config["protocol"]
    return protocol["name"] or f"{protocol['first']}+{protocol['increment']}"


def memory_text(config: Mapping[str, Any]) -> str:
    """Return how many exemplars are kept."""
    memory = config["memory"]
    if memory["per_class"]:
        return f"{memory['per_class']} exemplars per class"
    return f"{memory['budget']} exemplars" if memory.get("budget") else "no exemplars"


def learner_text(config: Mapping[str, Any]) -> str:
    """Return the learner, with those of its options that are not the published ones."""
    name, options = config["learner"]["name"], config["learner"]["options"]
    # Of a detector's learner: to ask for its options, torchvision would be needed.
    defaults = LEARNERS[name].settings() if name in LEARNERS else options
    own = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in options.items()
        if value != defaults.get(key)
    ]
    return f"{name} ({', '.join(own)})" if own else str(name)


def run_text(metadata: Mapping[str, Any]) -> str:
    """Describe a whole run, but for its seed."""
    config = metadata["config"]
    train = config["train"]
    held_out = ["validation images"] if config["data"].get("validation") else []
    parts = [
        f"{learner_text(config)} on {config['data']['name']}, {protocol_text(config)}",
        *held_out,
        f"{config['model']['name']}, {train['first_epochs']}/{train['epochs']} epochs",
        memory_text(config),
        *metadata.get("evaluation", []),
    ]
    return ", ".join(parts)
