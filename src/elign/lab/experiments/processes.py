"""Several processes that do one run: who started them, and how all end when one does."""

from __future__ import annotations

import os
from datetime import timedelta

import torch

from elign.utils.errors import ElignError

WAIT = timedelta(days=2)
"""How long processes wait for each other. While the first one fits aligners the others have nothing to do; that one is
gone is noticed by its connection, or by torchrun."""

_FAILED = "elign/failed"

_failures: list[BaseException] = []
"""Why this process must end before its time, if it must."""


class LostProcessError(ElignError):
    """Another process of the same run ended without saying why."""


def started_by_torchrun() -> tuple[int, int] | None:
    """How many processes torchrun started on this machine, and on how many machines; None if it started none."""
    if not (torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()):
        return None
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return here, everywhere // here


def exit_code_of_all(error: BaseException, rank: int) -> int | None:
    """With which code this process must end because another one failed before; None if this is the first to fail."""
    _failures.append(error)
    mine = f"{130 if isinstance(error, KeyboardInterrupt) else 1} {rank}"
    try:
        # There is no public way to the store that the processes met in, and another one would need another port.
        store = torch.distributed.distributed_c10d._get_default_store()
        first = store.compare_set(_FAILED, "", mine).decode()
    except RuntimeError:
        return 1  # the process that kept the store is gone, so it failed before
    return None if first == mine else int(first.partition(" ")[0])


def close_connection() -> None:
    """For the end of Python, which may abort where it finds threads of a connection that is still open.

    Not after a failure: threads may wait then for a process that will never answer.
    """
    if torch.distributed.is_initialized() and not _failures:
        torch.distributed.destroy_process_group()


def check_connection(error: BaseException) -> None:
    """Say in one line what an error of the connection between processes means.

    Raises:
        LostProcessError: It is one.
    """
    libraries = ("gloo", "nccl")
    lost = isinstance(error, RuntimeError) and any(name in str(error).lower() for name in libraries)
    if lost or isinstance(error, torch.distributed.DistError):
        raise LostProcessError(
            "another process of this run ended; what is finished is kept, the same command goes on from there"
        ) from error
