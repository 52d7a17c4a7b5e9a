"""Detectors by name: their numbers, and networks cut in two (backbone up to stride 16, last stage as box head)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

import safetensors.torch
import torch
import torchvision
import torchvision.ops
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator
from torch import Tensor, nn
from torchvision.models import get_model_weights
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1
from torchvision.ops import FrozenBatchNorm2d

from elign.lab.models.backbones import initialise_convolutions
from elign.lab.registry import Registry
from elign.utils.errors import ElignError, OptionError


class WeightsError(ElignError, ValueError):
    """Weights that cannot be had, cannot be read or do not fit the network; the message says what would."""


Sides = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Proposals = tuple[PositiveInt, PositiveInt]


class DetectorSettings(BaseModel):
    """How a detector sees images, samples regions, and decides. The defaults are those of R50-C4 on VOC (iOD, ELI).

    Attributes:
        min_size: Short side that images are resized to. Several: drawn for each image in training, the last at test.
        max_size: Longest side that images are resized to.
        anchors: Side lengths of the anchors in pixels of the resized image.
        anchor_ratios: Their heights divided by their widths.
        proposals_train: Regions of an image before and after non-maximum suppression, in training mode.
        proposals_test: The same in evaluation mode.
        region_nms: Overlap above which the weaker of two proposals is dropped.
        region_samples: Anchors of an image that the loss of the region proposal network is taken over, half of them
            positive as long as there are so many.
        rois: Regions of an image that the head is trained on.
        positive_share: The largest share of them that lies on objects.
        pool: Side of the square that a region's features are pooled to.
        pool_samples: Points along each side of a bin of it; 0 for as many as the region's size asks for.
        score_threshold: Detections must have a higher probability.
        nms: Overlap above which the weaker of two detections of one class is dropped.
        detections_per_image: The strongest so many are kept.
        class_agnostic_boxes: One set of box corrections for a region, instead of one for each class.
        unknown: Whether the head has one more output, for objects of classes that it was not taught (ORE).
        normalisation: Of the ResNets: "frozen" batch normalisation for pretrained weights, "group" normalisation for
            training from scratch, where frozen statistics would be those of no data at all.
        frozen_stages: How many stages of a ResNet are not trained, the stem counted as the first. None: two with
            pretrained weights, none without.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min_size: PositiveInt | Sides = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    max_size: PositiveInt = 1333
    anchors: Sides = (32, 64, 128, 256, 512)
    anchor_ratios: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = (0.5, 1.0, 2.0)
    proposals_train: Proposals = (12000, 2000)
    proposals_test: Proposals = (6000, 1000)
    region_nms: Share = 0.7
    region_samples: PositiveInt = 256
    rois: PositiveInt = 512
    positive_share: Share = 0.25
    pool: PositiveInt = 14
    pool_samples: NonNegativeInt = 2
    score_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.05
    nms: Share = 0.4
    detections_per_image: PositiveInt = 100
    class_agnostic_boxes: bool = True
    unknown: bool = False
    normalisation: Literal["frozen", "group"] = "frozen"
    frozen_stages: Annotated[int, Field(ge=0, le=4)] | None = None

    @property
    def short_sides(self) -> tuple[int, ...]:
        """`min_size` as a tuple; the last is the size at test."""
        return (self.min_size,) if isinstance(self.min_size, int) else self.min_size

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        if max(self.short_sides) > self.max_size:
            raise ValueError(f"max_size must be at least min_size ({max(self.short_sides)})")
        for name in ("proposals_train", "proposals_test"):
            before, after = getattr(self, name)
            if before < after:
                raise ValueError(f"{name} must be two numbers, the first not smaller")
        return self


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
        """Map pooled features of regions to latents."""
        return cast(Tensor, self.stage(pooled)).mean(dim=(2, 3))


class Network(NamedTuple):
    """A classification network cut in two for a detector."""

    backbone: Backbone
    box_head: BoxHead


