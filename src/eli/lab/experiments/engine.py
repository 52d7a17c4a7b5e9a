"""Devices, precision and memory layout: lightning-fabric behind the few calls that the bench needs.

Imported by the training loop, extraction and the runner.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from eli.errors import OptionError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Not "16-mixed": it scales gradients by a number that changes as it goes, which a resumed task would have to know.
_PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed"}


class Engine:
    """Where and how numbers are computed.

    Args:
        accelerator: "auto", "cpu", "cuda", "mps"...
        devices: How many.
        precision: "32" or "bf16".
        channels_last: Whether pictures are laid out with their channels last.
    """

    def __init__(
        self, *, accelerator: str = "auto", devices: int = 1, precision: str = "32", channels_last: bool = False
    ) -> None:
        # Imported here: it takes seconds, and a command that only reads results has no use for it.
        from lightning_fabric import Fabric

        try:
            self.fabric: Fabric = Fabric(accelerator=accelerator, devices=devices, precision=_PRECISIONS[precision])  # type: ignore[arg-type]
        except (RuntimeError, ValueError, ImportError) as error:
            raise OptionError(
                f"train.accelerator={accelerator} train.devices={devices} cannot be had: {error}"
            ) from error
        # With several devices this starts the other processes, or joins those that torchrun started.
        self.fabric.launch()
        self.precision = precision
        self.channels_last = channels_last

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

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.fabric.barrier()

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
        wrapped, wrapped_optimizer = self.fabric.setup(self.place(module), optimizer)
        return wrapped, wrapped_optimizer

    def autocast(self) -> AbstractContextManager[None]:
        """The precision of training, for work beside the wrapped module."""
        return self.fabric.autocast()

    def share(self, rows: Tensor) -> Tensor:
        """This process's share of the rows of an epoch: as many as every other's."""
        world = self.fabric.world_size
        return rows[: len(rows) // world * world][self.fabric.global_rank :: world] if world > 1 else rows
