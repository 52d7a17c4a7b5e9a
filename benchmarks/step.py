"""Where the time of one Langevin step goes: each operation of the fast chain on its own, at the size of a block.

    python benchmarks/step.py [--rows N]

Shows how much faster alignment could become at best: the three matrix products cannot be left out.
"""

from __future__ import annotations

import argparse

import torch
from timing import medians

import elign
from elign.energy.sampler import HiddenChain, Schedule

HIDDEN, REPEATS, SLOPE = 64, 50, 0.2


def main() -> None:
    """Print one row for each operation, and one for a whole step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    rows = parser.parse_args().rows
    torch.set_num_threads(1)
    aten = torch.ops.aten
    with torch.inference_mode():
        u, v, g, total = (torch.randn(rows, HIDDEN) for _ in range(4))
        weight, bias, one = (
            torch.randn(HIDDEN, HIDDEN) / 100,
            torch.randn(HIDDEN),
            torch.ones(1, 1).expand(rows, HIDDEN),
        )
        chain = HiddenChain(elign.EnergyModel(HIDDEN), Schedule(REPEATS, step=0.1, kick=0.0), u)
        start = chain.enter(torch.randn(rows, HIDDEN))
        operations = {
            "product: activations up, with bias": lambda: torch.addmm(bias, u, weight, out=v),
            "product: gradient down": lambda: torch.mm(v, weight, out=g),
            "product: move in hidden space": lambda: u.addmm_(g, weight, alpha=1e-9),
            "LeakyReLU": lambda: aten.leaky_relu.out(u, SLOPE, out=v),
            "slope of the top layer": lambda: aten.leaky_relu_backward.grad_input(one, v, SLOPE, False, grad_input=g),
            "times slope of the first layer": lambda: aten.leaky_relu_backward.grad_input(
                g, u, SLOPE, False, grad_input=g
            ),
            "sum of gradients": lambda: total.add_(g, alpha=1e-9),
            "whole step": lambda: chain.walk(start, None),
        }
        seconds = medians(
            {
                name: run if name == "whole step" else (lambda run=run: [run() for _ in range(REPEATS)])
                for name, run in operations.items()
            },
            rounds=15,
        )
    whole = seconds["whole step"]
    print(f"| operation, {rows} rows, 1 thread | microseconds | share of a step |")
    print("|---|---:|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {value / REPEATS * 1e6:.0f} | {value / whole:.0%} |")


if __name__ == "__main__":
    main()
