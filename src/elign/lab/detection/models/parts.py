"""What all detectors are put together from: backbone, box head and the pooling of regions; torchvision has the rest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, cast

import torchvision.ops
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck


class Backbone(nn.Sequential):
    """Layers by name, one after the other: images (B, 3, H, W) to one feature map (B, out_channels, h, w).

    Args:
        layers: In order.
        out_channels: Channels of the feature map; torchvision asks for this name.
        stride: Pixels of the image for one of the feature map.
    """

    def __init__(self, layers: Mapping[str, nn.Module], *, out_channels: int, stride: int) -> None:
        super().__init__(OrderedDict(layers))
        self.out_channels = out_channels
        self.stride = stride


class BoxHead(nn.Module):
    """The last residual stage, run on each region by itself: pooled features (R, C, p, p) to latents (R, D).

    The stage ends in a ReLU and the latent is its mean over the picture, so latents are never negative.

    Args:
        stage: Residual blocks of torchvision.
        latent_dim: Channels that they end with.
    """

    def __init__(self, stage: nn.Sequential, latent_dim: int) -> None:
        super().__init__()
        self.stage = stage
        self.latent_dim = latent_dim

    @property
    def last_convolution(self) -> nn.Conv2d:
        """The last convolution before the latent: `conv3` of a bottleneck, `conv2` of a basic block."""
        block = self.stage[-1]
        return cast(nn.Conv2d, block.conv3 if isinstance(block, Bottleneck) else block.conv2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Pooled features of regions to latents."""
        return cast(Tensor, self.stage(pooled)).mean(dim=(2, 3))


class Network(NamedTuple):
    """A classification network cut in two for a detector."""

    backbone: Backbone
    box_head: BoxHead


class RegionPool(torchvision.ops.MultiScaleRoIAlign):  # type: ignore[misc]  # torchvision has no types
    """RoIAlign on one feature map, with bins where the pixels are ("aligned", as Detectron2 has it for C4).

    Torchvision's own class guesses the scale from the first images it sees and keeps it; padded or very wide images can
    make it guess wrong. Here it is given.

    Args:
        side: Side of the pooled square.
        stride: Pixels of the image for one of the feature map.
        samples: Points along each side of a bin; 0 for as many as the region's size asks for.
    """

    def __init__(self, side: int, *, stride: int, samples: int) -> None:
        super().__init__(["0"], side, samples)
        self.stride = stride

    def forward(self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> Tensor:
        """Features of the one map, pooled in each box: (R, C, side, side)."""
        pooled = torchvision.ops.roi_align(
            x["0"], boxes, self.output_size, 1 / self.stride, self.sampling_ratio, aligned=True
        )
        return cast(Tensor, pooled)
