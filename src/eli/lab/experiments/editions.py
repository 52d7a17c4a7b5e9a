"""Which edition of the readings a result is of: readings get better, and results of two editions do not compare.

A kind of run counts the editions of its readings, and each task's results say theirs. Those of another edition are read
anew when a run goes on, from the models and latents that are kept. Imported by the runner, and by what shows results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eli.lab.experiments.kinds import kind_of
from eli.lab.experiments.run_folder import RunFolder

EDITION = "edition"
"""Its name among the facts of a task."""


def of_edition(tasks: Sequence[Mapping[str, Any]], edition: int) -> bool:
    """Whether all tasks, given by their facts, were read in an edition; results from before it was written are of 1."""
    return all(task.get(EDITION, 1) == edition for task in tasks)


def other_edition(folder: RunFolder, facts: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence about a run that another edition of the readings has read, or parts of it; None if there is none.

    Args:
        folder: Of the run, or of an evaluation.
        facts: Of the run.
        tasks: Facts of its tasks.
    """
    if of_edition(tasks, kind_of(facts).edition):
        return None
    return (
        f"{folder.path} was read by another version of eli, whose readings do not compare with those of today; "
        f"'{go_on_command(folder, facts)}' reads it anew, and trains nothing"
    )


def go_on_command(folder: RunFolder, facts: Mapping[str, Any]) -> str:
    """What the user types to go on with a run, or with an evaluation of one."""
    if "evaluation" not in facts:
        return f"eli resume {folder.path}"
    return f"eli evaluate {folder.path.parent.parent} {' '.join(facts['evaluation'])} --name {folder.path.name}"
