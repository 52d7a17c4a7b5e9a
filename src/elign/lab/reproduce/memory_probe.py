"""A process that aligns or fits once and prints by how many megabytes its largest size grew. Run by `compute.py`.

    python -m elign.lab.reproduce.memory_probe align|fit DIMENSION

A process of its own, since the largest size of a process never falls. Only Linux tells the present size as well.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch

import elign

ROWS = {"align": 10_000, "fit": 5_000}


def main(what: str, dim: int) -> float:
    """Do it, and give the megabytes that the process needs beyond the latents it is given."""
    torch.set_num_threads(1)
    # What the first call loads is not the cost of the work.
    small = torch.randn(200, dim)
    elign.EnergyAligner(iterations=2).fit_latents(small + 1, small).align(small)
    z = torch.randn(ROWS[what], dim)
    other = z + 1 if what == "fit" else z
    energy = elign.EnergyModel(dim).requires_grad_(False)
    # Imports take more than they keep: without this, small work would fit below their peak and seem to cost nothing.
    ballast = bytearray(b"x") * max(0, _peak() - _present())
    before = _peak()
    if what == "align":
        elign.descend(energy, z)
    else:
        elign.EnergyAligner(iterations=20).fit_latents(other, z)
    grown = _peak() - before
    del ballast
    return grown / 2**20


def _peak() -> int:
    """Largest size of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _present() -> int:
    """Present size of this process, in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
