"""What is on disk of planned runs: where each is, how far it is, how long it took.

All experiments share one store, so that a run which two of them need is trained once. A run of `elign run` that is
moved into its folder counts as well, whatever its name, if its settings are those of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elign.lab.evaluation.results import JSON_NAME, Results
from elign.lab.experiments.editions import of_edition
from elign.lab.experiments.kinds import CLASSIFICATION, kind_named
from elign.lab.experiments.run_config import TrainConfig
from elign.lab.experiments.run_folder import RunError, RunFolder
from elign.lab.reproduce.base_runs import BaseRun, Evaluation, digests, first_task_key
from elign.utils.errors import ElignError


@dataclass(frozen=True)
class StoredRun:
    """A run on disk.

    Args:
        folder: Where.
        config: What it is; of the store's kind.
        facts: What it says of itself.
        digests: Of all configurations that it is a run of.
        first_task: Equal for runs with the same first task.
    """

    folder: RunFolder
    config: Any
    facts: dict[str, Any]
    digests: frozenset[str]
    first_task: str


class Store:
    """The runs of a folder that are of one kind.

    Args:
        out: The folder; runs are in `runs` below it.
        kind: The kind of run; others in the folder are passed over.
    """

    def __init__(self, out: Path, kind: str = CLASSIFICATION) -> None:
        self.runs = out / "runs"
        self._kind = kind
        self._read: dict[Path, tuple[int, StoredRun | None]] = {}

    def stored(self) -> list[StoredRun]:
        """All runs that can be read, by name; what a different elign left behind is passed over."""
        found = []
        for file in sorted(self.runs.glob("*/run.json")):
            written = file.stat().st_mtime_ns
            # The file of a run hardly ever changes, and a plan asks for all of them many times.
            if self._read.get(file, (None, None))[0] != written:
                self._read[file] = (written, _read(RunFolder(file.parent), self._kind))
            stored = self._read[file][1]
            if stored is not None:
                found.append(stored)
        return found

    def folder(self, run: BaseRun) -> RunFolder:
        """Where a run is, or will be.

        Raises:
            RunError: Something else is there.
        """
        for stored in self.stored():
            if run.digest in stored.digests:
                return stored.folder
        folder = RunFolder(self.runs / run.name)
        if folder.exists:
            raise RunError(f"{folder.path} holds another run, or is damaged: move it away, and the run is made anew")
        return folder

    def evaluation_folder(self, planned: Evaluation) -> RunFolder:
        """Where the readings of an evaluation are, or will be."""
        folder = self.folder(planned.run)
        return folder if not planned.overrides else RunFolder(folder.path / "evaluations" / planned.name)

    def results(self, planned: Evaluation) -> Results:
        """The readings of an evaluation.

        Raises:
            RunError: It is not finished.
        """
        folder = self.evaluation_folder(planned)
        if not self.is_read(planned):
            raise RunError(f"{folder.path} is not finished")
        return folder.gather()

    def is_read(self, planned: Evaluation) -> bool:
        """Whether all readings of an evaluation are there, in today's edition."""
        folder, kind = self.evaluation_folder(planned), kind_named(self._kind)
        if not is_finished(folder):
            return False
        # Another aligner under this name is an error that `read_again` words; here it is just not this evaluation.
        stored = kind.from_dict(folder.facts()["config"])
        return bool(stored.aligner == planned.aligner) and of_edition(folder.gather().tasks, kind.edition)

    def donor(self, run: BaseRun) -> StoredRun | None:
        """A run on disk whose first task is learned and is the first task of this run."""
        own = self.folder(run).path
        for stored in self.stored():
            if (
                stored.folder.path != own
                and stored.first_task == run.first_task
                and _way_is_allowed(stored, run)
                and stored.folder.is_learned(0)
            ):
                return stored
        return None


def _read(folder: RunFolder, kind: str) -> StoredRun | None:
    try:
        facts = folder.facts()
        if facts.get("kind", CLASSIFICATION) != kind:
            return None  # its libraries need not even be there
        config = kind_named(kind).from_dict(facts["config"])
        return StoredRun(folder, config, facts, digests(config), first_task_key(config, kind))
    except (ElignError, KeyError):
        return None


def _way_is_allowed(stored: StoredRun, run: BaseRun) -> bool:
    """Whether the donor was trained in a way that the run's settings allow."""
    precision, layout = _way(stored)
    train = run.config.train
    return train.precision in ("auto", precision) and train.layout in ("auto", layout)


def with_way(overrides: Sequence[str], donor: StoredRun, train: TrainConfig) -> list[str]:
    """Settings of a run that takes over the first task of another, and must go on in the same way.

    Where the way is all left open, the run takes it from its donor by itself; where it is half open, this fills in.
    """
    if (train.precision == "auto") == (train.layout == "auto"):
        return list(overrides)
    way = dict(zip(("train.precision", "train.layout"), _way(donor), strict=True))
    kept = [text for text in overrides if text.partition("=")[0] not in way]
    return [*kept, *(f"{key}={value}" for key, value in way.items())]


def _way(stored: StoredRun) -> tuple[str, str]:
    """Precision and layout that a run was trained with."""
    speed = stored.facts["speed"]
    return str(speed["precision"]), "channels-last" if speed["channels_last"] else "plain"


def is_finished(folder: RunFolder) -> bool:
    """Whether all tasks of a run or an evaluation are read."""
    return folder.exists and tasks_read(folder) == len(folder.facts()["sizes"])


def tasks_read(folder: RunFolder) -> int:
    """How many tasks were read."""
    number = 0
    while (folder.task(number) / JSON_NAME).is_file():
        number += 1
    return number
