"""One run of a sweep, in a process of its own, maybe on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from elign.lab.data.errors import DataError
from elign.lab.learners import LEARNERS, register_learner
from elign.lab.sweep.plan import plan_runs
from elign.utils.errors import ElignError


def do_run(
    out: str, kind: str, overrides: Sequence[str], threads: int, learners: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Do a run, or what is left of it.

    Args:
        out: The folder of the sweep.
        kind: The kind of run.
        overrides: What the run is.
        threads: How many a new run has; one that goes on keeps the number it began with.
        learners: Those of the user's own, `REGISTERED` where the sweep was started: here nobody has registered them.

    Returns:
        None if it is finished, else why it is not: an error may be of a class that the other side cannot make again.
    """
    torch.set_num_threads(threads)
    for name, given in learners.items():
        # A worker that did another run before knows it already, and names are given once.
        LEARNERS.pop(name, None)
        register_learner(name, **given)
    try:
        (cell,) = plan_runs(Path(out), kind, [overrides], [""])
        cell.job.work(Console(quiet=True))
    except (ElignError, DataError, OSError) as error:
        return str(error)
    return None
