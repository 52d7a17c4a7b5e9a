"""The folder of a run: what is in it, and how each file is written and read.

    run.json                    what was asked for, versions, the way of training that was chosen
    task-00/model.safetensors   the model after the task, and which exemplars are kept: the task is learned
    task-00/latents.safetensors latents of that model: all that readings need
    task-00/results.jsonl, .csv what was read off them: the task is finished
    task-00/aligners/           the fitted aligners, and the blend
    task-00/prototypes.safetensors  class means moved into this task's space, for the readings of the next task
    progress.safetensors        state within a task that takes long
    results.jsonl, results.csv  the readings of all tasks so far
    evaluations/NAME/           readings of the same models with other aligners, in the same form

Every file is written whole or not at all.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from elign.lab.evaluation.results import JSON_NAME, Results, read_results, write_csv, write_results
from elign.lab.json_file import read_object, write_object
from elign.lab.tensor_file import MAKE_AGAIN, DamagedRunError, read_tensors, write_tensors
from elign.utils.errors import ElignError

FORMAT = 1
ARCHIVED = "archived"
"""Among the facts of a copy that holds readings alone, see `archive.py`."""
_FACTS = {"config": dict, "sizes": list, "speed": dict, "classes": list}
_START_ANEW = "this run cannot be resumed; start it anew in another folder"


class RunError(ElignError):
    """A folder that is no run, or not the run that was meant; the message says what to do."""


class RunFolder:
    """The files of one run.

    Args:
        path: The folder; it need not exist yet.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        """Whether there is a run in this folder.

        Raises:
            RunError: There are parts of a run, but not the file that says of which, or this is no folder.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file, and a run needs a folder")
        if (self.path / "run.json").is_file():
            return True
        parts = [*self.path.glob("task-*/*"), *self.path.glob("progress.safetensors")]
        if parts:
            raise RunError(
                f"{self.path} has no run.json but {parts[0].relative_to(self.path)}, of whatever run; "
                "give out=DIR for another folder, or remove this one"
            )
        return False

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Write what the run is; the first file of a run."""
        write_object(self.path / "run.json", {"format": FORMAT, **facts})

    def facts(self) -> dict[str, Any]:
        """What `write_facts` wrote.

        Raises:
            RunError: There is no run here, or a newer elign made it.
            DamagedRunError: The file cannot be read.
        """
        file = self.path / "run.json"
        if not file.is_file():
            raise RunError(f"there is no run in {self.path}; 'elign list' shows the runs of a folder")
        try:
            facts, sealed = read_object(file)
        except ValueError as error:
            raise DamagedRunError(f"{file} is damaged ({error}); {_START_ANEW}") from error
        if facts.get("format") != FORMAT:
            raise RunError(f"{file} has format {facts.get('format')!r}, this elign reads {FORMAT}: upgrade elign")
        missing = [name for name, kind in _FACTS.items() if not isinstance(facts.get(name), kind)]
        if missing and not sealed:
            raise DamagedRunError(f"{file} is damaged (it lacks {', '.join(missing)}); {_START_ANEW}")
        return facts

    def task(self, number: int) -> Path:
        """The folder of a task."""
        return self.path / f"task-{number:02d}"

    def tasks(self) -> int:
        """How many tasks are learned."""
        number = 0
        while self.is_learned(number):
            number += 1
        return number

    def is_learned(self, number: int) -> bool:
        """Whether the model after this task is there."""
        return (self.task(number) / "model.safetensors").is_file()

    def save_model(
        self, number: int, state: Mapping[str, Tensor], ranked: Mapping[int, Tensor], facts: Mapping[str, Any]
    ) -> None:
        """Write the learner's state after a task with the ranked exemplars: with this file the task is learned."""
        memory = {f"memory.{label}": ranks for label, ranks in ranked.items()}
        write_tensors(self.task(number) / "model.safetensors", {**state, **memory}, facts)

    def load_model(self, number: int) -> tuple[dict[str, Tensor], dict[int, Tensor], dict[str, Any]]:
        """The state of the learner after a task, the ranked exemplars of each class, and the facts."""
        tensors, facts = read_tensors(self.task(number) / "model.safetensors")
        state = {name: t for name, t in tensors.items() if not name.startswith("memory.")}
        labels = {name: name.removeprefix("memory.") for name in tensors if name not in state}
        if not all(re.fullmatch("[0-9]{1,9}", label) for label in labels.values()):
            raise DamagedRunError(f"{self.task(number) / 'model.safetensors'} is of something else. {MAKE_AGAIN}")
        # By label: a safetensors file lists its tensors in an order of its own.
        ranked = {int(label): tensors[name] for name, label in labels.items()}
        return state, dict(sorted(ranked.items())), facts

    def results(self, number: int) -> Results | None:
        """What was read off a task, None if nothing was yet."""
        file = self.task(number) / JSON_NAME
        return read_results(file) if file.is_file() else None

    def gather(self) -> Results:
        """What was read off all tasks so far."""
        found: list[Results] = []
        while (results := self.results(len(found))) is not None:
            found.append(results)
        rows = [row for results in found for row in results.rows]
        tasks = [task for results in found for task in results.tasks]
        return Results(facts=self.facts(), rows=rows, tasks=tasks)

    def collect(self) -> Results:
        """The same, written to the files of the whole run; for the process that has the lock."""
        results = self.gather()
        write_results(self.path, results.rows, results.facts, tasks=results.tasks)
        return results

    def complete(self) -> None:
        """Make the files again that only repeat what is in others, wherever they do not: after a kill, or damage."""
        number = 0
        while (results := self.results(number)) is not None:
            write_csv(self.task(number), results.rows)
            number += 1
        whole, file = self.gather(), self.path / JSON_NAME
        try:
            same = read_results(file) == whole
        except (FileNotFoundError, DamagedRunError):
            same = False
        if not same:
            write_results(self.path, whole.rows, whole.facts, tasks=whole.tasks)
        write_csv(self.path, whole.rows)

    def save_progress(self, number: int, state: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write the state of a task that is being learned, and facts about it."""
        write_tensors(self.path / "progress.safetensors", state, {"task": number, **facts})

    def progress(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state that was kept of this task and its facts, if any; a damaged file counts as none."""
        try:
            tensors, facts = read_tensors(self.path / "progress.safetensors")
        except (FileNotFoundError, DamagedRunError):
            return None
        return (tensors, facts) if facts.get("task") == number else None

    def drop_progress(self) -> None:
        """Remove the state within a task, once the task is learned."""
        (self.path / "progress.safetensors").unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in this folder; the lock ends with the process, however it ends.

        Raises:
            RunError: Another process is at work here.
        """
        lock = _locker()
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a") as handle:
            try:
                lock(handle.fileno())
            except BlockingIOError:
                raise RunError(f"another process is at work in {self.path}; wait for it, or stop it") from None
            handle.write("+")  # see `starts`
            handle.flush()
            yield

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"

    def starts(self) -> int:
        """How often a process has begun to work here."""
        return self._lock.stat().st_size if self._lock.exists() else 0


def refuse_archived(folder: RunFolder, facts: Mapping[str, Any]) -> None:
    """Keep a copy that holds readings alone from being taken for a run with models.

    Raises:
        RunError: It is one.
    """
    if ARCHIVED in facts:
        raise RunError(
            f"{folder.path} is an archive: it holds readings alone and no model. Take the run that it was made from, "
            "or begin it anew in another folder"
        )


def go_on_command(folder: RunFolder, facts: Mapping[str, Any]) -> str:
    """What the user types to go on with a run, or with an evaluation of one."""
    if "evaluation" not in facts:
        return shlex.join(["elign", "resume", str(folder.path)])
    run = str(folder.path.parent.parent)
    return shlex.join(["elign", "evaluate", run, *facts["evaluation"], "--name", folder.path.name])


def _locker() -> Callable[[int], None]:
    if os.name != "posix":
        return lambda descriptor: None
    import fcntl

    return lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
