"""What the input costs: the time of one batch of images as a share of a ResNet-32 training step, in the same run.

    python benchmarks/input.py [--batch N] [--rounds N] [--pictures N]

Prints a table with one row for each way of making a batch: small images from memory, as they are and augmented; the
same augmentation image by image, as a loader of single images does it; and pictures of 500 x 375 pixels from JPEG
files, decoded, cropped at random and scaled to 64 and to 224 pixels by this process alone. A row has the milliseconds
per batch and their share of the step, which is a forward and a backward pass of ResNet-32 on a batch of 32 x 32 images
and the update by SGD. All pixels are random, and all runs on one thread.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timing import medians
from torch import Tensor
from torch.nn import functional as F

from elign.lab.data.base import MemorySplit, Normalise
from elign.lab.data.folders import ImageList, OwnFolder
from elign.lab.data.pictures import FolderSplit
from elign.lab.models.classifier import CifarResNet

IMAGES, SIDE, CLASSES, PADDING = 50_000, 32, 100, 4
MEAN, STD = (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)


def main() -> None:
    """Print one row for each way of making a batch, and one for the step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=16, help="how many JPEG files are read over and over")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randint(256, (IMAGES, 3, SIDE, SIDE), dtype=torch.uint8)
    labels = torch.randint(CLASSES, (IMAGES,))
    split = MemorySplit(images, labels, mean=MEAN, std=STD, crop_padding=PADDING, flip=True)
    rows = torch.randperm(IMAGES)[: args.batch]
    with tempfile.TemporaryDirectory() as temporary:
        files = write_pictures(Path(temporary), args.pictures)
        picked = torch.arange(args.batch) % len(files)
        seconds = medians(
            {
                "training step": training_step(args.batch),
                "memory, as they are": lambda: next(split.batches(rows, size=args.batch)),
                "memory, augmented": lambda: next(split.batches(rows, size=args.batch, augment=1)),
                "image by image, augmented": lambda: image_by_image(images, rows),
                "files, to 64 pixels": lambda: read_batch(files, picked, 64),
                "files, to 224 pixels": lambda: read_batch(files, picked, 224),
            },
            rounds=args.rounds,
        )
    step = seconds["training step"]
    print(f"| batch of {args.batch}, 1 thread | milliseconds | share of a ResNet-32 step |")
    print("|---|---:|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {value * 1e3:.1f} | {value / step:.1%} |")


def training_step(batch: int) -> Callable[[], None]:
    """One step of SGD on a fixed batch."""
    net = CifarResNet(32)
    head = torch.nn.Linear(net.latent_dim, CLASSES)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=5e-4)
    x, y = torch.randn(batch, 3, SIDE, SIDE), torch.randint(CLASSES, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(head(net(x)), y).backward()
        optimizer.step()

    return step


def image_by_image(images: Tensor, rows: Tensor) -> Tensor:
    """The same augmentation as `MemorySplit`, one image at a time."""
    normalise = Normalise(MEAN, STD)
    made = []
    for row in rows.tolist():
        padded = F.pad(images[row], (PADDING,) * 4)
        top, left, mirrored = (int(torch.randint(bound, ())) for bound in (2 * PADDING + 1, 2 * PADDING + 1, 2))
        crop = padded[:, top : top + SIDE, left : left + SIDE]
        made.append(normalise(crop.flip(2) if mirrored else crop))
    return torch.stack(made)


def write_pictures(folder: Path, count: int) -> ImageList:
    """JPEG files of the usual size of an ImageNet picture, with some structure, so that they cost what real ones do."""
    rng = np.random.default_rng(0)
    for number in range(count + 2):
        coarse = Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        path = folder / ("train" if number < count else "test") / "class" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    return OwnFolder("folder").files(folder, folder).train


def read_batch(files: ImageList, rows: Tensor, size: int) -> Tensor:
    """One augmented batch of pictures from files."""
    images, _ = next(FolderSplit(files.path, files.labels, image_size=size).batches(rows, size=len(rows), augment=1))
    return images


if __name__ == "__main__":
    main()
