"""Copies of runs that hold what was read off them and nothing else: no models, no latents, no paths of this machine.

A run takes a hundred megabytes, its archive a hundred kilobytes, and every command that shows results reads it like the
run itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elign.lab.evaluation.results import JSON_NAME
from elign.lab.experiments.kinds import kind_of
from elign.lab.experiments.run_folder import ARCHIVED, RunError, RunFolder
from elign.utils.files import write_bytes_atomic

_PLACES = ("out", "start_from", "data.data_dir")
"""Settings that say where something is and nothing of what comes of it."""


def archive_run(folder: RunFolder, into: Path) -> RunFolder:
    """Copy the readings of a run and of its evaluations; takes the place of an older copy as a whole.

    Args:
        folder: The run, finished or not.
        into: A folder; the copy is in a folder of the run's own name below it.

    Returns:
        The copy.

    Raises:
        RunError: Nothing was read yet, or the place is taken by something else.
    """
    target = RunFolder(into / folder.path.resolve().name)
    facts = folder.facts()
    if folder.results(0) is None:
        raise RunError(f"{folder.path} has no results yet; there is nothing to archive")
    if target.path.resolve() == folder.path.resolve():
        raise RunError(f"{folder.path} would be archived into itself; give another folder")
    # What stands there is removed in the end, so it must be a copy of this very run.
    if target.path.exists() and not (target.exists and _same_run(target.facts(), facts)):
        raise RunError(f"{target.path} holds something else; give another folder, or move that away")
    made = into / f".{target.path.name}.part"
    shutil.rmtree(made, ignore_errors=True)  # of a copy that was cut off
    for part in (folder, *_evaluations(folder)):
        _copy(part, RunFolder(made / part.path.relative_to(folder.path)))
    shutil.rmtree(target.path, ignore_errors=True)
    made.rename(target.path)
    return target


def _evaluations(folder: RunFolder) -> Iterator[RunFolder]:
    for file in sorted(folder.path.glob("evaluations/*/run.json")):
        yield RunFolder(file.parent)


def _copy(source: RunFolder, target: RunFolder) -> None:
    number = 0
    while source.results(number) is not None:  # which also checks it: a damaged file is not handed on
        write_bytes_atomic(target.task(number) / JSON_NAME, (source.task(number) / JSON_NAME).read_bytes())
        number += 1
    # What only repeats the tasks' files, for spreadsheets say, is left out.
    target.write_facts(_without_paths(source.facts()) | {ARCHIVED: True})


def _same_run(archived: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    own = _without_paths(facts)
    configs = [kind_of(each).from_dict(each["config"]).digest() for each in (archived, own)]
    return ARCHIVED in archived and configs[0] == configs[1]


def _without_paths(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a run, with files and folders by their last name, or without them where they decide no result."""
    config: dict[str, Any] = _last_names(facts["config"])
    for key in _PLACES:
        group, _, name = key.rpartition(".")
        (config[group] if group else config)[name] = None
    typed = [text.partition("=") for text in facts.get("overrides", [])]
    kept = [f"{key}{sign}{_last_names(value)}" for key, sign, value in typed if key not in _PLACES]
    return {**{key: value for key, value in facts.items() if key != "format"}, "config": config, "overrides": kept}


def _last_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _last_names(part) for key, part in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
