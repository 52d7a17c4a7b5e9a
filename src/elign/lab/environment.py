"""The machine and the versions behind a result, optional packages, and seeds derived by name."""

from __future__ import annotations

import functools
import importlib
import platform
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

import elign
from elign.utils.errors import ElignError


def describe_environment() -> dict[str, str]:
    """What a reader needs to know to judge timings and to repeat numbers."""
    return {
        "elign": elign.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


class MissingExtraError(ElignError):
    """A part of the bench needs a package that is not installed; the message says which."""


def derive_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose; equal numbers for two purposes would make, say, two networks start from equal weights."""
    state = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)
    return int(state[0])


def import_torchvision() -> Any:
    """Import torchvision, also where its compiled operators do not load.

    A torchvision that was built for CUDA cannot load its library beside a CPU build of torch. It tolerates that, except
    in one place, which describes the shapes of two operators that nobody defined; here they are defined.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        _define_operators()
        # An import that failed leaves its parts behind, and the next one would not put them into their package.
        for name in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[name]
        return importlib.import_module("torchvision")


@functools.cache
def _define_operators() -> torch.library.Library:
    """Define the operators; they live as long as the result."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library
