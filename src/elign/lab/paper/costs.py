"""What ELI costs: parameters, multiply-accumulates, seconds of alignment and of fitting, memory.

    python -m elign.lab.paper.costs align|fit DIMENSION

aligns or fits once and prints by how many megabytes the process grew: a process of its own, since the largest size of a
process never falls. Times are of one thread of this machine; `benchmarks/` compares ways of computing.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import timeit
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import elign
from elign.lab.environment import describe_environment
from elign.lab.paper.comparison import numbers
from elign.lab.paper.plan import Job, Plan
from elign.lab.paper.request import Grid, Request
from elign.lab.report.table import Cell, Table
from elign.utils.files import write_text_atomic

BATCH, STEPS, PAIRS, ALIGNED = 128, 30, 5000, 10_000
_ROUNDS, _WARM_UP = 30, 3


def costs_plan(name: str, grid: Grid, request: Request) -> Plan:
    """Plan the measurements at the latent dimensions that the paper uses."""
    request, remarks = request.reduced(name, takes=())
    dims = grid.smoke_dimensions if request.smoke else grid.dimensions
    iterations = 50 if request.smoke else 1500
    files = {dim: request.out / "compute" / f"{dim}-{iterations}.json" for dim in dims}

    def tables() -> list[Table]:
        found = {dim: _load(file, iterations) or {} for dim, file in files.items()}
        return [_table(grid.title, found, iterations, request.command(name))]

    jobs = tuple(_job(file, dim, iterations) for dim, file in files.items())
    return Plan(name, grid.title, jobs, tables, request, remarks)


def measure(dim: int, iterations: int) -> dict[str, Any]:
    """Measure all costs at one latent dimension, for the paper's energy model i-64-64-o and 30 steps."""
    energy = elign.EnergyModel(dim, generator=torch.Generator().manual_seed(0)).requires_grad_(False)
    z = torch.randn(BATCH, dim, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    current = torch.randn(PAIRS, dim, generator=generator)
    previous = current + 0.3 * torch.randn(dim, generator=generator)
    aligner = elign.EnergyAligner(iterations=iterations, steps=STEPS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        align = timeit.repeat(lambda: elign.descend(energy, z, steps=STEPS), number=1, repeat=_ROUNDS + _WARM_UP)
        fit = timeit.timeit(lambda: aligner.fit_latents(previous, current), number=1)
    finally:
        torch.set_num_threads(threads)
    align = align[_WARM_UP:]
    return {
        "parameters": sum(weight.numel() for weight in energy.parameters()),
        "macs": BATCH * sum(weight.numel() for weight, _ in energy.linear_maps()),
        "align_seconds": statistics.fmean(align),
        "align_std": statistics.stdev(align),
        "fit_seconds": fit,
        "align_megabytes": _memory("align", dim),
        "fit_megabytes": _memory("fit", dim),
    }


def _memory(what: str, dim: int) -> float | None:
    """Return the megabytes that a fresh process grows by; None where the system does not tell."""
    command = [sys.executable, "-m", "elign.lab.paper.costs", what, str(dim)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    return float(done.stdout) if done.returncode == 0 else None


def _growth(what: str, dim: int) -> float:
    """Align or fit in this process, and return the megabytes it needs beyond the latents that it is given."""
    torch.set_num_threads(1)
    # What the first call loads is not the cost of the work.
    small = torch.randn(200, dim)
    elign.EnergyAligner(iterations=2).fit_latents(small + 1, small).align(small)
    z = torch.randn(ALIGNED if what == "align" else PAIRS, dim)
    other = z + 1 if what == "fit" else z
    energy = elign.EnergyModel(dim).requires_grad_(False)
    # Imports take more than they keep: without this, small work would fit below their peak and seem to cost nothing.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    ballast = bytearray(b"x") * max(0, _peak() - pages * os.sysconf("SC_PAGE_SIZE"))
    before = _peak()
    if what == "align":
        elign.descend(energy, z)
    else:
        elign.EnergyAligner(iterations=20).fit_latents(other, z)
    grown = _peak() - before
    del ballast
    return grown / 2**20


def _peak() -> int:
    """Return the largest size of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _job(file: Path, dim: int, iterations: int) -> Job:
    def work(console: Console) -> None:
        console.print(f"measure costs at {dim} dimensions")
        content = {"settings": _settings(iterations)} | measure(dim, iterations)
        write_text_atomic(file, json.dumps(content, indent=1) + "\n")

    return Job(f"compute {file}", "measure costs", _load(file, iterations) is not None, None, work)


def _settings(iterations: int) -> dict[str, Any]:
    environment = describe_environment()
    return {"iterations": iterations} | {name: environment[name] for name in ("elign", "torch", "processor")}


def _load(file: Path, iterations: int) -> dict[str, Any] | None:
    """Return what was measured before on this machine with these versions, if anything."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("settings") == _settings(iterations) else None


def _table(title: str, found: Mapping[int, Mapping[str, Any]], iterations: int, command: str) -> Table:
    printed, settings = numbers()["compute"], _settings(iterations)
    notes = (
        f"the paper's row is of a {printed['gpu']}, ours of a processor: {settings['processor']}, one thread",
        f"energy model i-64-64-o, {STEPS} steps; fit: {iterations} iterations on cached latents",
        "MACs are multiply-accumulates of one forward pass, which is what the paper calls flops; "
        f"alignment has {STEPS} steps, each with a gradient",
        f"mean ± standard deviation of {_ROUNDS} alignments; memory: growth of a fresh process; "
        f"torch {settings['torch']}",
    )
    columns = (
        *("latent dimension", "parameters", f"MACs of a {BATCH}-batch", f"ms to align {BATCH}"),
        *(f"s to fit {PAIRS:,} pairs", f"MB to align {ALIGNED:,}", "MB to fit"),
    )
    table = Table(title, columns, notes, [f"Made by `{command}`."])
    align = printed["sampling_seconds"]
    milliseconds = f"{1e3 * align['mean']:.0f} ± {1e3 * align['std']:.0f}"
    table.add("64, paper", printed["parameters_printed"], printed["flops_printed"], milliseconds, None, None, None)
    for dim, values in found.items():
        mean, std = 1e3 * values["align_seconds"], 1e3 * values["align_std"]
        table.add(
            str(dim),
            Cell(f"{values['parameters']:,}", float(values["parameters"])),
            Cell(f"{values['macs'] / 1e6:.3f}M", float(values["macs"])),
            Cell(f"{mean:.2f} ± {std:.2f}", mean),
            Cell.of(values["fit_seconds"], 2),
            values["align_megabytes"],
            values["fit_megabytes"],
        )
    return table


if __name__ == "__main__":
    print(_growth(sys.argv[1], int(sys.argv[2])))
