"""Detectors for incremental learning: torchvision's Faster R-CNN on C4 networks, with a head that grows."""

from elign.lab.detection.models.c4_networks import DETECTORS, DetectorSettings, WeightsError, settings_of
from elign.lab.detection.models.detector import (
    Detector,
    DetectorUseError,
    Look,
    Predictor,
    Regions,
    RoiOutputs,
    make_detector,
    roi_losses,
)

__all__ = [
    "DETECTORS",
    "Detector",
    "DetectorSettings",
    "DetectorUseError",
    "Look",
    "Predictor",
    "Regions",
    "RoiOutputs",
    "WeightsError",
    "make_detector",
    "roi_losses",
    "settings_of",
]
