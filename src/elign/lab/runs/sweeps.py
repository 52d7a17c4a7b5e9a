"""Many runs side by side, on one machine or on a Ray cluster."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elign.lab.config.composition import PATHS, ConfigError
from elign.lab.config.schema import describe
from elign.lab.environment import MissingExtraError
from elign.lab.learners import LEARNERS
from elign.lab.runs.experiment import BENCHMARKS, CLASSIFICATION, evaluated_by
from elign.lab.runs.launch import find_start, resume_run, start_run
from elign.lab.runs.run_dir import RunDir, RunError, protocol_text
from elign.utils.errors import ElignError, OptionError

OUT = "out/sweep"
_REFRESH_SECONDS = 1.0
_REFUSED = {
    "start_from": "runs of a sweep take over each other's first tasks by themselves",
    "train.devices": "each run of a sweep has one process; how many devices it gets is --gpus",
}


class SweepError(ElignError):
    """Some runs of a sweep failed; the others are finished."""


@dataclass(frozen=True)
class Resources:
    """What each run of a sweep gets: processors, GPUs (half of one lets two runs share it), restarts of a dead process.

    Without the address of a Ray cluster, Ray is started on this machine, for this sweep alone.
    """

    cpus: int = 1
    gpus: float = 0.0
    retries: int = 3
    address: str | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: what the user would type for it, what that means, and what tells it from the others."""

    settings: tuple[str, ...]
    config: Any
    label: str
    folder: RunDir

    def is_finished(self) -> bool:
        """Return whether all tasks are evaluated by the methods of today; raise `RunError` if it is another run."""
        if not self.folder.exists:
            return False
        metadata, benchmark = self.folder.metadata(), BENCHMARKS[self.config.benchmark]
        if benchmark.from_dict(metadata["config"]).digest() != self.config.digest():
            raise RunError(f"{self.folder.path} holds another run: move it away, or give another folder")
        finished = self.folder.finished_tasks() == len(metadata["sizes"])
        return finished and evaluated_by(self.folder.gather().tasks, benchmark) == "comparable"


def plan_sweep(texts: Sequence[str], *, benchmark: str = CLASSIFICATION, threads: int = 1) -> tuple[Path, list[Cell]]:
    """Plan all combinations of settings as for `elign run`, with commas between values.

    Returns the folder of the sweep, and its runs, each once; `threads` are those of each run, unless a setting says so.
    """
    out, choices = OUT, []
    for text in texts:
        key, sign, value = text.partition("=")
        if key in _REFUSED:
            raise ConfigError(f"{key} cannot be given here: {_REFUSED[key]}.")
        if key == "out":
            out = value
        elif key in PATHS:
            # Absolute: a worker may be in another folder.
            choices.append([f"{key}={value if value == 'null' else Path(value).expanduser().resolve()}"])
        else:
            choices.append([f"{key}{sign}{one}" for one in split_list(value)] or [text])
    if not any(text.startswith("train.threads=") for text in texts):
        choices.append([f"train.threads={threads}"])
    folder = Path(out).expanduser().resolve()
    varied = [number for number, values in enumerate(choices) if len(values) > 1]
    cells: dict[str, Cell] = {}
    for settings in itertools.product(*choices):
        config = BENCHMARKS[benchmark].compose(settings)
        learner = dict(text.split("=", 1) for text in settings).get("learner", config.learner.name)
        protocol = protocol_text(describe(config))
        name = f"{learner}-{config.data.name}-{protocol}-seed{config.seed}-{config.digest()[:8]}"
        label = " ".join(settings[number] for number in varied) or name
        run = RunDir(folder / "runs" / name)
        cells.setdefault(config.digest(), Cell((*settings, f"out={run.path}"), config, label, run))
    return folder, list(cells.values())


