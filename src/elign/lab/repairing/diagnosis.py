"""What `elign doctor` finds out about this machine and its packages. Nothing here fails where something is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Callable
from typing import Any

_MAIN = ("torch", "torchvision", "numpy", "safetensors")
_FRAMEWORKS = ("timm", "transformers")
_REMEDY = (
    "models of torchvision, timm and transformers work all the same in elign's commands; in your own code, put "
    "'import elign.compat' before 'import timm'. Or install the torchvision that was built for your torch"
)


def diagnose() -> dict[str, Any]:
    """Return versions, what is missing, whether torchvision's operators load, devices, threads and BLAS."""
    missing = missing_extras()
    return {
        "versions": {
            "elign": version("elign"),
            "python": platform.python_version(),
            **{name: version(name) for name in (*_MAIN, *_FRAMEWORKS)},
        },
        "system": f"{platform.system()} {platform.machine()}",
        "missing extras": {
            name: {"packages": gone, "install": f"pip install 'elign[{name}]'"} for name, gone in missing.items()
        },
        "torchvision operators": _tried(_operators),
        "torch": _tried(_torch),
        "environment": {
            name: os.environ[name] for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES") if name in os.environ
        },
    }


def version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_extras() -> dict[str, list[str]]:
    """Return the extras of this package of which something is not installed, with what that is."""
    found: dict[str, list[str]] = {}
    for text in _tried(lambda: importlib.metadata.requires("elign") or []):
        need = re.match(r"""([A-Za-z0-9._-]+).*;\s*extra\s*==\s*['"]([a-z-]+)['"]""", text)
        if need and need[2] != "dev" and version(need[1]) is None:
            found.setdefault(need[2], []).append(need[1])
    return found


def _tried(look: Callable[[], Any]) -> Any:
    """Return what a look finds, or why it fails."""
    try:
        return look()
    except Exception as error:  # a doctor must not fall ill
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _operators() -> dict[str, Any]:
    """Look whether torchvision can be imported, and whether its compiled operators load."""
    if importlib.util.find_spec("torchvision") is None:
        return {"load": False, "remedy": "torchvision is not installed: pip install 'elign[lab]'"}
    from elign.lab.environment import import_torchvision

    torchvision = import_torchvision()
    compiled = bool(torchvision.extension._has_ops())
    return {"load": True} if compiled else {"load": False, "remedy": _REMEDY}


def _torch() -> dict[str, Any]:
    """Look at devices, threads, BLAS and bf16."""
    import torch

    devices = {"cpu": _tried(_processor)}
    if torch.cuda.is_available():
        devices |= {f"cuda:{place}": torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())}
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    built = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    return {
        "devices": devices,
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "blas": blas[1] if blas else "unknown",
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "bf16": {
            "cpu": bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()),
            "cuda": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        },
    }


def _processor() -> str:
    from elign.lab.environment import describe_environment

    return describe_environment()["processor"]
