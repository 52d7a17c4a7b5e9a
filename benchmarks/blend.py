"""What an attached blend adds to a classifier's inference, as a share of the model's own time.

    python benchmarks/blend.py [--rounds N] [--models resnet20 ...]

ResNets with 100 classes and images of random numbers (time does not depend on what is in them), one thread; the blend
that `fit_blend` makes of exemplars: the head, and a discriminant after alignment. Both take turns, medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from timing import medians
from torch import Tensor, nn

import elign
from elign.fit_blend import Labelled, blend_exemplars
from elign.lab.models.cifar_resnet import CifarResNet
from elign.lab.models.resnet18 import ResNet18

CLASSES = 100
MODELS: dict[str, tuple[str, Callable[[], nn.Module], int, int, tuple[int, ...]]] = {
    "resnet20": ("ResNet-20, 32 x 32", partial(CifarResNet, 20), 64, 32, (1, 16, 128)),
    "resnet32": ("ResNet-32, 32 x 32", partial(CifarResNet, 32), 64, 32, (1, 16, 128)),
    "resnet18": ("ResNet-18, 224 x 224", ResNet18, 512, 224, (1, 16)),
}
"""Name, how to make it, dimension of its latents, side of its images, images at once."""


class Classifier(nn.Module):
    """A backbone and a linear head."""

    def __init__(self, body: nn.Module, dim: int) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Linear(dim, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.body(images))


def blend_for(model: Classifier) -> elign.Blend:
    """The default's two parts, made of random latents."""
    z, labels = torch.randn(20 * CLASSES, model.fc.in_features), torch.arange(20 * CLASSES) % CLASSES
    aligner = elign.EnergyAligner(iterations=100).fit_latents(z + 1, z)
    return blend_exemplars(aligner, model.fc, Labelled(z, labels), known=[50, 75])


def main() -> None:
    """Print one row for each model and batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| model | images at once | model (ms) | with the blend (ms) | added |")
    print("|---|---:|---:|---:|---:|")
    for short in args.models:
        name, make, dim, side, batches = MODELS[short]
        model = Classifier(make(), dim).eval()
        blended = Classifier(model.body, model.fc.in_features).eval()
        blended.fc.load_state_dict(model.fc.state_dict())
        elign.attach(blended, "fc", blend_for(model))
        for batch in batches:
            images = torch.randn(batch, 3, side, side)
            with torch.inference_mode():
                seconds = medians(
                    {"plain": lambda: model(images), "blend": lambda: blended(images)},  # noqa: B023  (called at once)
                    rounds=args.rounds,
                )
            alone, together = seconds["plain"], seconds["blend"]
            print(f"| {name} | {batch} | {1e3 * alone:.1f} | {1e3 * together:.1f} | {together / alone - 1:.1%} |")


if __name__ == "__main__":
    main()
