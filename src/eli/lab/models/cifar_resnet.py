"""ResNet-14/20/32 for 32 x 32 images: three stages of 16, 32 and 64 channels, a 64-dimensional latent.

The last block has no final ReLU, so that latents are signed, as in LUCIR and the ELI paper's code base.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


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


class CifarResNet(nn.Module):
    """Images (N, 3, H, W) to latents (N, 64).

    Args:
        depth: 6 n + 2 layers: 14, 20, 32...
    """

    latent_dim = 64

    def __init__(self, depth: int = 32) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 6 n + 2 (14, 20, 32, ...), got {depth}")
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        layers: list[nn.Module] = []
        channels_in = 16
        for stage, channels in enumerate((16, 32, 64)):
            for number in range(blocks):
                stride = 2 if stage > 0 and number == 0 else 1
                last = stage == 2 and number == blocks - 1
                layers.append(BasicBlock(channels_in, channels, stride, final_relu=not last))
                channels_in = channels
        self.blocks = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Images to latents."""
        maps: Tensor = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return maps.mean(dim=(2, 3))
