"""A training step in each precision and memory layout, against plain float32 with channels first, in the same run.

    python benchmarks/train.py [--model NAME] [--batch N] [--rounds N] [--threads N]

Prints a table with one row for each way: images per second, and how many times as fast as the plain one. bfloat16 is
left out where the processor only emulates it (ten times slower), and the last row is that of `train.fast=true`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from timing import medians
from torch.nn import functional as F

from elign.lab.models import make_backbone
from elign.lab.training.device import Precision, bf16_is_native, choose_precision

SHAPE, CLASSES = (3, 32, 32), 100


def main() -> None:
    """Print one row for each way of training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ways = [Precision(p, last) for p in (("32", "bf16") if bf16_is_native() else ("32",)) for last in (False, True)]
    seconds = medians({_name(way): training_step(args.model, args.batch, way) for way in ways}, rounds=args.rounds)
    chosen = choose_precision(fast=True, accelerator="cpu")
    seconds[f"train.fast=true: {_name(chosen)}"] = seconds[_name(chosen)]
    plain = seconds[_name(ways[0])]
    print(f"| {args.model}, batch {args.batch}, {args.threads} thread(s) | images per second | times as fast |")
    print("|---|---:|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {args.batch / value:.0f} | {plain / value:.2f}x |")


def _name(way: Precision) -> str:
    return f"{'float32' if way.name == '32' else 'bfloat16'}, channels {'last' if way.channels_last else 'first'}"


def training_step(model: str, batch: int, way: Precision) -> Callable[[], None]:
    """One step of SGD on a fixed batch."""
    net = torch.nn.Sequential(make_backbone(model, image_shape=SHAPE), torch.nn.Linear(64, CLASSES))
    x, y = torch.randn(batch, *SHAPE), torch.randint(CLASSES, (batch,))
    if way.channels_last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=way.name == "bf16"):
            logits = net(x)
        F.cross_entropy(logits.float(), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
