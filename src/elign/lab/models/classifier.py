"""The classifier: a backbone (small, ResNets for CIFAR and ImageNet, AANet's branches) and a head that grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.lab.registry import Registry
from elign.utils.errors import LatentError, OptionError
from elign.utils.tensors import check_finite


class Backbone(nn.Module):
    """Images (N, C, H, W) to latents (N, latent_dim), level by level.

    Methods with two branches (AANet) join them after each level, so a backbone says where its levels end: `level` maps
    the output of level `number - 1` (images for the first) to that of level `number` (latents for the last).
    """

    latent_dim: int
    levels: int
    least_side: ClassVar[int] = 8
    """The smallest image: with less, the strides leave nothing to average over."""

    def level(self, number: int, x: Tensor) -> Tensor:
        """Map the output of the level before to that of this level."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Map images to latents."""
        for number in range(self.levels):
            x = self.level(number, x)
        return x


BACKBONES: Registry[Callable[..., Backbone]] = Registry("elign.lab.models", "backbone")
"""What makes each backbone, given `in_channels`, by name."""


def make_backbone(name: str, *, image_shape: tuple[int, int, int]) -> Backbone:
    """Make a freshly drawn backbone for images of (channels, height, width); raise `OptionError` if they are too small.

    Example:
        >>> make_backbone("conv", image_shape=(1, 8, 8)).latent_dim
        64
    """
    maker = BACKBONES[name]
    if len(image_shape) == 3 and image_shape[0] >= 1:
        backbone = maker(in_channels=image_shape[0])
        if min(image_shape[1:]) >= backbone.least_side:
            return backbone
    raise OptionError(f"image_shape (channels, height, width) is too small for {name!r}: {image_shape}")


def initialise_convolutions(net: nn.Module) -> None:
    """Draw the weights of every convolution in `net` as Kaiming normal with fan out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@BACKBONES.register("conv")
class SmallConv(Backbone):
    """Four convolutions; the latent is the mean over the last feature map."""

    levels = 4

    def __init__(self, *, in_channels: int = 1, latent_dim: int = 64) -> None:
        super().__init__()
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
        """Apply one convolution and what follows it."""
        x = self.layers[3 * number : 3 * number + 3](x)
        return x.mean(dim=(2, 3)) if number == self.levels - 1 else x


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
        """Map feature maps to feature maps."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.shortcut(x)
        return F.relu(y) if self.final_relu else y


class ResNet(Backbone):
    """A stem and stages of basic blocks; the latent is the mean over the last feature map.

    Every stage but the first halves the image, and the very last block leaves its output signed. The stem is a
    convolution with as many output channels as the first of `widths`; each stage has so many `blocks`.
    """

    def __init__(self, stem: nn.Conv2d, widths: Sequence[int], blocks: int) -> None:
        super().__init__()
        self.latent_dim, self.levels = widths[-1], len(widths)
        self.conv1 = stem
        self.bn1 = nn.BatchNorm2d(widths[0])
        layers: list[nn.Module] = []
        channels_in = widths[0]
        for stage, channels in enumerate(widths):
            for number in range(blocks):
                stride = 2 if stage > 0 and number == 0 else 1
                last = stage == len(widths) - 1 and number == blocks - 1
                layers.append(BasicBlock(channels_in, channels, stride, final_relu=not last))
                channels_in = channels
        self.blocks = nn.Sequential(*layers)
        initialise_convolutions(self)

    def stem(self, x: Tensor) -> Tensor:
        """Map images to the input of the first stage."""
        return F.relu(self.bn1(self.conv1(x)))

    def level(self, number: int, x: Tensor) -> Tensor:
        """Apply one stage; the first with the stem before it, the last with the mean over the picture after it."""
        if number == 0:
            x = self.stem(x)
        size = len(self.blocks) // self.levels
        x = self.blocks[number * size : (number + 1) * size](x)
        return x.mean(dim=(2, 3)) if number == self.levels - 1 else x


class CifarResNet(ResNet):
    """The ResNet of 6 n + 2 layers (14, 20, 32...) for images of about 32 x 32: latents of 64 dimensions."""

    def __init__(self, depth: int = 32, *, in_channels: int = 3) -> None:
        blocks, rest = divmod(depth - 2, 6)
        if rest or blocks < 1:
            raise OptionError(f"depth must be 6 n + 2 (14, 20, 32, ...), got {depth}")
        super().__init__(nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False), (16, 32, 64), blocks)


for _depth in (14, 20, 32):
    BACKBONES.add(f"resnet{_depth}", partial(CifarResNet, _depth))