def split_list(text: str) -> tuple[str, ...]:
    """Split values at commas, each once; a comma in brackets belongs to a value.

    Example:
        >>> split_list("0,1,2"), split_list("[64,64],[]")
        (('0', '1', '2'), ('[64,64]', '[]'))
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


class SweepTable:
    """The state of each run of a sweep; `say` is told of everything that changes."""

    def __init__(self, cells: Sequence[Cell], say: Callable[[str], None]) -> None:
        self._cells, self._say = {cell.label: cell for cell in cells}, say
        self._states = {cell.label: "done before" if cell.is_finished() else "waiting" for cell in cells}
        self.failed: dict[str, str] = {}

    def refresh(self) -> None:
        """Find out which runs were started since."""
        for label, state in self._states.items():
            if state == "waiting" and self._cells[label].folder.is_locked():
                self._states[label] = "running"
                self._say(f"{label}: started")

    def ended(self, cell: Cell, problem: str | None) -> None:
        """Note that a run ended: well, or with a problem."""
        state = self._states[cell.label] = "finished" if problem is None else "failed"
        if problem is not None:
            self.failed[cell.label] = problem
        self._say(f"{cell.label}: {state}{f' ({problem})' if problem else ''}")

    def table(self) -> Table:
        """Return all runs as a table."""
        counts = Counter(self._states.values())
        title = Text(", ".join(f"{count} {state}" for state, count in counts.items()))
        table = Table("run", "state", "tasks", title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for label, state in self._states.items():
            table.add_row(Text(label), state, _tasks(self._cells[label].folder))
        return table


def _tasks(folder: RunDir) -> str:
    try:
        return f"{folder.finished_tasks()}/{len(folder.metadata()['sizes'])}" if folder.exists else "–"
    except ElignError:
        return "–"  # its run will say what is wrong with the folder


@contextmanager
def live_table(cells: Sequence[Cell], console: Console) -> Iterator[tuple[SweepTable, Callable[[], None]]]:
    """Yield the runs, and a function that updates what is shown; without a terminal, a line for each change."""

    def say(text: str) -> None:
        if not console.is_terminal:
            console.print(text, soft_wrap=True, markup=False)

    states = SweepTable(cells, say)
    live = Live(states.table(), console=console, transient=True, auto_refresh=False)

    def refresh() -> None:
        states.refresh()
        live.update(states.table(), refresh=console.is_terminal)

    with live if console.is_terminal else nullcontext():
        yield states, refresh


def do_run(benchmark: str, settings: Sequence[str], learners: Mapping[str, Any]) -> str | None:
    """Start or resume a run in this process, which may not have registered the user's own `learners`.

    Returns None if it is finished, else the problem: the other side may not know the class of an error.
    """
    LEARNERS.update(learners)
    console, compose = Console(quiet=True), BENCHMARKS[benchmark].compose
    try:
        config = compose(settings)
        run = RunDir(config.out)
        if run.exists:
            resume_run(run, console)
        else:
            others = (RunDir(file.parent) for file in sorted(run.path.parent.glob("*/run.json")))
            start = find_start(config, others)
            if start is not None:
                settings = [*settings, f"start_from={start.path}"]
            start_run(compose(settings), console, overrides=settings)
    except (ElignError, OSError) as error:
        return str(error)
    return None


def require_ray() -> Any:
    """Return the package ray; raise `MissingExtraError` if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Where all processors are busy, a worker takes minutes to start.
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("elign sweep needs the package ray: pip install 'elign[lab,ray]'") from None
    return ray


def run_cells(
    cells: Sequence[Cell],
    resources: Resources,
    *,
    ended: Callable[[Cell, str | None], None],
    refresh: Callable[[], None],
) -> None:
    """Do runs side by side, as many at a time as there is room for.

    `ended` is told of each run that ended, and why it failed, if it did; `refresh` is called about once a second.
    """
    with _connected(resources) as ray:
        task = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=resources.retries)(do_run)
        waiting = {}
        for cell in cells:
            own = LEARNERS.own() if cell.config.benchmark == CLASSIFICATION else {}
            waiting[task.remote(cell.config.benchmark, cell.settings, own)] = cell
        while waiting:
            for reference in ray.wait([*waiting], num_returns=1, timeout=_REFRESH_SECONDS)[0]:
                try:
                    problem = ray.get(reference)
                except ray.exceptions.RayError as error:
                    problem = str(error).strip().splitlines()[-1]
                ended(waiting.pop(reference), problem)
            refresh()


@contextmanager
def _connected(resources: Resources) -> Iterator[Any]:
    ray = require_ray()
    where = {"address": "local", "include_dashboard": False}
    if resources.address is not None:
        where = {"address": resources.address}
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        # Ray has no class for this; its own processes have a few seconds to start in, whatever else the machine does.
        reason = str(error).strip().splitlines()[0]
        raise SweepError(f"Ray cannot be reached or started: {reason} The same command tries again.") from error
    try:
        if resources.address is None:
            _check_room(ray.cluster_resources(), resources)
        yield ray
    finally:
        # Ends the runs, too, where this is left by an interrupt.
        ray.shutdown()


def _check_room(there: Mapping[str, float], resources: Resources) -> None:
    """Raise `OptionError` for what this machine does not have: Ray would wait for it for ever."""
    cpus, gpus = there.get("CPU", 0), there.get("GPU", 0)
    if resources.cpus > cpus or resources.gpus > gpus:
        raise OptionError(
            f"a run cannot have --cpus {resources.cpus} --gpus {resources.gpus:g}: "
            f"this machine has {cpus:g} processors and {gpus:g} GPUs"
        )
