"""What ELI costs: parameters, multiply-accumulates, seconds of alignment and of fitting, memory.

Times are of this machine, on one thread, while nothing else runs, one hopes; `benchmarks/` compares ways of computing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import elign
from elign.lab.environment import describe_environment
from elign.lab.report import paper
from elign.lab.reproduce.grid import command
from elign.lab.reproduce.jobs import Experiment, Job
from elign.lab.reproduce.request import Request
from elign.lab.reproduce.sheet import Grid, Sheet
from elign.utils.files import write_text_atomic

BATCH, STEPS, PAIRS = 128, 30, 5000
_PRINTED_DIM = 64
_DIMS = (32, 64, 512, 2048)
_COLUMNS = (
    "latent dimension",
    "parameters",
    f"MACs of a {BATCH}-batch",
    f"ms to align {BATCH}",
    f"s to fit {PAIRS:,} pairs",
    "MB to align 10,000",
    "MB to fit",
)


def compute(request: Request) -> Experiment:
    """Section 4 of the supplement: cost of the aligner, at the latent dimensions that the paper uses."""
    remarks = request.left_out("compute", takes=())
    request = request.reduced(takes=())
    dims = (_PRINTED_DIM,) if request.smoke else _DIMS
    iterations = 50 if request.smoke else 1500
    folder = request.out / "compute"

    def sheet() -> Sheet:
        return _sheet({dim: _load(folder, dim, iterations) or {} for dim in dims}, iterations, request)

    jobs = tuple(_job(folder, dim, iterations) for dim in dims)
    return Experiment("compute", "what the aligner costs", jobs, sheet, request, remarks)


def measure(dim: int, iterations: int) -> dict[str, Any]:
    """All costs at one latent dimension, for the paper's energy model i-64-64-o and 30 steps."""
    energy = elign.EnergyModel(dim, generator=torch.Generator().manual_seed(0)).requires_grad_(False)
    maps = [weight.numel() for weight, _ in energy.linear_maps()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        align, fit = _align_seconds(energy, dim), _fit_seconds(dim, iterations)
    finally:
        torch.set_num_threads(threads)
    return {
        "parameters": sum(weight.numel() for weight in energy.parameters()),
        "macs": BATCH * sum(maps),
        "align_seconds": statistics.fmean(align),
        "align_std": statistics.stdev(align),
        "fit_seconds": fit,
        "align_megabytes": _memory("align", dim),
        "fit_megabytes": _memory("fit", dim),
    }


def _align_seconds(energy: elign.EnergyModel, dim: int, rounds: int = 30) -> list[float]:
    z = torch.randn(BATCH, dim, generator=torch.Generator().manual_seed(1))
    seconds = []
    for _ in range(rounds + 3):
        start = time.perf_counter()
        elign.descend(energy, z, steps=STEPS)
        seconds.append(time.perf_counter() - start)
    return seconds[3:]  # the first ones load what the others find loaded


def _fit_seconds(dim: int, iterations: int) -> float:
    generator = torch.Generator().manual_seed(2)
    current = torch.randn(PAIRS, dim, generator=generator)
    previous = current + 0.3 * torch.randn(dim, generator=generator)
    start = time.perf_counter()
    elign.EnergyAligner(iterations=iterations, steps=STEPS).fit_latents(previous, current)
    return time.perf_counter() - start


def _memory(what: str, dim: int) -> float | None:
    """How much the largest size of a fresh process grows, in megabytes; None where the system does not tell."""
    way = [sys.executable, "-m", "elign.lab.reproduce.memory_probe", what, str(dim)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(way, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    return float(done.stdout) if done.returncode == 0 else None


def _job(folder: Path, dim: int, iterations: int) -> Job:
    def work(console: Console) -> None:
        console.print(f"measuring at {dim} dimensions")
        content = {"settings": _settings(iterations)} | measure(dim, iterations)
        write_text_atomic(_file(folder, dim, iterations), json.dumps(content, indent=1) + "\n")

    done = _load(folder, dim, iterations) is not None
    return Job(f"compute {folder} {dim} {iterations}", "measure costs", done, None, work)


def _settings(iterations: int) -> dict[str, Any]:
    keep = ("elign", "torch", "processor")
    environment = describe_environment()
    return {"iterations": iterations} | {name: environment[name] for name in keep}


def _file(folder: Path, dim: int, iterations: int) -> Path:
    return folder / f"{dim}-{iterations}.json"


def _load(folder: Path, dim: int, iterations: int) -> dict[str, Any] | None:
    """What was measured before, on this machine and with these versions."""
    try:
        content = json.loads(_file(folder, dim, iterations).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("settings") == _settings(iterations) else None


def _sheet(found: Mapping[int, Mapping[str, Any]], iterations: int, request: Request) -> Sheet:
    printed = paper.compute()
    seconds = printed["sampling_seconds"]
    rows: list[tuple[str, ...]] = [
        (
            f"{_PRINTED_DIM}, paper",
            str(printed["parameters_printed"]),
            str(printed["flops_printed"]),
            f"{1e3 * seconds['mean']:.0f} ± {1e3 * seconds['std']:.0f}",
            *("–",) * 3,
        )
    ]
    rows += [(f"{dim}", *_cells(values)) for dim, values in found.items()]
    settings = _settings(iterations)
    notes = (
        f"the paper's row is of a {printed['gpu']}, ours of a processor: {settings['processor']}, one thread",
        f"energy model i-64-64-o, {STEPS} steps; fit: {iterations} iterations on cached latents",
        "MACs are multiply-accumulates of one forward pass, which is what the paper calls flops; "
        f"alignment has {STEPS} steps, each with a gradient",
        f"mean ± standard deviation of 30 alignments; memory: growth of a fresh process; torch {settings['torch']}",
    )
    grid = Grid(_COLUMNS, tuple(rows), 1)
    records = tuple({"latent_dimension": dim, **_flat(values)} for dim, values in found.items())
    narrow = Grid(tuple(heading.replace(" ", "\n") for heading in _COLUMNS), tuple(rows), 1)
    title = "What the aligner costs"
    return Sheet("compute", title, notes, grid, (narrow,), records, command("compute", request))


def _cells(values: Mapping[str, Any]) -> tuple[str, ...]:
    def megabytes(key: str) -> str:
        value = values.get(key)
        return "–" if value is None else f"{value:.1f}"

    align, std = 1e3 * values["align_seconds"], 1e3 * values["align_std"]
    return (
        f"{values['parameters']:,}",
        f"{values['macs'] / 1e6:.3f}M",
        f"{align:.2f} ± {std:.2f}",
        f"{values['fit_seconds']:.2f}",
        megabytes("align_megabytes"),
        megabytes("fit_megabytes"),
    )


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "settings"}
