"""A classifier: a backbone, or AANet's two branches, and a head."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from elign.lab.models.backbones import Backbone
from elign.utils.errors import OptionError


class Classifier(nn.Module):
    """Images to latents to logits.

    Args:
        backbone: Images (N, C, H, W) to latents (N, D).
        head: Latents to logits (N, classes), in the order of arrival of the classes.
    """

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def latents(self, images: Tensor) -> Tensor:
        """Return latents in float32, whatever precision the backbone works in."""
        z: Tensor = self.backbone(images)
        return z.float()

    def scores(self, latents: Tensor) -> Tensor:
        """Return logits of latents, in full precision also under autocast: half precision has too few digits."""
        with torch.autocast(latents.device.type, enabled=False):
            logits: Tensor = self.head(latents)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        return self.scores(self.latents(images))


Plasticity = Literal["free", "scaled", "fixed"]


class ScaledConv2d(nn.Conv2d):
    """A frozen convolution whose kernels are multiplied by learned numbers, one for each (output, input) channel.

    Its weight is W * s with s of shape (O, I, 1, 1), which starts at 1; only s trains.
    """

    scale: nn.Parameter

    @classmethod
    def of(cls, convolution: nn.Conv2d) -> ScaledConv2d:
        """Make the same map as `convolution`, with its weights."""
        result = deepcopy(convolution)
        result.__class__ = cls
        result.weight.requires_grad_(False)
        scale = torch.ones_like(result.weight[:, :, :1, :1], memory_format=torch.contiguous_format)
        result.scale = nn.Parameter(scale.detach())
        return result  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        maps: Tensor = self._conv_forward(x, self.weight * self.scale, self.bias)
        return maps


class TwoBranch(Backbone):
    """phi_l = alpha_l b1_l(phi_{l-1}) + (1 - alpha_l) b2_l(phi_{l-1}), level by level, with alpha_l = 1/2 at first.

    Both branches start as copies of `backbone`. "free": everything trains; "scaled": the convolutions are frozen and
    multiplied by learned numbers (`ScaledConv2d`), the affine parts of batch norms train; "fixed": nothing trains.
    The statistics of batch norms move in every branch, as in the authors' code.

    Args:
        backbone: What the branches start from; it is copied.
        one: Plasticity of the first branch.
        two: Plasticity of the second branch.
    """

    def __init__(self, backbone: Backbone, *, one: Plasticity, two: Plasticity) -> None:
        super().__init__()
        self.latent_dim, self.levels = backbone.latent_dim, backbone.levels
        self.one = _branch(backbone, one)
        self.two = _branch(backbone, two)
        device = next(backbone.parameters()).device
        self.alpha = nn.Parameter(torch.full((backbone.levels,), 0.5, device=device))

    def level(self, number: int, x: Tensor) -> Tensor:
        """Join the level of the two branches."""
        # torch.lerp would be shorter, but under autocast its arguments would differ in type.
        share = self.alpha[number]
        return share * self.one.level(number, x) + (1 - share) * self.two.level(number, x)


def _branch(backbone: Backbone, plasticity: Plasticity) -> Backbone:
    if plasticity not in get_args(Plasticity):
        raise OptionError(f"a branch is one of {', '.join(get_args(Plasticity))}, not {plasticity!r}")
    branch = deepcopy(backbone)
    if plasticity == "fixed":
        branch.requires_grad_(False)
    elif plasticity == "scaled":
        for module in [*branch.modules()]:
            for name, child in module.named_children():
                if isinstance(child, nn.Conv2d):
                    setattr(module, name, ScaledConv2d.of(child))
    return branch
