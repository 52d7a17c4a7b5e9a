"""What the user types after `elign sweep`, made into runs: every combination of the values that were given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.kinds import CLASSIFICATION, kind_named
from elign.lab.experiments.run_config import describe
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.experiments.words import protocol_words
from elign.lab.reproduce.base_runs import BaseRun, evaluation
from elign.lab.reproduce.grid import jobs_of
from elign.lab.reproduce.jobs import Job
from elign.lab.reproduce.store import Store

OUT = "out/sweep"

_REFUSED = {
    "start_from": "runs of a sweep take over each other's first tasks by themselves",
    "train.devices": "each run of a sweep has one process; how many devices it gets is --gpus",
}


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Args:
        run: What it is.
        label: What tells it from the others of the sweep, as typed.
        folder: Where it is, or will be.
        job: Does it, or what is left of it.
    """

    run: BaseRun
    label: str
    folder: RunFolder
    job: Job


def plan_sweep(texts: Sequence[str], *, kind: str = CLASSIFICATION) -> tuple[Path, list[Cell]]:
    """All runs that were asked for.

    Args:
        texts: Settings as for `elign run`, with commas between the values that are to be tried.
        kind: The kind of run.

    Returns:
        The folder of the sweep, and its runs, each once.

    Raises:
        ConfigError: A setting does not exist or cannot have its value.
    """
    paths = kind_named(kind).tree.paths
    out, choices = OUT, []
    for text in texts:
        key, sign, value = text.partition("=")
        if key in _REFUSED:
            raise ConfigError(f"{key} cannot be given here: {_REFUSED[key]}.")
        if key == "out":
            out = value
        elif key in paths:
            # Absolute: a worker may be in another folder.
            choices.append([f"{key}={value if value == 'null' else Path(value).expanduser().resolve()}"])
        else:
            choices.append([f"{key}{sign}{one}" for one in split_list(value)] or [text])
    folder = Path(out).expanduser().resolve()
    varied = [number for number, values in enumerate(choices) if len(values) > 1]
    combinations = list(itertools.product(*choices))
    labels = [" ".join(texts[number] for number in varied) for texts in combinations]
    return folder, plan_runs(folder, kind, combinations, labels)


def plan_runs(out: Path, kind: str, combinations: Sequence[Sequence[str]], labels: Sequence[str]) -> list[Cell]:
    """Runs from their settings, each once.

    Args:
        out: The folder of the sweep.
        kind: The kind of run.
        combinations: What `elign run` would be given for each.
        labels: What tells each from the others; where it is empty, the run's name does.
    """
    runs: dict[str, tuple[BaseRun, str]] = {}
    for overrides, label in zip(combinations, labels, strict=True):
        run = _run(tuple(overrides), kind)
        runs.setdefault(run.digest, (run, label or run.name))
    store = Store(out, kind)
    jobs = jobs_of([evaluation(run) for run, _ in runs.values()], store)
    return [Cell(run, label, store.folder(run), job) for (run, label), job in zip(runs.values(), jobs, strict=True)]


def _run(overrides: tuple[str, ...], kind: str) -> BaseRun:
    config = kind_named(kind).compose(overrides)
    typed = dict(text.split("=", 1) for text in overrides)
    learner = typed.get("learner", config.learner.name)
    return BaseRun(overrides, config, learner, protocol_words(describe(config)), kind)


def split_list(text: str) -> tuple[str, ...]:
    """Values between commas, each once; a comma in brackets belongs to a value.

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
