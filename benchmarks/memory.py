"""Peak memory of alignment and of fitting, each in a process of its own, against plain autograd.

    python benchmarks/memory.py

Counted is what the process needs beyond the latents it is given (Linux and macOS only).
"""

from __future__ import annotations

import resource
import subprocess
import sys

CASES = ("align 10000 64", "align 10000 2048", "align 1000000 64", "fit 5000 64", "fit 5000 2048")


def peak_kilobytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def measure(case: str, way: str) -> None:
    """Run one case in this process and print how much its peak grew."""
    import torch
    from fit import fit_eli, fit_plain
    from plain import plain_align

    import elign

    torch.set_num_threads(1)
    kind, rows, dim = case.split()
    # What the first call loads (kernels, optimizers) is not the cost of the work: load it before counting.
    small = torch.randn(5000, 8)
    fit_plain(small, small, 2)
    fit_eli(small, small, 2)
    z = torch.randn(int(rows), int(dim))
    other = z + 1 if kind == "fit" else z
    energy = elign.EnergyModel(int(dim)).requires_grad_(False)
    before = peak_kilobytes()
    if kind == "align":
        result = elign.descend(energy, z) if way == "eli" else plain_align(energy, z)
    else:
        result = fit_eli(other, z, 20) if way == "eli" else fit_plain(other, z, 20)
    del result
    print(peak_kilobytes() - before)


def main() -> None:
    """Print one row for each case."""
    print("| case | plain (MB) | eli (MB) | ratio |")
    print("|---|---:|---:|---:|")
    for case in CASES:
        peaks = [
            int(
                subprocess.run([sys.executable, __file__, case, way], check=True, capture_output=True, text=True).stdout
            )
            for way in ("plain", "eli")
        ]
        plain, ours = (peak / 1024 for peak in peaks)
        print(f"| {case} | {plain:.1f} | {ours:.1f} | {ours / max(plain, 0.1):.2f} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(*sys.argv[1:])
    else:
        main()
