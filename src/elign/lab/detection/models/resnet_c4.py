"""ResNets cut for detection: conv1 to layer3 as the backbone (stride 16), layer4 on each region as the box head.

"C4" of Faster R-CNN (S. Ren et al., 2015; K. He et al., 2016). These are torchvision's networks: in a bottleneck the 3
x 3 convolution has the stride, where the networks that iOD and ELI began with (MSRA's) have it in the 1 x 1.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torchvision
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from elign.lab.detection.models.parts import Backbone, BoxHead, Network
from elign.lab.detection.models.settings import DetectorSettings
from elign.lab.detection.models.weights import load_weights
from elign.utils.errors import OptionError

_BACKBONE = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
# Parts of the network that are one stage, the stem counted as the first.
_STAGES = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",))
_FROZEN_WITH_WEIGHTS = 2


def resnet_c4(name: str, settings: DetectorSettings, weights: Path | str | None) -> Network:
    """A ResNet in two parts.

    The layer that iOD warps is the last convolution of layer4, `roi_heads.box_head.stage.2.conv3` of a ResNet-50.

    Args:
        name: Its name in torchvision, "resnet50" or "resnet18".
        settings: `normalisation` and `frozen_stages` of them count here.
        weights: See `load_weights`; None for freshly drawn ones.

    Raises:
        OptionError: Weights are given for group normalisation.
        WeightsError: The weights do not fit.
    """
    if weights is not None and settings.normalisation != "frozen":
        raise OptionError("pretrained weights come with batch normalisation: set normalisation=frozen, or no weights")
    norm = FrozenBatchNorm2d if settings.normalisation == "frozen" else partial(nn.GroupNorm, 32)
    net = torchvision.models.get_model(name, weights=None, norm_layer=norm)
    if weights is not None:
        load_weights(net, name, weights)
    frozen = settings.frozen_stages
    if frozen is None:
        frozen = _FROZEN_WITH_WEIGHTS if weights is not None else 0
    for stage in _STAGES[:frozen]:
        for part in stage:
            getattr(net, part).requires_grad_(False)
    latent_dim = net.fc.in_features
    layers = {part: getattr(net, part) for part in _BACKBONE}
    # Every stage doubles the channels of the one before.
    backbone = Backbone(layers, out_channels=latent_dim // 2, stride=16)
    return Network(backbone, BoxHead(net.layer4, latent_dim))
