"""What an attached aligner adds to a detector's inference, label-free gate included.

    python benchmarks/detect.py [--models NAME ...] [--side N] [--images N] [--rounds N]

The same detector on the same images, plain and with ELI in front of its head (`elign.attach`, `ByPrediction`): median
times of rounds that take turns, on one thread. The energy model has the paper's layer of 64 and 30 steps. Weights are
random: the time does not depend on them, but for how many detections are left, which is why all regions are kept.
"""

from __future__ import annotations

import argparse

import torch
from timing import medians

import elign
from elign.lab.detection.detector import make_detector

CLASSES, KNOWN, PAIRS = 20, 15, 256


def compare(name: str, side: int, images: int, rounds: int) -> dict[str, float]:
    """Seconds of a batch without and with alignment."""
    detector = make_detector(name, min_size=side, max_size=2 * side)
    detector.grow(CLASSES)
    detector.eval()
    pairs = torch.rand(PAIRS, detector.latent_dim)
    aligner = elign.EnergyAligner(hidden=(64,), iterations=20, steps=30).fit_latents(pairs, pairs + 0.1)
    gate = elign.ByPrediction(old_classes=list(range(1, 1 + KNOWN)))
    batch = [torch.rand(3, side, side) for _ in range(images)]

    def plain() -> list[dict[str, torch.Tensor]]:
        with torch.no_grad():
            return detector(batch)

    def aligned() -> list[dict[str, torch.Tensor]]:
        with torch.no_grad(), elign.attach(detector, "roi_heads.box_predictor", aligner, gate=gate):
            return detector(batch)

    return medians({"plain": plain, "aligned": aligned}, rounds=rounds)


def main() -> None:
    """Print one row for each detector."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny-c4", "resnet18-c4"])
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| detector | plain, ms an image | with ELI, ms an image | ELI adds |")
    print("|---|---:|---:|---:|")
    for name in args.models:
        seconds = compare(name, args.side, args.images, args.rounds)
        plain, aligned = (1000 * seconds[form] / args.images for form in ("plain", "aligned"))
        print(f"| {name} | {plain:.1f} | {aligned:.1f} | {aligned / plain - 1:+.1%} |")


if __name__ == "__main__":
    main()
