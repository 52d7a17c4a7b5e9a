"""Devices, processes, precision and memory layout: lightning-fabric behind the few calls that the bench needs."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from elign.lab.experiments.processes import (
    WAIT,
    check_connection,
    close_connection,
    exit_code_of_all,
    started_by_torchrun,
)
from elign.lab.experiments.synced_norm import synchronise
from elign.utils.errors import OptionError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from elign.lab.experiments.crew import Crew

# Not "16-mixed": it scales gradients by a number that changes as it goes, which a resumed task would have to know.
_PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed"}

_Value = TypeVar("_Value")


class Engine:
    """Where and how numbers are computed.

    Args:
        accelerator: "auto", "cpu", "cuda", "mps"...
        devices: How many, each with a process of its own. Where torchrun started the processes, theirs is the number.
        precision: "32" or "bf16".
        channels_last: Whether pictures are laid out with their channels last.
    """

    def __init__(
        self, *, accelerator: str = "auto", devices: int = 1, precision: str = "32", channels_last: bool = False
    ) -> None:
        # Imported here: it takes seconds, and a command that only reads results has no use for it.
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        devices, nodes = started_by_torchrun() or (devices, 1)
        several = devices * nodes > 1
        try:
            self.fabric: Fabric = Fabric(
                accelerator=accelerator,
                strategy=DDPStrategy(timeout=WAIT) if several else "auto",
                devices=devices,
                num_nodes=nodes,
                precision=_PRECISIONS[precision],  # type: ignore[arg-type]
            )
        except (RuntimeError, ValueError, ImportError) as error:
            raise OptionError(
                f"train.accelerator={accelerator} train.devices={devices} cannot be had: {error}"
            ) from error
        # With several devices this starts the other processes, or joins those that torchrun started.
        self.fabric.launch()
        if several:
            atexit.register(close_connection)
        self.precision = precision
        self.channels_last = channels_last
        self.crew: Crew | None = None

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.fabric.device

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.fabric.is_global_zero

    @property
    def processes(self) -> int:
        """How many processes share the work."""
        return self.fabric.world_size

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self.fabric.global_rank

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.fabric.barrier()

    def of_first(self, value: Callable[[], _Value]) -> _Value:
        """What a function gives in the first process, in all of them; in the others it is not called.

        What is on disk is looked at like this: a folder that several machines share can look different on each.
        """
        if self.processes == 1:
            return value()
        return self.fabric.broadcast(value() if self.is_main else None)  # type: ignore[return-value]

    def mean(self, value: Tensor) -> Tensor:
        """A number's mean over all processes."""
        if self.processes == 1:
            return value
        mean: Tensor = self.fabric.all_reduce(value.detach().clone(), reduce_op="mean")  # type: ignore[assignment]
        return mean

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, which have equally many, one after the other."""
        if self.processes == 1:
            return rows
        gathered: Tensor = self.fabric.all_gather(rows)  # type: ignore[assignment]
        return gathered.flatten(0, 1)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails in one process ends all: the first one to fail raises, the others leave with its exit code.

        Raises:
            LostProcessError: Another process ended without a word, killed say.
        """
        try:
            yield
        except BaseException as error:
            if self.processes == 1:
                raise
            code = exit_code_of_all(error, self.rank)
            if code is not None:
                raise SystemExit(code) from error
            check_connection(error)
            raise

    def place(self, module: nn.Module) -> nn.Module:
        """The module on this device, in this layout; in place."""
        module.to(self.device)
        return module.to(memory_format=torch.channels_last) if self.channels_last else module  # type: ignore[call-overload]

    def images(self, batch: Tensor) -> Tensor:
        """A batch of images on this device, in this layout."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return batch.to(self.device, non_blocking=True).contiguous(memory_format=layout)

    def labels(self, batch: Tensor) -> Tensor:
        """A batch of labels on this device."""
        return batch.to(self.device, non_blocking=True)

    def prepare(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """The module and its optimiser, wrapped for this precision and these devices."""
        if self.processes > 1:
            synchronise(module, self.device)
        wrapped, wrapped_optimizer = self.fabric.setup(self.place(module), optimizer)
        return wrapped, wrapped_optimizer

    def autocast(self) -> AbstractContextManager[None]:
        """The precision of training, for work beside the wrapped module."""
        return self.fabric.autocast()

    def share(self, rows: Tensor) -> Tensor:
        """This process's share of the rows of an epoch: as many as every other's.

        Cut into batches of 1/n of the size, the shares of n processes make up the very batches of a single one; fewer
        than n rows are left out at the end.
        """
        world = self.processes
        return rows[: len(rows) // world * world][self.rank :: world]

    def part(self, rows: Tensor, size: int) -> tuple[Tensor, int]:
        """This process's part of rows to be computed by batches, and the size of its batches.

        The batches that all processes make at a time, gathered, are the next piece of the rows. After the last row it
        is repeated, so that all processes have equally many: whoever gathers cuts at the number of rows.
        """
        world = self.processes
        if world == 1 or not len(rows):
            return rows, size
        size = min(size, -(-len(rows) // world))
        rest = rows[-1:].expand(-len(rows) % (size * world))
        return torch.cat([rows, rest]).view(-1, world, size)[:, self.rank].flatten(), size

    def purpose(self, purpose: str) -> str:
        """The purpose of a seed, where each process must draw other numbers than the rest."""
        return f"{purpose} in process {self.rank}" if self.rank else purpose
