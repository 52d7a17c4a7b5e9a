"""Which edition of the readings a result is of: readings get better, and results of two editions do not compare.

A kind of run counts the editions of its readings (`Kind.edition`), and each task's results say theirs. Those of an
older one are read anew when a run goes on, from the models, latents and pairs that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elign.lab.experiments.kinds import kind_of
from elign.lab.experiments.run_folder import ARCHIVED, RunError, RunFolder, go_on_command

EDITION = "edition"
"""Its name among the facts of a task; results from before it was written there are older than all editions."""


def of_edition(tasks: Sequence[Mapping[str, Any]], edition: int) -> bool:
    """Whether all tasks, given by their facts, were read in an edition."""
    return all(task.get(EDITION, 0) == edition for task in tasks)


def refuse_newer(folder: RunFolder, tasks: Sequence[Mapping[str, Any]], edition: int) -> None:
    """Keep an older elign from writing over what a newer one has read.

    Raises:
        RunError: Some of these tasks of a folder were read in a newer edition.
    """
    if _newer(tasks, edition):
        raise RunError(f"{folder.path} was read by a newer elign: upgrade this one, or give another folder")


def other_edition(folder: RunFolder, facts: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence about a run that another edition of the readings has read, or parts of it; None if there is none.

    Args:
        folder: Of the run, or of an evaluation.
        facts: Of the run.
        tasks: Facts of its tasks.
    """
    edition = kind_of(facts).edition
    if of_edition(tasks, edition):
        return None
    if _newer(tasks, edition):
        return f"{folder.path} was read by a newer elign, whose readings do not compare with these: upgrade elign"
    if ARCHIVED in facts:
        return (
            f"{folder.path} was read by an older elign, whose readings do not compare with today's, and holds no "
            "model to be read anew"
        )
    whole = "evaluation" in facts or folder.tasks() == len(facts["sizes"])
    return (
        f"{folder.path} was read by an older elign, whose readings do not compare with those of today; "
        f"'{go_on_command(folder, facts)}' reads it anew, and {'trains nothing' if whole else 'goes on with it'}"
    )


def _newer(tasks: Sequence[Mapping[str, Any]], edition: int) -> bool:
    return any(task.get(EDITION, 0) > edition for task in tasks)
