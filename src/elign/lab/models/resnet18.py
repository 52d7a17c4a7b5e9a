"""ResNet-18 for ImageNet-sized images: four stages of 64 to 512 channels, a 512-dimensional latent.

The last block has no final ReLU, so that latents are signed, as in LUCIR and the ELI paper's code base.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.models.blocks import Backbone, initialise_convolutions, residual_stages


class ResNet18(Backbone):
    """Images (N, in_channels, H, W), 224 x 224 by design and at least 32 x 32, to latents (N, 512).

    The stem (7 x 7 convolution and maximum pooling, stride 2 each) and the last three stages shrink the image by 32.

    Args:
        in_channels: Channels of the images.
    """

    latent_dim = 512
    levels = 4

    def __init__(self, *, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.blocks = residual_stages((64, 128, 256, 512), 2)
        initialise_convolutions(self)

    def level(self, number: int, x: Tensor) -> Tensor:
        """One stage; the first with the stem before it, the last with the mean over the picture after it."""
        if number == 0:
            x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), kernel_size=3, stride=2, padding=1)
        x = self.blocks[2 * number : 2 * number + 2](x)
        return x.mean(dim=(2, 3)) if number == self.levels - 1 else x
