"""A small convolutional network for small images (8 x 8 digits, 28 x 28 MNIST): four layers, fast on a CPU.

The last layer has no ReLU, so that latents are signed like those of the ResNets.
"""

from __future__ import annotations

from torch import Tensor, nn

from elign.lab.models.blocks import Backbone, initialise_convolutions
from elign.utils.errors import OptionError


class SmallConv(Backbone):
    """Images (N, in_channels, H, W) to latents (N, latent_dim), the mean over the last feature map.

    Args:
        in_channels: Channels of the images.
        latent_dim: Dimension of the latent.
    """

    levels = 4

    def __init__(self, *, in_channels: int = 1, latent_dim: int = 64) -> None:
        super().__init__()
        if latent_dim < 1:
            raise OptionError(f"latent_dim must be at least 1, got {latent_dim}")
        self.latent_dim = latent_dim
        # (channels in, channels out, stride): the two halvings leave 2 x 2 of 8 x 8 and 7 x 7 of 28 x 28.
        plan = ((in_channels, 16, 1), (16, 32, 2), (32, 64, 2), (64, latent_dim, 1))
        layers: list[nn.Module] = []
        for channels_in, channels, stride in plan:
            convolution = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        initialise_convolutions(self)

    def level(self, number: int, x: Tensor) -> Tensor:
        """One convolution with what follows it; the last with the mean over the picture."""
        x = self.layers[3 * number : 3 * number + 3](x)
        return x.mean(dim=(2, 3)) if number == self.levels - 1 else x
