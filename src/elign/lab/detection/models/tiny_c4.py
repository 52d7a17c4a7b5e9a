"""A small network for detection in images of 96 to 160 pixels on a CPU: stride 8, latents of 128 dimensions.

Made of torchvision's residual blocks, with group normalisation because batches are tiny. Its statistics are those of
the padded image: among images of different sizes, what is seen in one depends a little on the largest of the batch.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock, conv1x1

from elign.lab.detection.models.parts import Backbone, BoxHead, Network
from elign.lab.models.blocks import initialise_convolutions

_WIDTHS = (24, 48, 96)
_LATENT_DIM = 128
_norm = partial(nn.GroupNorm, 8)


def tiny_c4() -> Network:
    """A freshly drawn network: a stem and two residual blocks, and one more block as the box head.

    The layer that iOD warps is `roi_heads.box_head.stage.0.conv2`.
    """
    stem, middle, last = _WIDTHS
    layers = {
        "stem": nn.Sequential(nn.Conv2d(3, stem, 3, 2, 1, bias=False), _norm(stem), nn.ReLU(inplace=True)),
        "layer1": _block(stem, middle),
        "layer2": _block(middle, last),
    }
    backbone = Backbone(layers, out_channels=last, stride=8)
    box_head = BoxHead(nn.Sequential(_block(last, _LATENT_DIM)), _LATENT_DIM)
    for part in (backbone, box_head):
        initialise_convolutions(part)
    return Network(backbone, box_head)


def _block(channels_in: int, channels: int) -> nn.Module:
    shortcut = nn.Sequential(conv1x1(channels_in, channels, 2), _norm(channels))
    block: nn.Module = BasicBlock(channels_in, channels, 2, shortcut, norm_layer=_norm)
    return block