@BACKBONES.register("resnet18")
class ResNet18(ResNet):
    """The ResNet for 224 x 224 images: latents of 512 dimensions.

    The stem (7 x 7 convolution and maximum pooling, stride 2 each) and the last three stages shrink the image by 32.
    """

    least_side = 32

    def __init__(self, *, in_channels: int = 3) -> None:
        super().__init__(nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False), (64, 128, 256, 512), 2)

    def stem(self, x: Tensor) -> Tensor:
        """Map images to the input of the first stage."""
        return F.max_pool2d(super().stem(x), kernel_size=3, stride=2, padding=1)


Plasticity = Literal["free", "scaled", "fixed"]


class ScaledConv2d(nn.Conv2d):
    """A frozen convolution whose kernels are multiplied by learned numbers, one for each (output, input) channel.

    Its weight is W * s with s of shape (O, I, 1, 1), which starts at 1; only s trains.
    """

    scale: nn.Parameter

    @classmethod
    def of(cls, convolution: nn.Conv2d) -> ScaledConv2d:
        """Make the same map as `convolution`, with its weights."""
        result = deepcopy(convolution)
        result.__class__ = cls
        result.weight.requires_grad_(False)
        scale = torch.ones_like(result.weight[:, :, :1, :1], memory_format=torch.contiguous_format)
        result.scale = nn.Parameter(scale.detach())
        return result  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps to feature maps."""
        maps: Tensor = self._conv_forward(x, self.weight * self.scale, self.bias)
        return maps


class TwoBranch(Backbone):
    """phi_l = alpha_l b1_l(phi_{l-1}) + (1 - alpha_l) b2_l(phi_{l-1}), level by level, with alpha_l = 1/2 at first.

    Both branches start as copies of `backbone`. "free": everything trains; "scaled": the convolutions are frozen and
    multiplied by learned numbers (`ScaledConv2d`), the affine parts of batch norms train; "fixed": nothing trains.
    The statistics of batch norms move in every branch, as in the authors' code.
    """

    def __init__(self, backbone: Backbone, *, one: Plasticity, two: Plasticity) -> None:
        super().__init__()
        self.latent_dim, self.levels = backbone.latent_dim, backbone.levels
        self.one = _branch(backbone, one)
        self.two = _branch(backbone, two)
        device = next(backbone.parameters()).device
        self.alpha = nn.Parameter(torch.full((backbone.levels,), 0.5, device=device))

    def level(self, number: int, x: Tensor) -> Tensor:
        """Join the level of the two branches."""
        # torch.lerp would be shorter, but under autocast its arguments would differ in type.
        share = self.alpha[number]
        return share * self.one.level(number, x) + (1 - share) * self.two.level(number, x)


def _branch(backbone: Backbone, plasticity: Plasticity) -> Backbone:
    if plasticity not in get_args(Plasticity):
        raise OptionError(f"a branch is one of {', '.join(get_args(Plasticity))}, not {plasticity!r}")
    branch = deepcopy(backbone)
    if plasticity == "fixed":
        branch.requires_grad_(False)
    elif plasticity == "scaled":
        for module in [*branch.modules()]:
            for name, child in module.named_children():
                if isinstance(child, nn.Conv2d):
                    setattr(module, name, ScaledConv2d.of(child))
    return branch


class Classifier(nn.Module):
    """Images (N, C, H, W) to latents (N, D) to logits (N, classes), in the order of arrival of the classes."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def latents(self, images: Tensor) -> Tensor:
        """Return latents in float32, whatever precision the backbone works in."""
        z: Tensor = self.backbone(images)
        return z.float()

    def scores(self, latents: Tensor) -> Tensor:
        """Return logits of latents, in full precision also under autocast: half precision has too few digits."""
        with torch.autocast(latents.device.type, enabled=False):
            logits: Tensor = self.head(latents)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        return self.scores(self.latents(images))


def directions(vectors: Tensor) -> Tensor:
    """Return every row v as v / |v|; a row of zeros stays zero.

    Unlike with `F.normalize`, the gradient of a zero row has an ordinary size (not times 1e12), and the row does not
    become NaN in half precision.
    """
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norms > 0, norms, torch.ones_like(norms))


def _uniform(weight: Tensor) -> Tensor:
    """Fill `weight` (rows, dim) from U(-1/sqrt(dim), 1/sqrt(dim)), the range of `nn.Linear` and of LUCIR."""
    bound = 1 / math.sqrt(weight.shape[1])
    with torch.no_grad():
        return weight.uniform_(-bound, bound)


