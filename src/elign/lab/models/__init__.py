"""Backbones and heads, no training code. Learners, experiments and benchmarks may import it.

Importing the package gives the backbones by name; heads are in `heads.py`, weight imprinting in `imprint.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from elign.lab.models.blocks import Backbone
from elign.lab.models.cifar_resnet import CifarResNet
from elign.lab.models.resnet18 import ResNet18
from elign.lab.models.small_conv import SmallConv
from elign.utils.errors import OptionError

__all__ = ["BACKBONES", "Backbone", "UnknownBackboneError", "make_backbone"]

# Each with the smallest image side it takes: less than that and its strides leave no picture to average over.
_MAKERS: dict[str, tuple[Callable[..., Backbone], int]] = {
    "resnet32": (partial(CifarResNet, 32), 8),
    "resnet20": (partial(CifarResNet, 20), 8),
    "resnet14": (partial(CifarResNet, 14), 8),
    "resnet18": (ResNet18, 32),
    "conv": (SmallConv, 8),
}

BACKBONES = tuple(_MAKERS)


class UnknownBackboneError(OptionError):
    """A backbone name that does not exist; the message names the nearest one that does."""


def make_backbone(name: str, *, image_shape: tuple[int, int, int]) -> Backbone:
    """A freshly initialised backbone: images to latents, with `.latent_dim`.

    Args:
        name: One of `BACKBONES`.
        image_shape: (channels, height, width) of the images.

    Raises:
        UnknownBackboneError: No backbone has this name.
        OptionError: The image shape is none, or too small for this backbone.

    Example:
        >>> make_backbone("conv", image_shape=(1, 8, 8)).latent_dim
        64
    """
    if name not in _MAKERS:
        near = difflib.get_close_matches(name.strip().lower(), BACKBONES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownBackboneError(f"There is no backbone {name!r}.{hint} Choose from: {', '.join(BACKBONES)}.")
    maker, side = _MAKERS[name]
    if len(image_shape) != 3 or image_shape[0] < 1 or min(image_shape[1:]) < side:
        raise OptionError(
            f"image_shape must be (channels, height, width), at least (1, {side}, {side}) for {name!r}; "
            f"got {image_shape}"
        )
    return maker(in_channels=image_shape[0])
