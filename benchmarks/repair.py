"""What `Repair` costs: what it adds to a classifier's inference, and how long a fit from cached latents takes.

    python benchmarks/repair.py [--rounds N] [--models resnet20 ...] [--fits]

ResNets with 100 classes and images of random numbers (time does not depend on what is in them), one thread. Model and
repaired model take turns, medians. `--fits` times fits on latents in place of that, with two threads.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from timing import medians
from torch import Tensor, nn

import elign
from elign.lab.models.classifier import CifarResNet, ResNet18

CLASSES, OLD = 100, 50
MODELS: dict[str, tuple[str, Callable[[], nn.Module], int, int, tuple[int, ...]]] = {
    "resnet20": ("ResNet-20, 32 x 32", partial(CifarResNet, 20), 64, 32, (1, 16, 128)),
    "resnet32": ("ResNet-32, 32 x 32", partial(CifarResNet, 32), 64, 32, (1, 16, 128)),
    "resnet18": ("ResNet-18, 224 x 224", ResNet18, 512, 224, (1, 16)),
}
"""Name, how to make it, dimension of its latents, side of its images, images at once."""
FITS = ((100, 500, 64), (30, 250, 1280))
"""Classes, images of each, dimension of latents."""


class Classifier(nn.Module):
    """A backbone and a linear head."""

    def __init__(self, body: nn.Module, dim: int) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Linear(dim, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.fc(self.body(images))
        return logits


def fitted(classes: int, images: int, dim: int, head: nn.Module | None) -> tuple[elign.Repair, float]:
    """Fit a repair on drifted Gaussian classes, half of them old; return it and the seconds it took."""
    generator = torch.Generator().manual_seed(0)
    centers, mixing = (torch.randn(size, dim, generator=generator) for size in (classes, dim))
    labels = torch.arange(classes).repeat_interleave(images)
    z = 3 * centers[labels] + torch.randn(len(labels), dim, generator=generator)
    old = labels < classes // 2
    moved = z + z @ mixing / dim
    statistics = elign.ClassStatistics().update(z[old], labels[old])
    start = time.perf_counter()
    repair = elign.Repair("fc", force=True)
    repair.fit_latents(z[~old], moved[~old], labels[~old], head=head, statistics=statistics)
    return repair, time.perf_counter() - start


def inference(names: list[str], rounds: int) -> None:
    """Print one row for each model and batch size."""
    torch.set_num_threads(1)
    print("| model | images at once | model (ms) | repaired (ms) | added |")
    print("|---|---:|---:|---:|---:|")
    for key in names:
        name, make, dim, side, batches = MODELS[key]
        plain = Classifier(make(), dim).eval()
        repaired = Classifier(make(), dim).eval()
        repaired.load_state_dict(plain.state_dict())
        fitted(CLASSES, 100, dim, plain.fc)[0].attach(repaired)
        for batch in batches:
            images = torch.randn(batch, 3, side, side)
            with torch.inference_mode():
                ways = {"plain": partial(plain, images), "repaired": partial(repaired, images)}
                t = medians(ways, rounds=rounds)
            added = t["repaired"] / t["plain"] - 1
            row = f"{t['plain'] * 1e3:.2f} | {t['repaired'] * 1e3:.2f} | {100 * added:.1f} %"
            print(f"| {name} | {batch} | {row} |", flush=True)


def fits() -> None:
    """Print one row for each size of a fit."""
    torch.set_num_threads(2)
    print("| classes | images of each | dimension | fit (s) | statistics (MB) |")
    print("|---:|---:|---:|---:|---:|")
    for classes, images, dim in FITS:
        repair, seconds = fitted(classes, images, dim, nn.Linear(dim, classes))
        print(f"| {classes} | {images} | {dim} | {seconds:.1f} | {repair.statistics.nbytes / 1e6:.1f} |", flush=True)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--fits", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if args.fits:
        fits()
    else:
        inference(args.models, args.rounds)


if __name__ == "__main__":
    main()
