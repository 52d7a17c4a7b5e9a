"""Alignment of a batch: `elign.descend` against plain autograd, and against the floor of its own matrix products.

    python benchmarks/align.py [--rounds N] [--sizes ROWSxDIM ...]

The floor is the time of the matrix products alone: three of B x 64 x 64 in each of the 30 steps, and one into and one
out of the hidden layer (B x D x 64). "Over step products" leaves these last two out of the floor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from plain import plain_align
from timing import medians
from torch import Tensor

import elign

SIZES = ("128x64", "512x2048", "10000x64", "10000x2048")
STEPS, HIDDEN = 30, 64


def products(rows: int, dim: int, *, with_ends: bool) -> Callable[[], None]:
    """A function that does the matrix products of a chain and nothing else."""
    z, out = torch.randn(rows, dim), torch.empty(rows, dim)
    u, v = torch.randn(rows, HIDDEN), torch.empty(rows, HIDDEN)
    square, enter, leave = (torch.randn(HIDDEN, HIDDEN), torch.randn(dim, HIDDEN), torch.randn(HIDDEN, dim))

    def run() -> None:
        with torch.inference_mode():
            if with_ends:
                torch.mm(z, enter, out=v)
            for _ in range(3 * STEPS):
                torch.mm(u, square, out=v)
            if with_ends:
                torch.mm(v, leave, out=out)

    return run


def compare(rows: int, dim: int, rounds: int) -> dict[str, float]:
    """Seconds of each way at one size, after a check that both give the same latents."""
    energy = elign.EnergyModel(dim, generator=torch.Generator().manual_seed(0)).requires_grad_(False)
    z = torch.randn(rows, dim, generator=torch.Generator().manual_seed(1))
    check(elign.descend(energy, z), plain_align(energy, z))
    return medians(
        {
            "plain": lambda: plain_align(energy, z),
            "eli": lambda: elign.descend(energy, z),
            "steps": products(rows, dim, with_ends=False),
            "floor": products(rows, dim, with_ends=True),
        },
        rounds=rounds if rows * dim > 1_000_000 else 5 * rounds,
    )


def check(ours: Tensor, plain: Tensor) -> None:
    """A row may differ where rounding puts a unit on the other side of its kink; the rest must agree."""
    apart = ((ours - plain).abs().amax(dim=1) > 1e-4).double().mean().item()
    if apart > 0.01:
        raise SystemExit(f"{apart:.1%} of the rows differ from plain autograd: not the same result")


def main() -> None:
    """Print one row for each size and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="ROWSxDIM")
    args = parser.parse_args()
    print("| threads | latents | plain (ms) | eli (ms) | faster by | over floor | over step products |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for size in args.sizes:
            rows, dim = map(int, size.split("x"))
            t = compare(rows, dim, args.rounds)
            print(
                f"| {threads} | {rows:,} x {dim} | {t['plain'] * 1e3:.1f} | {t['eli'] * 1e3:.1f} | "
                f"{t['plain'] / t['eli']:.1f}x | {t['eli'] / t['floor']:.2f}x | {t['eli'] / t['steps']:.2f}x |",
                flush=True,
            )


if __name__ == "__main__":
    main()
