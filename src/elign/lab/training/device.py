"""Devices, processes, precision and memory layout, with lightning-fabric."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from elign.utils.errors import ElignError, OptionError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_Value = TypeVar("_Value")

# The other processes wait while the first one evaluates. A process that ends is noticed by its connection.
_TIMEOUT = timedelta(days=2)
_FAILED = "elign/failed"
# Not "16-mixed": it scales gradients by a number that changes as it goes, which a resumed task would have to know.
_FABRIC_PRECISION = {"32": "32-true", "bf16": "bf16-mixed"}
_failures: list[BaseException] = []


class LostProcessError(ElignError):
    """Another process of the same run ended without saying why."""


class Precision(NamedTuple):
    """How numbers are computed; part of what decides them."""

    name: str = "32"
    """ "32" or "bf16"."""
    channels_last: bool = False
    """The memory layout of images and convolutions."""


def choose_precision(*, fast: bool, accelerator: str = "auto") -> Precision:
    """Return plain float32, or the fast way that the processor has instructions for."""
    if not fast:
        return Precision()
    on_cuda = accelerator in ("auto", "cuda") and torch.cuda.is_available()
    native = torch.cuda.is_bf16_supported(including_emulation=False) if on_cuda else bf16_is_native()
    return Precision("bf16" if native else "32", channels_last=True)


def bf16_is_native() -> bool:
    """Return whether the CPU multiplies bfloat16 numbers itself; emulation is ten times slower."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())  # type: ignore[no-untyped-call]


