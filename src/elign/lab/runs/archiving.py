"""Copies of runs with their results alone: no models, no latents, no paths of this machine.

A run takes a hundred megabytes, its archive a hundred kilobytes, and every command that shows results reads it like the
run itself.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elign.lab.runs.experiment import benchmark_of
from elign.lab.runs.run_dir import ARCHIVED, RunDir, RunError

_PATHS = ("out", "start_from", "data.data_dir")
"""Settings that say where something is and do not decide results."""


def archive_run(run: RunDir, into: Path) -> RunDir:
    """Copy the results of a run, finished or not, and of its evaluations to a folder of its own name in `into`.

    An older copy is replaced as a whole.

    Raises:
        RunError: There are no results yet, or something else is in the way.
    """
    target = RunDir(into / run.path.resolve().name)
    metadata = run.metadata()
    if run.results(0) is None:
        raise RunError(f"{run.path} has no results yet; there is nothing to archive")
    if target.path.resolve() == run.path.resolve():
        raise RunError(f"{run.path} would be archived into itself; give another folder")
    # What is there is removed in the end, so it must be a copy of this very run, and not reached by a link.
    taken = target.path.is_symlink() or target.path.exists()
    if taken and (target.path.is_symlink() or not target.exists or not _same_run(target.metadata(), metadata)):
        raise RunError(f"{target.path} holds something else; give another folder, or move that away")
    into.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.path.name}."
    for left in into.glob(f"{prefix}*.part"):  # by a copy that was killed
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
    # A new folder with a name that nobody can plant a link at; a kill leaves the old copy or the new one.
    made = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=into))
    for source in (run, *run.evaluations()):
        copy = RunDir(made / "new" / source.path.relative_to(run.path))
        for number in range(source.finished_tasks()):
            source.results(number)  # checks it: a damaged file is not copied
            copy.copy_task_results(number, source)
        copy.write_metadata(_without_paths(source.metadata()) | {ARCHIVED: True})
    if taken:
        target.path.rename(made / "old")
    (made / "new").rename(target.path)
    shutil.rmtree(made)
    return target


def _same_run(archived: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    own = _without_paths(metadata)
    digests = [benchmark_of(each).from_dict(each["config"]).digest() for each in (archived, own)]
    return bool(archived.get(ARCHIVED)) and digests[0] == digests[1]


def _without_paths(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without paths that do not decide results, and with the last name of the others."""
    config: dict[str, Any] = _last_names(metadata["config"])
    for key in _PATHS:
        section, _, name = key.rpartition(".")
        (config[section] if section else config)[name] = None
    typed = [text.partition("=") for text in metadata.get("overrides", [])]
    kept = [f"{key}{sign}{_last_names(value)}" for key, sign, value in typed if key not in _PATHS]
    return {**{key: value for key, value in metadata.items() if key != "format"}, "config": config, "overrides": kept}


def _last_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _last_names(part) for key, part in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
