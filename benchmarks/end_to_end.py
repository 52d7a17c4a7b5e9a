"""`EnergyAligner.fit` from images: latents once per image, against running both backbones again in each iteration.

    python benchmarks/end_to_end.py [--images N] [--iterations N] [--plain-iterations N] [--batch N]

Two ResNet-32 and random images of CIFAR's size (time does not depend on what is in them). Both take turns, medians of
three rounds. The reference is timed on fewer iterations and scaled: each of its iterations costs the same.
"""

from __future__ import annotations

import argparse

import torch
from plain import plain_fit
from timing import medians
from torch import Tensor

import elign
from elign.lab.models.classifier import CifarResNet


def main() -> None:
    """Print the two times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--plain-iterations", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128, help="images that go through the backbones at a time")
    args = parser.parse_args()
    torch.manual_seed(0)
    previous, current = CifarResNet(32).eval(), CifarResNet(32).eval()
    images = torch.randn(args.images, 3, 32, 32)

    aligner = elign.EnergyAligner(iterations=args.iterations)

    def batch() -> tuple[Tensor, Tensor]:
        x = images[torch.randint(len(images), (args.batch,))]
        with torch.no_grad():
            return previous(x), current(x)

    # What the first optimizer of a process imports is not the cost of an iteration.
    plain_fit(elign.EnergyModel(64), batch, iterations=1)
    seconds = medians(
        {
            "plain": lambda: plain_fit(elign.EnergyModel(64), batch, iterations=args.plain_iterations),
            "eli": lambda: aligner.fit(previous, current, images.split(args.batch)),
        },
        rounds=3,
        warm_up=0,
    )
    plain, ours = seconds["plain"] / args.plain_iterations * args.iterations, seconds["eli"]
    learning = aligner.report.seconds if aligner.report else 0.0
    print("| images | iterations | plain (s) | eli (s) | of it latents | of it learning | faster by |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    print(
        f"| {args.images} | {args.iterations} | {plain:.0f} | {ours:.1f} | {ours - learning:.1f} | {learning:.1f} | "
        f"{plain / ours:.0f}x |"
    )


if __name__ == "__main__":
    main()