class NetworkMaker(NamedTuple):
    """The settings of a detector where none are given, and what makes its network, given settings and weights."""

    settings: DetectorSettings
    make: Callable[[DetectorSettings, Path | str | None], Network]


DETECTORS: Registry[NetworkMaker] = Registry("elign.lab.detection.models", "detector")
"""The detectors, by name."""


def settings_of(name: str, **changes: Any) -> DetectorSettings:
    """Return the default settings of a detector, with some fields of `DetectorSettings` changed.

    Raises:
        OptionError: There is no such detector or field, or a number is outside its range.

    Example:
        >>> settings_of("tiny-c4", rois=32).rois
        32
    """
    try:
        return DetectorSettings(**{**dict(DETECTORS[name].settings), **changes})
    except ValidationError as error:
        problem = error.errors()[0]
        field, message = str(problem["loc"][0]) if problem["loc"] else "", problem["msg"]
        if problem["type"] == "extra_forbidden":
            raise OptionError(f"a detector has no setting {field}") from None
        message = message.removeprefix("Value error, ").replace("Input should", f"{field} must")
        if not message.startswith(field):
            message = f"{field} must be otherwise: {message}"
        raise OptionError(f"{message}, got {changes.get(field, changes)!r}") from None


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
        """Pool the features of the one map in each box: (R, C, side, side)."""
        pooled = torchvision.ops.roi_align(
            x["0"], boxes, self.output_size, 1 / self.stride, self.sampling_ratio, aligned=True
        )
        return cast(Tensor, pooled)


_BACKBONE = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
# Parts of the network that are one stage, the stem counted as the first.
_STAGES = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",))
_FROZEN_WITH_WEIGHTS = 2


def resnet_c4(name: str, settings: DetectorSettings, weights: Path | str | None) -> Network:
    """Make a ResNet in two parts.

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


for _name in ("resnet50", "resnet18"):
    DETECTORS.add(f"{_name}-c4", NetworkMaker(DetectorSettings(), partial(resnet_c4, _name)))

_WIDTHS = (24, 48, 96)
_LATENT_DIM = 128
_norm = partial(nn.GroupNorm, 8)


def tiny_c4(settings: DetectorSettings, weights: Path | str | None) -> Network:
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
    return Network(backbone, box_head)


# Images of 96 to 160 pixels on a CPU: few anchors, proposals and regions, and one size for training and test.
_TINY = DetectorSettings(
    min_size=128,
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


TORCHVISION = "torchvision"
"""What to give instead of a file for torchvision's own download."""


def load_weights(net: nn.Module, name: str, weights: Path | str) -> None:
    """Give a torchvision ResNet pretrained weights; those of its classifier (`fc`) are not needed.

    A file is read as numbers only, never as a pickle that could run code.

    Args:
        net: The network.
        name: Its name in torchvision.
        weights: A file with its state dict (safetensors, or what `torch.save` writes; also under the key "state_dict"
            or "model"), or "torchvision".

    Raises:
        WeightsError: There is no such file, or it does not hold the weights of this network.
    """
    state = _downloaded(name) if weights == TORCHVISION else _read(Path(weights))
    state = {key.removeprefix("module."): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if not key.startswith("fc.")}
    try:
        missing, unexpected = net.load_state_dict(state, strict=False)
    except RuntimeError as error:
        # Torch lists every tensor of a wrong shape; the first one says enough.
        first = str(error).splitlines()[1:2] or [str(error)]
        raise WeightsError(f"{weights} does not hold the weights of a {name}: {first[0].strip()}") from error
    missing = [key for key in missing if not key.startswith("fc.")]
    if missing or unexpected:
        raise WeightsError(
            f"{weights} does not hold the weights of torchvision's {name}: it lacks {len(missing)} tensors "
            f"{missing[:2]} and has {len(unexpected)} of other names {unexpected[:2]}. Give a state dict of "
            f"torchvision.models.{name}, or weights={TORCHVISION!r} to download one."
        )


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"There is no file of weights {path}. Name one, or {TORCHVISION!r} to download them.")
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
