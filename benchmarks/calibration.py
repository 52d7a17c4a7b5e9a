"""How far the mean confidence of a `Repair` is from its accuracy, on digits with other classes and networks each time.

    python benchmarks/calibration.py [--splits N]

Each split renames the ten digits at random; a small network learns five of them, then the other five, and forgets. The
defaults of `Repair` were chosen on other data. Prints mean (smallest to largest) over the splits, on 600 held-out
images.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import elign

OLD, EXEMPLARS = 5, 20
Data = tuple[Tensor, Tensor]


def train(model: nn.Sequential, data: Data, steps: int = 150) -> nn.Sequential:
    """Train on batches of 64."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(len(data[0]), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data[0][rows]), data[1][rows]).backward()
        optimizer.step()
    return model


def measure(seed: int) -> dict[str, tuple[float, float]]:
    """Return accuracy and confidence minus accuracy in points, by what is kept of old classes."""
    torch.manual_seed(seed)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.randperm(10)[torch.tensor(digits.target)]
    order = torch.randperm(len(x))
    test, rest = order[:600], order[600:]
    old, new = ((x[rows], y[rows]) for rows in (rest[y[rest] < OLD], rest[y[rest] >= OLD]))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    previous = copy.deepcopy(train(model, old)).eval()
    current = train(model, new).eval()
    known = elign.ClassStatistics.from_data(previous, "4", [old])
    kept = torch.cat([torch.nonzero(old[1] == label).flatten()[:EXEMPLARS] for label in range(OLD)])
    exemplars = [(old[0][kept], old[1][kept])]
    found = {}
    for name, given in {
        "statistics": {"statistics": known},
        "20 exemplars a class": {"exemplars": exemplars},
        "both": {"statistics": known, "exemplars": exemplars},
    }.items():
        repair = elign.Repair("4").fit(previous, current, [new], **given)  # type: ignore[arg-type]
        with repair.attach(current), torch.no_grad():
            outputs = current(x[test])
        right = float((outputs.argmax(dim=1) == y[test]).float().mean())
        found[name] = 100 * right, 100 * (float(outputs.exp().amax(dim=1).mean()) - right)
    return found


def main() -> None:
    """Print one row for each kind of memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    splits = parser.parse_args().splits
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = [measure(seed) for seed in range(1, splits + 1)]
    print(f"| {splits} splits of the digits | accuracy, % | confidence minus accuracy, points |\n|---|---:|---:|")
    for name in found[0]:
        right, gap = zip(*(each[name] for each in found), strict=True)
        accuracy = f"{statistics.mean(right):.1f} ({min(right):.1f} to {max(right):.1f})"
        print(f"| {name} | {accuracy} | {statistics.mean(gap):+.1f} ({min(gap):+.1f} to {max(gap):+.1f}) |")


if __name__ == "__main__":
    main()
