"""ResNet-14/20/32 for 32 x 32 images: three stages of 16, 32 and 64 channels, a 64-dimensional latent.

The last block has no final ReLU, so that latents are signed, as in LUCIR and the ELI paper's code base.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.models.blocks import Backbone, initialise_convolutions, residual_stages


class CifarResNet(Backbone):
    """Images (N, in_channels, H, W) to latents (N, 64).

    Args:
        depth: 6 n + 2 layers: 14, 20, 32...
        in_channels: Channels of the images.
    """

    latent_dim = 64
    levels = 3

    def __init__(self, depth: int = 32, *, in_channels: int = 3) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 6 n + 2 (14, 20, 32, ...), got {depth}")
        self.conv1 = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.blocks = residual_stages((16, 32, 64), blocks)
        initialise_convolutions(self)

    def level(self, number: int, x: Tensor) -> Tensor:
        """One stage; the first with the stem before it, the last with the mean over the picture after it."""
        if number == 0:
            x = F.relu(self.bn1(self.conv1(x)))
        stage = len(self.blocks) // self.levels
        x = self.blocks[number * stage : (number + 1) * stage](x)
        return x.mean(dim=(2, 3)) if number == self.levels - 1 else x
