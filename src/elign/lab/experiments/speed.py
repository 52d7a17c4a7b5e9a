"""Which precision and memory layout trains fastest on this machine: measured, not guessed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.models.blocks import Backbone

_GAIN = 1.1  # What is hardly faster is not worth another rounding.
_REPEATS = 3


@dataclass(frozen=True)
class Speed:
    """A way to train.

    Args:
        precision: "32" or "bf16".
        channels_last: Whether pictures are laid out with their channels last.
    """

    precision: str = "32"
    channels_last: bool = False


def bf16_is_native() -> bool:
    """Whether this processor multiplies bfloat16 numbers by itself; where it does not, they are 10 times slower."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())  # type: ignore[no-untyped-call]


def choose_speed(
    make_backbone: Callable[[], Backbone],
    image_shape: tuple[int, int, int],
    *,
    measure: bool = True,
    precision: str = "auto",
    layout: str = "auto",
    batch_size: int = 64,
) -> Speed:
    """The fastest of the ways that `precision` and `layout` leave open.

    A few steps of each way are timed on the CPU; another than the plain one is taken if it is at least 10 % faster.
    Where nothing is measured, mixed precision is left to the user, and channels come last.

    Args:
        make_backbone: Makes the network.
        image_shape: (C, H, W).
        measure: False on an accelerator, and for several processes, which must all make the same choice.
        precision: "32", "bf16", or "auto" to choose.
        layout: "plain", "channels-last", or "auto" to choose.
        batch_size: Of the trial.
    """
    if not measure:
        return Speed("32" if precision == "auto" else precision, layout != "plain")
    precisions = [precision] if precision != "auto" else ["32", "bf16"] if bf16_is_native() else ["32"]
    layouts = [False, True] if layout == "auto" else [layout == "channels-last"]
    ways = [Speed(p, last) for p in precisions for last in layouts]
    if len(ways) == 1:
        return ways[0]
    # The caller's random numbers must not depend on whether anything was measured.
    with torch.random.fork_rng(devices=[]):
        images = torch.randn(batch_size, *image_shape)
        seconds = {way: _seconds(make_backbone(), images, way) for way in ways}
    best = min(ways, key=seconds.__getitem__)
    return best if seconds[ways[0]] > _GAIN * seconds[best] else ways[0]


def _seconds(net: nn.Module, images: Tensor, way: Speed) -> float:
    """The shortest of a few training steps after one to warm up."""
    if way.channels_last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.contiguous(memory_format=torch.channels_last)
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=way.precision == "bf16"):
            latents = net(images)
        F.mse_loss(latents.float(), torch.zeros_like(latents, dtype=torch.float32)).backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - start)
    return min(times[1:])
