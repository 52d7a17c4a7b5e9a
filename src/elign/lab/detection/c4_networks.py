"""Detectors by name: their settings, and networks cut in two (backbone up to stride 16, last stage as box head)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

import safetensors.torch
import torch
import torchvision
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor, nn
from torchvision.models import get_model_weights
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1
from torchvision.ops import FrozenBatchNorm2d

from elign.lab.config.composition import ConfigError, Count, Flag, NotNegativeWhole, Positive, Section, Share
from elign.lab.models.classifier import initialise_convolutions
from elign.lab.registry import Registry
from elign.utils.errors import ElignError, OptionError


class WeightsError(ElignError, ValueError):
    """Weights that cannot be had, cannot be read or do not fit the network; the message says what would."""


Sides = Annotated[tuple[Count, ...], Field(min_length=1)]
ShortSides = Annotated[Sides, BeforeValidator(lambda side: (side,) if isinstance(side, int) else side)]
Ratios = Annotated[tuple[Positive, ...], Field(min_length=1)]
Proposals = tuple[Count, Count]  # before and after non-maximum suppression


class DetectorSettings(Section):
    """How a detector sees images, samples regions, and decides. The defaults are those of R50-C4 on VOC (iOD, ELI)."""

    min_size: ShortSides = tuple(range(480, 801, 32))  #: short side of resized images: drawn in training, last at test
    max_size: Count = 1333  #: longest side that images are resized to
    anchors: Sides = (32, 64, 128, 256, 512)  #: side lengths of the anchors in pixels of the resized image
    anchor_ratios: Ratios = (0.5, 1.0, 2.0)  #: their heights divided by their widths
    proposals_train: Proposals = (12000, 2000)  #: regions of an image in training mode
    proposals_test: Proposals = (6000, 1000)  #: regions of an image in evaluation mode
    region_nms: Share = 0.7  #: overlap above which the weaker of two proposals is dropped
    region_samples: Count = 256  #: anchors of an image in the proposals' loss, half of them positive where possible
    rois: Count = 512  #: regions of an image that the head is trained on
    positive_share: Share = 0.25  #: the largest share of them that lies on objects
    pool: Count = 14  #: side of the square that a region's features are pooled to
    pool_samples: NotNegativeWhole = 2  #: points along each side of a bin; 0: as many as the region's size asks for
    score_threshold: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.05  #: detections have a higher probability
    nms: Share = 0.4  #: overlap above which the weaker of two detections of one class is dropped
    detections_per_image: Count = 100  #: the strongest so many are kept
    class_agnostic_boxes: Flag = True  #: one set of box corrections for a region, instead of one for each class
    unknown: Flag = False  #: whether the head has one more output, for objects of classes that it was not taught (ORE)
    normalisation: Literal["frozen", "group"] = "frozen"  #: of ResNets: batch statistics of weights; from scratch group
    frozen_stages: Annotated[int, Field(strict=True, ge=0, le=4)] | None = None
    """How many stages of a ResNet are not trained, the stem counted as the first; None: two with weights, else none."""

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        if max(self.min_size) > self.max_size:
            raise ConfigError(f"max_size must be at least min_size ({max(self.min_size)}), not {self.max_size}")
        for name in ("proposals_train", "proposals_test"):
            before, after = getattr(self, name)
            if before < after:
                raise ConfigError(f"{name} must be two numbers, the first not smaller")
        return self


class Backbone(nn.Sequential):
    """Layers by name: images (B, 3, H, W) to one feature map (B, out_channels, H / stride, W / stride)."""

    def __init__(self, layers: Mapping[str, nn.Module], *, out_channels: int, stride: int) -> None:
        super().__init__(OrderedDict(layers))
        self.out_channels = out_channels  # torchvision asks for this name
        self.stride = stride


class BoxHead(nn.Module):
    """The last residual stage, run on each region by itself: pooled features (R, C, p, p) to latents (R, latent_dim).

    The stage ends in a ReLU and the latent is its mean over the picture, so latents are never negative.
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
        """Map pooled features of regions to latents."""
        return cast(Tensor, self.stage(pooled)).mean(dim=(2, 3))


