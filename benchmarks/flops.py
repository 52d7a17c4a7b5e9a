"""What the ImageNet-1k table would cost: counted operations of a ResNet-18 times images and epochs of preset=paper.

    python benchmarks/flops.py [--learners NAME ...] [--protocols NAME ...] [--size N] [--peak N] [--share SHARE]

Operations are counted by `torch.utils.flop_counter` while the real learner takes a training step on the CPU, in its
first task and in a later one, where its teacher and its branches come in. A multiplication and an addition are two.
Images, epochs and exemplars are those of the configuration. GPU hours are operations / (peak x share): the peak of a
GPU and the share of it that a training reaches are assumptions, and nothing here was run on a GPU. Fitting and method
ELI are left out: they work on latents.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from elign.lab.config.schema import RunConfig, compose
from elign.lab.learners import Learner, make_learner
from elign.lab.models import make_backbone
from elign.lab.runs.experiment import protocol_of

TRAIN, TEST, CLASSES = 1_281_167, 50_000, 1000
BATCH = 2  # images that are counted with


@dataclass(frozen=True)
class Counts:
    """Operations of one image: a training step in the first task and in a later one, and a forward pass then."""

    first: float
    later: float
    forward: float


def main() -> None:
    """Print one row for each learner and protocol."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", nargs="+", default=["icarl", "lucir", "aanet"])
    parser.add_argument("--protocols", nargs="+", default=["half-5", "half-10", "half-25"])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--peak", type=float, default=312, help="teraflops of a GPU (312: an A100 in bfloat16)")
    parser.add_argument("--share", type=float, default=0.2, help="assumed part of the peak that is reached")
    args = parser.parse_args()
    columns = ["learner", "protocol", "GFLOP of a step, first task", "later", "images, millions", "EFLOP", "GPU hours"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---|" + "---:|" * 5)
    total = 0.0
    for learner in args.learners:
        counts = count(learner, args.size)
        for protocol in args.protocols:
            config = compose([f"learner={learner}", "data=imagenet1k", f"protocol={protocol}", "preset=paper"])
            images, operations = run_cost(config, counts)
            hours = operations / (args.peak * 1e12 * args.share) / 3600
            total += hours
            step = f"{counts.first / 1e9:.1f} | {counts.later / 1e9:.1f}"
            print(f"| {learner} | {protocol} | {step} | {images / 1e6:.0f} | {operations / 1e18:.2f} | {hours:.0f} |")
    print(f"| all | {len(args.protocols)} protocols, one seed | | | | | {total:.0f} |")


def run_cost(config: RunConfig, counts: Counts) -> tuple[float, float]:
    """Images that go through a training step in a whole run, and all its operations, extraction of latents included."""
    images = operations = 0.0
    each = TRAIN / CLASSES
    for number, task in enumerate(protocol_of(config, CLASSES).tasks):
        new = each * len(task)
        kept = (config.memory.budget or (config.memory.per_class or 0) * task.start) if number else 0
        seen = (new + kept) * (config.train.epochs if number else config.train.first_epochs)
        images += seen
        operations += seen * (counts.later if number else counts.first)
        # Exemplars are chosen by latents; test and new images are read; pairs are of two models, so many passes.
        forward = 2 * new + TEST / CLASSES * task.stop + (2 * config.aligner.passes * new if number else 0)
        operations += forward * counts.forward
    return images, operations


def count(name: str, size: int) -> Counts:
    """Count the operations of a learner."""
    torch.manual_seed(0)
    settings = compose([f"learner={name}", "data=imagenet1k", "preset=paper"]).learner
    learner = make_learner(
        settings.name,
        partial(make_backbone, "resnet18", image_shape=(3, size, size)),
        head=settings.head,
        freeze_old=settings.freeze_old,
        imprint_new=settings.imprint,
        options=settings.options,
    )
    learner.grow(CLASSES // 2)
    first = _step(learner, size)
    learner.grow(CLASSES // 10)
    later = _step(learner, size)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        learner.eval().model.latents(torch.randn(BATCH, 3, size, size))
    return Counts(first, later, counter.get_total_flops() / BATCH)


def _step(learner: Learner, size: int) -> float:
    images, labels = torch.randn(BATCH, 3, size, size), torch.arange(BATCH)
    with FlopCounterMode(display=False) as counter:
        loss = learner.train()(images, labels)
        torch.stack([*loss.terms.values()]).sum().backward()
    return counter.get_total_flops() / BATCH


if __name__ == "__main__":
    main()