class Engine:
    """A device, or the share that this process has of several; under torchrun, torchrun decides how many there are."""

    def __init__(self, *, accelerator: str = "auto", devices: int = 1, precision: Precision | None = None) -> None:
        # Imported here: it takes seconds, and commands that only read results do not need it.
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        self.precision = precision or Precision()
        devices, nodes = _started_by_torchrun() or (devices, 1)
        several = devices * nodes > 1
        try:
            self.fabric: Fabric = Fabric(
                accelerator=accelerator,
                strategy=DDPStrategy(timeout=_TIMEOUT) if several else "auto",
                devices=devices,
                num_nodes=nodes,
                precision=_FABRIC_PRECISION[self.precision.name],  # type: ignore[arg-type]
            )
        except (RuntimeError, ValueError, ImportError) as error:
            raise OptionError(f"cannot use train.accelerator={accelerator} train.devices={devices}: {error}") from error
        # With several devices this starts the other processes, or joins those of torchrun.
        self.fabric.launch()
        self.device, self.processes, self.rank = self.fabric.device, self.fabric.world_size, self.fabric.global_rank
        self.is_main = self.fabric.is_global_zero
        """Whether this process writes files."""
        self.wait, self.autocast = self.fabric.barrier, self.fabric.autocast
        if several:
            atexit.register(_close_connection)

    def of_first(self, function: Callable[[], _Value]) -> _Value:
        """Call a function in the first process and return its value in all of them.

        Use it for what depends on files: a folder that several machines share can look different on each.
        """
        if self.processes == 1:
            return function()
        return self.fabric.broadcast(function() if self.is_main else None)  # type: ignore[return-value]

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a number over all processes."""
        if self.processes == 1:
            return value
        mean: Tensor = self.fabric.all_reduce(value.detach().clone(), reduce_op="mean")  # type: ignore[assignment]
        return mean

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, which have equally many, one after the other."""
        if self.processes == 1:
            return rows
        gathered: Tensor = self.fabric.all_gather(rows)  # type: ignore[assignment]
        return gathered.flatten(0, 1)

    @contextmanager
    def together(self) -> Iterator[None]:
        """End all processes if one fails: the first to fail raises, the others leave with its exit code.

        Raises:
            LostProcessError: Another process was killed.
        """
        try:
            yield
        except BaseException as error:
            if self.processes > 1:
                code = _exit_code_of_all(error, self.rank)
                if code is not None:
                    raise SystemExit(code) from error
                check_connection(error)
            raise

    def place(self, module: nn.Module) -> nn.Module:
        """Move a module to this device and layout, in place."""
        module.to(self.device)
        return module.to(memory_format=torch.channels_last) if self.precision.channels_last else module  # type: ignore[call-overload]

    def images(self, batch: Tensor) -> Tensor:
        """Return a batch of images on this device, in this layout."""
        layout = torch.channels_last if self.precision.channels_last else torch.contiguous_format
        return batch.to(self.device, non_blocking=True).contiguous(memory_format=layout)

    def prepare(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """Wrap a module and its optimiser for this precision and these devices."""
        if self.processes > 1:
            synchronise(module, self.device)
        wrapped, wrapped_optimizer = self.fabric.setup(self.place(module), optimizer)
        return wrapped, wrapped_optimizer

    def share(self, rows: Tensor) -> Tensor:
        """Return this process's share of the rows of an epoch, as many as every other's.

        Cut into batches of 1/n of the size, the shares of n processes make up the batches of one process. Fewer than n
        rows are left out at the end.
        """
        world = self.processes
        return rows[: len(rows) // world * world][self.rank :: world]

    def part(self, rows: Tensor, size: int) -> tuple[Tensor, int]:
        """Return this process's part of rows to compute by batches, and the size of its batches.

        The batches of all processes, gathered, are the next piece of the rows. The last row is repeated so that all
        processes have equally many; the caller of `gather` cuts at the number of rows.
        """
        world = self.processes
        if world == 1 or not len(rows):
            return rows, size
        size = min(size, -(-len(rows) // world))
        rest = rows[-1:].expand(-len(rows) % (size * world))
        return torch.cat([rows, rest]).view(-1, world, size)[:, self.rank].flatten(), size

    def purpose(self, purpose: str) -> str:
        """Return the purpose of a seed where each process must draw different numbers."""
        return f"{purpose} in process {self.rank}" if self.rank else purpose


def _started_by_torchrun() -> tuple[int, int] | None:
    """Return how many processes torchrun started on this machine, and on how many machines."""
    if not (torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()):
        return None
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return here, everywhere // here


def _exit_code_of_all(error: BaseException, rank: int) -> int | None:
    """Return the exit code of the process that failed first, or None if it is this one."""
    _failures.append(error)
    mine = f"{130 if isinstance(error, KeyboardInterrupt) else 1} {rank}"
    try:
        # There is no public way to the store that the processes met in, and another one would need another port.
        store = torch.distributed.distributed_c10d._get_default_store()
        first = store.compare_set(_FAILED, "", mine).decode()
    except RuntimeError:
        return 1  # the process that kept the store is gone, so it failed before
    return None if first == mine else int(first.partition(" ")[0])


def _close_connection() -> None:
    # At exit Python may abort if threads of a connection are open. After a failure they may wait for ever: leave them.
    if torch.distributed.is_initialized() and not _failures:
        torch.distributed.destroy_process_group()


def check_connection(error: BaseException) -> None:
    """Raise `LostProcessError` if an error means that the connection to another process broke."""
    broken = isinstance(error, RuntimeError) and any(name in str(error).lower() for name in ("gloo", "nccl"))
    if broken or isinstance(error, torch.distributed.DistError):
        raise LostProcessError(
            "another process of this run ended; finished work is kept, and the same command resumes the run"
        ) from error


def synchronise(module: nn.Module, device: torch.device) -> None:
    """Make every batch norm of a module use the statistics of all processes; in place, weights stay the same."""
    if device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return
    # torch's own works on GPUs only.
    for part in module.modules():
        if type(part) is nn.BatchNorm2d:
            part.__class__ = SyncedNorm


class SyncedNorm(nn.BatchNorm2d):
    """A batch norm that trains with the statistics of all processes, each of which has as many images."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise feature maps."""
        if not self.training:
            return super().forward(input)
        x = input.float()
        count = x.numel() // x.shape[1] * torch.distributed.get_world_size()
        mean = _sum_over_all(x.sum((0, 2, 3))) / count
        centred = x - mean.view(1, -1, 1, 1)
        # In a second step: the mean of squares less the square of the mean loses digits.
        variance = _sum_over_all(centred.square().sum((0, 2, 3))) / count
        self._update(mean.detach(), variance.detach() * count / max(count - 1, 1))
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(input.dtype)

    def _update(self, mean: Tensor, variance: Tensor) -> None:
        # For the type checker: every batch norm of a backbone has these.
        assert self.running_mean is not None and self.running_var is not None  # noqa: S101, PT018
        assert self.num_batches_tracked is not None and self.momentum is not None  # noqa: S101, PT018
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        self.num_batches_tracked.add_(1)


class _Sum(torch.autograd.Function):
    """The sum over all processes. Each process uses it, so the gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.clone()
        torch.distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _sum_over_all(gradient)


def _sum_over_all(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total