class RegionPool(torchvision.ops.MultiScaleRoIAlign):  # type: ignore[misc]  # torchvision has no types
    """RoIAlign on one feature map, with bins where the pixels are ("aligned", as Detectron2 has it for C4).

    Torchvision's own class guesses the scale from the first images it sees and keeps it; padded or very wide images can
    make it guess wrong. Here it is given.
    """

    def __init__(self, side: int, *, stride: int, samples: int) -> None:
        super().__init__(["0"], side, samples)
        self.stride = stride

    def forward(self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> Tensor:
        """Pool the features of the one map in each box: (R, C, side, side)."""
        pooled = torchvision.ops.roi_align(
            x["0"], boxes, self.output_size, 1 / self.stride, self.sampling_ratio, aligned=True
        )
        return cast(Tensor, pooled)


class NetworkMaker(NamedTuple):
    """The settings of a detector where none are given, and what makes its network, given settings and weights."""

    settings: DetectorSettings
    make: Callable[[DetectorSettings, Path | str | None], tuple[Backbone, BoxHead]]


DETECTORS: Registry[NetworkMaker] = Registry("elign.lab.detection", "detector", search=False)
"""The detectors, by name."""


def settings_of(name: str, **changes: Any) -> DetectorSettings:
    """Return the default settings of a detector, with some fields of `DetectorSettings` changed.

    Example:
        >>> settings_of("tiny-c4", rois=32).rois
        32
    """
    return DETECTORS[name].settings.replace(**changes)


_BACKBONE = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
# Parts of the network that are one stage, the stem counted as the first.
_STAGES = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",))
_FROZEN_WITH_WEIGHTS = 2


def resnet_c4(name: str, settings: DetectorSettings, weights: Path | str | None) -> tuple[Backbone, BoxHead]:
    """Make a torchvision ResNet in two parts, with pretrained weights (see `load_weights`) or freshly drawn ones.

    The layer that iOD warps is the last convolution of layer4, `roi_heads.box_head.stage.2.conv3` of a ResNet-50.
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
    return Backbone(layers, out_channels=latent_dim // 2, stride=16), BoxHead(net.layer4, latent_dim)


for _name in ("resnet50", "resnet18"):
    DETECTORS.add(f"{_name}-c4", NetworkMaker(DetectorSettings(), partial(resnet_c4, _name)))

_WIDTHS = (24, 48, 96)
_LATENT_DIM = 128
_norm = partial(nn.GroupNorm, 8)


def tiny_c4(settings: DetectorSettings, weights: Path | str | None) -> tuple[Backbone, BoxHead]:
    """Make a freshly drawn network: a stem and two residual blocks, and one more block as the box head.

    The layer that iOD warps is `roi_heads.box_head.stage.0.conv2`.
    """
    if weights is not None:
        raise OptionError("tiny-c4 is trained from scratch: no classification network has its weights")
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
    return backbone, box_head


# Images of 96 to 160 pixels on a CPU: few anchors, proposals and regions, and one size for training and test.
_TINY = DetectorSettings(
    min_size=(128,),
    max_size=192,
    anchors=(16, 28, 48, 80),
    proposals_train=(200, 60),
    proposals_test=(200, 60),
    region_samples=64,
    rois=64,
    pool=6,
    detections_per_image=50,
    normalisation="group",
)
DETECTORS.add("tiny-c4", NetworkMaker(_TINY, tiny_c4))


def _block(channels_in: int, channels: int) -> nn.Module:
    shortcut = nn.Sequential(conv1x1(channels_in, channels, 2), _norm(channels))
    block: nn.Module = BasicBlock(channels_in, channels, 2, shortcut, norm_layer=_norm)
    return block


def load_weights(net: nn.Module, name: str, weights: Path | str) -> None:
    """Give a torchvision ResNet pretrained weights; those of its classifier (`fc`) are not needed.

    A file has its state dict (safetensors, or what `torch.save` writes; also under the key "state_dict" or "model"). It
    is read as numbers only, never as a pickle that could run code. "torchvision" downloads the weights of this name.

    Raises:
        WeightsError: There is no such file, or it does not hold the weights of this network.
    """
    state = _downloaded(name) if weights == "torchvision" else _read(Path(weights))
    state = {key.removeprefix("module."): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if not key.startswith("fc.")}
    problem = f"{weights} does not hold the weights of torchvision's {name}"
    try:
        missing, unexpected = net.load_state_dict(state, strict=False)
    except RuntimeError as error:
        # Torch lists every tensor of a wrong shape; the first one says enough.
        first = str(error).splitlines()[1:2] or [str(error)]
        raise WeightsError(f"{problem}: {first[0].strip()}") from error
    missing = [key for key in missing if not key.startswith("fc.")]
    if missing or unexpected:
        raise WeightsError(
            f"{problem}: it lacks {len(missing)} tensors {missing[:2]} and has {len(unexpected)} of other names "
            f"{unexpected[:2]}. Give a state dict of torchvision.models.{name}, or 'torchvision' to download it."
        )


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"There is no file of weights {path}. Name one, or 'torchvision' to download them.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can make the reader fail in any way at all
        raise WeightsError(
            f"{path} cannot be read as weights ({type(error).__name__}). It must be a safetensors file or a state dict "
            "written by torch.save, with nothing but tensors in it."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise WeightsError(f"{path} holds no state dict, that is, names with a tensor each.")
    return content


def _downloaded(name: str) -> dict[str, Tensor]:
    # The first published weights: closest to those that the literature on incremental detection began with.
    wanted = get_model_weights(name)["IMAGENET1K_V1"]
    try:
        state: dict[str, Tensor] = wanted.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise WeightsError(
            f"The weights of {name} could not be downloaded from {wanted.url} ({error}). Fetch that file by other "
            "means and give its path as weights."
        ) from error
    return state
