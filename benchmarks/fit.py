"""Training of the energy model on cached latents: `EnergyAligner.fit_latents` against plain autograd.

    python benchmarks/fit.py [--iterations N] [--rounds N] [--dims N ...]

Both run the same iterations from the same seed. In a run of 200 iterations their energies are compared: in float64,
where rounding all but never puts a unit on the other side of its kink, they must agree to 1e-6 of their spread.
"""

from __future__ import annotations

import argparse

import torch
from plain import plain_fit, shuffled_rows
from timing import medians
from torch import Tensor

import elign

ROWS, BATCH = 5000, 128


def latents(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pairs that differ by a shift and some noise."""
    generator = torch.Generator().manual_seed(0)
    z_cur = torch.randn(ROWS, dim, generator=generator)
    z_prev = z_cur + 0.3 * torch.randn(dim, generator=generator) + 0.2 * torch.randn(ROWS, dim, generator=generator)
    return z_prev.to(dtype), z_cur.to(dtype)


def fit_plain(z_prev: Tensor, z_cur: Tensor, iterations: int) -> torch.nn.Module:
    """The reference, with the weights and batches that `EnergyAligner(seed=0)` draws."""
    generator = torch.Generator().manual_seed(0)
    energy = elign.EnergyModel(z_cur.shape[1], generator=generator).to(z_cur.dtype)
    rows = shuffled_rows(ROWS, BATCH, generator)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = next(rows)
        return z_prev[chosen], z_cur[chosen]

    return plain_fit(energy, batch, iterations=iterations)


def fit_eli(z_prev: Tensor, z_cur: Tensor, iterations: int) -> elign.EnergyAligner:
    """Ours."""
    return elign.EnergyAligner(iterations=iterations, batch_size=BATCH, seed=0).fit_latents(z_prev, z_cur)


def difference(dim: int, dtype: torch.dtype, iterations: int) -> float:
    """Largest difference of the fitted energies, relative to their spread."""
    z_prev, z_cur = latents(dim, dtype)
    models = fit_plain(z_prev, z_cur, iterations), fit_eli(z_prev, z_cur, iterations).energy
    with torch.no_grad():
        plain, ours = (energy(z_cur) for energy in models)
    return ((plain - ours).abs().max() / plain.std()).item()


def main() -> None:
    """Print one row for each latent dimension and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 2048])
    args = parser.parse_args()
    print("| threads | latent dimension | plain (s) | eli (s) | faster by | energies differ (float64) | (float32) |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for dim in args.dims:
            pairs = latents(dim, torch.float32)
            t = medians(
                {
                    "plain": lambda pairs=pairs: fit_plain(*pairs, args.iterations),
                    "eli": lambda pairs=pairs: fit_eli(*pairs, args.iterations),
                },
                rounds=args.rounds,
                warm_up=0,
            )
            exact, single = (
                difference(dim, kind, min(args.iterations, 200)) for kind in (torch.float64, torch.float32)
            )
            if exact > 1e-6:
                raise SystemExit(f"the energies differ by {exact:.0e} of their spread: not the same training")
            print(
                f"| {threads} | {dim} | {t['plain']:.1f} | {t['eli']:.1f} | {t['plain'] / t['eli']:.1f}x | "
                f"{exact:.0e} | {single:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
