"""Detectors for incremental learning: torchvision's Faster R-CNN on C4 networks, with a head that grows.

`make_detector` gives one by name. Learners and evaluation of `elign.lab.detection` import it; no training code here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elign.lab.detection.models.detector import Detector
from elign.lab.detection.models.errors import DetectorUseError, UnknownDetectorError, WeightsError
from elign.lab.detection.models.parts import Network
from elign.lab.detection.models.passes import Look, Regions, RoiOutputs, roi_losses
from elign.lab.detection.models.predictor import Predictor
from elign.lab.detection.models.resnet_c4 import resnet_c4
from elign.lab.detection.models.settings import DETECTORS, DetectorSettings, settings_of
from elign.lab.detection.models.tiny_c4 import tiny_c4
from elign.utils.errors import OptionError

__all__ = [
    "DETECTORS",
    "Detector",
    "DetectorSettings",
    "DetectorUseError",
    "Look",
    "Predictor",
    "Regions",
    "RoiOutputs",
    "UnknownDetectorError",
    "WeightsError",
    "make_detector",
    "roi_losses",
    "settings_of",
]


def _tiny(settings: DetectorSettings, weights: Path | str | None) -> Network:
    if weights is not None:
        raise OptionError("tiny-c4 is trained from scratch: no classification network has its weights")
    return tiny_c4()


_MAKERS: dict[str, Callable[[DetectorSettings, Path | str | None], Network]] = {
    "resnet50-c4": lambda settings, weights: resnet_c4("resnet50", settings, weights),
    "resnet18-c4": lambda settings, weights: resnet_c4("resnet18", settings, weights),
    "tiny-c4": _tiny,
}


def make_detector(
    name: str, *, settings: DetectorSettings | None = None, weights: Path | str | None = None
) -> Detector:
    """A detector without classes; `grow` it before use.

    Args:
        name: One of `DETECTORS`.
        settings: Its numbers; its own defaults (`settings_of`) when not given.
        weights: Of its network, for ImageNet say: a file with a state dict of torchvision's classification network, or
            "torchvision" to download one. None for freshly drawn weights.

    Raises:
        UnknownDetectorError: No detector has this name.
        OptionError: Settings that do not fit the network.
        WeightsError: Weights that do not fit it.

    Example:
        >>> detector = make_detector("tiny-c4")
        >>> detector.grow(3)
        >>> detector.latent_dim, detector.classes
        (128, 3)
    """
    # Also when settings are given: this is where a name that does not exist is found.
    defaults = settings_of(name)
    settings = settings or defaults
    return Detector(_MAKERS[name](settings, weights), settings)