class LinearHead(nn.Linear):
    """Logits W z + b of latents of dimension `dim`, with rows for new classes added by `grow`.

    Example:
        >>> LinearHead(64, 5).grow(10).classes
        10
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.out_features

    def grow(self, classes: int) -> Self:
        """Add freshly drawn rows until there are `classes` in total; the rows that exist stay bit for bit."""
        added = classes - self.classes
        if added < 0:
            raise OptionError(f"a head of {self.classes} classes cannot shrink to {classes}")
        weight = _uniform(self.weight.new_empty(added, self.in_features))
        bound = 1 / math.sqrt(self.in_features)
        bias = self.bias.detach().new_empty(added).uniform_(-bound, bound)
        for name, rows in (("weight", weight), ("bias", bias)):
            before: Tensor = getattr(self, name)
            joined = torch.cat([before.detach(), rows])
            setattr(self, name, nn.Parameter(joined, requires_grad=before.requires_grad))
        self.out_features = classes
        return self


class _Cosine(nn.Module):
    """What the cosine heads share: sigma * <z / |z|, w_c / |w_c|>, with one learned sigma (LUCIR, CVPR 2019)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.sigma = nn.Parameter(torch.ones(()))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.prototypes().shape[0])

    def prototypes(self) -> Tensor:
        """Return the weight vectors w_c of all classes, (classes, dim), in class order."""
        raise NotImplementedError

    def cosines(self, z: Tensor) -> Tensor:
        """Return cosines between latents and prototypes, (N, classes), without sigma; zero for a zero latent."""
        return F.linear(directions(z), directions(self.prototypes()))

    def forward(self, z: Tensor) -> Tensor:
        """Map latents (N, dim) to logits (N, classes)."""
        return self.sigma * self.cosines(z)


class CosineHead(_Cosine):
    """The cosine head of the first task; `sigma` starts at 1, there is no bias."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(_uniform(torch.empty(classes, dim)))

    def prototypes(self) -> Tensor:
        """Return the weight vectors w_c of all classes, (classes, dim), in class order."""
        return self.weight


class SplitCosineHead(_Cosine):
    """The cosine head after the first task: `old` and `new` prototypes apart, so that a learner can freeze the old.

    Nothing is frozen here; `head.old.requires_grad_(False)` does it.

    Example:
        >>> head = SplitCosineHead.after(CosineHead(64, 50), 10)
        >>> head.old.shape[0], head.new.shape[0], head.classes
        (50, 10, 60)
    """

    def __init__(self, dim: int, old_classes: int, new_classes: int) -> None:
        super().__init__(dim)
        self.old = nn.Parameter(_uniform(torch.empty(old_classes, dim)))
        self.new = nn.Parameter(_uniform(torch.empty(new_classes, dim)))

    @classmethod
    def after(cls, head: CosineHead | SplitCosineHead, new_classes: int) -> Self:
        """Make the head of the next task: copies of all prototypes of `head` become old, `new_classes` are drawn.

        It keeps sigma, device, number type and mode.
        """
        before = head.prototypes().detach()
        result = cls(head.dim, before.shape[0], new_classes).to(before)
        result.train(head.training)
        with torch.no_grad():
            result.old.copy_(before)
            result.sigma.copy_(head.sigma)
        return result

    def prototypes(self) -> Tensor:
        """Return the weight vectors w_c of all classes, (classes, dim): the old, then the new."""
        return torch.cat([self.old, self.new])


@torch.no_grad()
def imprint(head: SplitCosineHead, latents: Tensor, labels: Tensor) -> None:
    """Set `head.new` in place: w_c = normalise(mean_i z_i / |z_i|) * mean |w_old|, for every new class c.

    LUCIR does this before each task after the first, and the ELI paper's code base for iCaRL too.

    Latents (N, dim) are those of un-augmented training images; labels (N,) are positions among all classes of the head.
    Images of old classes are passed over.

    Raises:
        LatentError: Something does not fit, or a new class has no image or no mean direction. The head is unchanged.
    """
    _check(head, latents, labels)
    latents = latents.to(head.new.device, torch.promote_types(latents.dtype, torch.float32))
    labels = labels.to(head.new.device)
    old = head.old.shape[0]
    wanted = range(old, old + head.new.shape[0])
    absent = sorted(set(wanted) - set(labels.tolist()))
    if absent:
        raise LatentError(f"no latents to imprint for class {absent}; every new class needs an image")
    means = torch.stack([directions(latents[labels == label]).mean(dim=0) for label in wanted])
    flat = [label for label, mean in zip(wanted, means, strict=True) if not mean.any()]
    if flat:
        raise LatentError(f"the latents of class {flat} have no mean direction (all zero, or they cancel out)")
    length = torch.linalg.vector_norm(head.old.to(means.dtype), dim=1).mean()
    head.new.copy_(directions(means) * length)


def _check(head: SplitCosineHead, latents: Tensor, labels: Tensor) -> None:
    if latents.ndim != 2 or latents.shape[1] != head.dim:
        raise LatentError(f"latents must be (N, {head.dim}), got {tuple(latents.shape)}")
    if labels.shape != latents.shape[:1]:
        raise LatentError(f"labels must be ({latents.shape[0]},), one for each latent, got {tuple(labels.shape)}")
    check_finite(latents, "latents")
    if labels.is_floating_point() or ((labels < 0) | (labels >= head.classes)).any():
        raise LatentError(f"labels must be whole numbers from 0 to {head.classes - 1}, positions among all classes")
