"""The numbers of a detector, checked when they are set, and their defaults for each of the detectors."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from elign.lab.detection.models.errors import UnknownDetectorError
from elign.utils.errors import OptionError

Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class DetectorSettings:
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
        unknown: Whether the head has one more output, for objects of no known class (ORE).
        normalisation: Of the ResNets: "frozen" batch normalisation for pretrained weights, "group" normalisation for
            training from scratch, where frozen statistics would be those of no data at all.
        frozen_stages: How many stages of a ResNet are not trained, the stem counted as the first. None: two with
            pretrained weights, none without.

    Raises:
        OptionError: A number outside its range.
    """

    min_size: int | tuple[int, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    max_size: int = 1333
    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    proposals_train: Pair = (12000, 2000)
    proposals_test: Pair = (6000, 1000)
    region_nms: float = 0.7
    region_samples: int = 256
    rois: int = 512
    positive_share: float = 0.25
    pool: int = 14
    pool_samples: int = 2
    score_threshold: float = 0.05
    nms: float = 0.4
    detections_per_image: int = 100
    class_agnostic_boxes: bool = True
    unknown: bool = False
    normalisation: Literal["frozen", "group"] = "frozen"
    frozen_stages: int | None = None

    def __post_init__(self) -> None:
        # Lists are what configuration files have; a frozen object should hold nothing that can change.
        for name in ("anchors", "anchor_ratios", "proposals_train", "proposals_test"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not isinstance(self.min_size, int):
            object.__setattr__(self, "min_size", tuple(self.min_size))
        self._check_counts()
        self._check_shares()
        self._check_lists()
        if self.normalisation not in ("frozen", "group"):
            raise OptionError(f"normalisation must be frozen or group, not {self.normalisation!r}")
        if self.frozen_stages not in (None, 0, 1, 2, 3, 4):
            raise OptionError(f"frozen_stages must be from 0 to 4, or None, not {self.frozen_stages!r}")

    @property
    def short_sides(self) -> tuple[int, ...]:
        """`min_size` as a tuple; the last is the size at test."""
        return (self.min_size,) if isinstance(self.min_size, int) else self.min_size

    def _check_counts(self) -> None:
        for name in ("max_size", "region_samples", "rois", "pool", "detections_per_image"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.pool_samples < 0:
            raise OptionError(f"pool_samples must be at least 0, got {self.pool_samples}")

    def _check_shares(self) -> None:
        for name in ("positive_share", "region_nms", "nms"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise OptionError(f"{name} must be above 0 and at most 1, got {value}")
        if not 0 <= self.score_threshold < 1:
            raise OptionError(f"score_threshold must be at least 0 and below 1, got {self.score_threshold}")

    def _check_lists(self) -> None:
        for name in ("short_sides", "anchors", "anchor_ratios"):
            values = getattr(self, name)
            shown = "min_size" if name == "short_sides" else name
            if not values or not all(math.isfinite(value) and value > 0 for value in values):
                raise OptionError(f"{shown} must be one or more numbers above 0, got {values}")
        if max(self.short_sides) > self.max_size:
            raise OptionError(f"max_size must be at least min_size ({max(self.short_sides)}), got {self.max_size}")
        for name in ("proposals_train", "proposals_test"):
            pair = getattr(self, name)
            if len(pair) != 2 or not 1 <= pair[1] <= pair[0]:
                raise OptionError(
                    f"{name} must be two numbers, before and after suppression, the first not smaller, got {pair}"
                )


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
_DEFAULTS = {"resnet50-c4": DetectorSettings(), "resnet18-c4": DetectorSettings(), "tiny-c4": _TINY}

DETECTORS = tuple(_DEFAULTS)


def settings_of(name: str, **changes: Any) -> DetectorSettings:
    """The default settings of a detector, with some of them changed.

    Args:
        name: A detector's name; see `make_detector`.
        changes: Fields of `DetectorSettings`.

    Raises:
        UnknownDetectorError: No detector has this name.
        OptionError: A field that does not exist, or a number outside its range.

    Example:
        >>> settings_of("tiny-c4", rois=32).rois
        32
    """
    if name not in _DEFAULTS:
        near = difflib.get_close_matches(str(name).strip().lower(), DETECTORS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownDetectorError(f"There is no detector {name!r}.{hint} Choose from: {', '.join(DETECTORS)}.")
    unknown = sorted(set(changes) - {field.name for field in fields(DetectorSettings)})
    if unknown:
        raise OptionError(f"a detector has no setting {', '.join(unknown)}")
    return replace(_DEFAULTS[name], **changes)
