"""The runs of a sweep on Ray: each is a task that Ray places, and starts again when its process dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elign.lab.experiments.kinds import CLASSIFICATION
from elign.lab.extras import MissingExtraError
from elign.lab.learners import REGISTERED
from elign.lab.sweep.plan import Cell
from elign.lab.sweep.worker import do_run
from elign.utils.errors import ElignError, OptionError

_LOOK_SECONDS = 1.0


class SweepError(ElignError):
    """Some runs of a sweep failed; the others are finished."""


@dataclass(frozen=True)
class Resources:
    """What each run of a sweep gets.

    Args:
        cpus: Processors, and threads.
        gpus: GPUs; half of one lets two runs share it.
        retries: How often a run is started again whose process died.
        address: Of a Ray cluster; None: Ray is started on this machine, for this sweep alone.
    """

    cpus: int = 1
    gpus: float = 0.0
    retries: int = 3
    address: str | None = None


def require_ray() -> Any:
    """The package ray.

    Raises:
        MissingExtraError: It is not installed.
    """
    # What a user runs is nobody else's business; and where all processors are busy, a worker takes minutes to start.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("elign sweep needs the package ray: pip install 'elign[lab,ray]'") from None
    return ray


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    resources: Resources,
    *,
    ended: Callable[[Cell, str | None], None],
    look: Callable[[], None],
) -> None:
    """Do runs side by side, as many at a time as there is room for.

    Args:
        cells: The runs.
        out: The folder of the sweep.
        resources: What each gets.
        ended: Is told of each run that ended, and why it failed, if it did.
        look: Is called about once a second.

    Raises:
        OptionError: This machine can never have what a run asks for.
    """
    with _connected(resources) as ray:
        task = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=resources.retries)(do_run)
        waiting = {}
        for cell in cells:
            own = REGISTERED if cell.run.kind == CLASSIFICATION else {}
            waiting[task.remote(str(out), cell.run.kind, cell.run.overrides, resources.cpus, own)] = cell
        while waiting:
            for reference in ray.wait([*waiting], num_returns=1, timeout=_LOOK_SECONDS)[0]:
                ended(waiting.pop(reference), _problem(ray, reference))
            look()


def _problem(ray: Any, reference: Any) -> str | None:
    try:
        problem: str | None = ray.get(reference)
    except ray.exceptions.RayError as error:
        problem = str(error).strip().splitlines()[-1]
    return problem


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


def _check_room(there: dict[str, float], resources: Resources) -> None:
    """Ray would wait for ever for what is not there; a cluster may grow, this machine does not."""
    cpus, gpus = there.get("CPU", 0), there.get("GPU", 0)
    if resources.cpus > cpus or resources.gpus > gpus:
        raise OptionError(
            f"a run cannot have --cpus {resources.cpus} --gpus {resources.gpus:g}: "
            f"this machine has {cpus:g} processors and {gpus:g} GPUs"
        )
