"""What the backbones share: their type, the residual block, its stages, the initialisation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F


class Backbone(nn.Module):
    """Images (N, C, H, W) to latents (N, latent_dim), level by level.

    Methods with two branches (AANet) join them after each level, so a backbone says where its levels end: `level` maps
    the output of level `number - 1` (images for the first) to that of level `number` (latents for the last).
    """

    latent_dim: int
    levels: int

    def level(self, number: int, x: Tensor) -> Tensor:
        """What one level makes of the output of the level before."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Images to latents."""
        for number in range(self.levels):
            x = self.level(number, x)
        return x


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut; `final_relu=False` leaves the sum signed."""

    def __init__(self, channels_in: int, channels: int, stride: int, *, final_relu: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )
        self.final_relu = final_relu

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps to feature maps."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.shortcut(x)
        return F.relu(y) if self.final_relu else y


def residual_stages(widths: Sequence[int], blocks: int) -> nn.Sequential:
    """Stages of `blocks` basic blocks each, one after the other in one flat sequence.

    Every stage but the first halves the image, and the very last block leaves its output signed.

    Args:
        widths: Channels of each stage; the input must have as many as the first.
        blocks: Blocks in each stage.
    """
    layers: list[nn.Module] = []
    channels_in = widths[0]
    for stage, channels in enumerate(widths):
        for number in range(blocks):
            stride = 2 if stage > 0 and number == 0 else 1
            last = stage == len(widths) - 1 and number == blocks - 1
            layers.append(BasicBlock(channels_in, channels, stride, final_relu=not last))
            channels_in = channels
    return nn.Sequential(*layers)


def initialise_convolutions(net: nn.Module) -> None:
    """Draw the weights of every convolution in `net` as Kaiming normal with fan out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
