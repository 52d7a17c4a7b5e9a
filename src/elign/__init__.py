"""Repair a vision model that forgot its old classes, after training and without old images.

Keep the statistics of classes when they are learned; after the model has learned something new, three lines win the old
classes back::

    statistics = elign.ClassStatistics.from_data(old_model, "fc", old_loader)
    repair = elign.Repair("fc").fit(old_model, new_model, new_loader, statistics=statistics)
    repair.attach(new_model)

Below `Repair` are aligners (`EnergyAligner` is ELI, CVPR 2022), classifiers and gates, which you can combine yourself.
This package needs torch, numpy and safetensors only. The bench and the `elign` command are `elign.lab`, which is never
imported from here.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elign.aligners.adc import ADC
    from elign.aligners.base import Aligner, FitReport
    from elign.aligners.dpcr import DPCR
    from elign.aligners.duale import DualE
    from elign.aligners.energy import EnergyAligner
    from elign.aligners.fisher import FisherShift
    from elign.aligners.gls import GLS
    from elign.aligners.hopfield import HopfieldShift
    from elign.aligners.kernel import LocalShift
    from elign.aligners.ldc import LDC
    from elign.aligners.linear import Identity, MeanShift, RandomShift, Ridge
    from elign.aligners.mlp import MLPMap
    from elign.aligners.sldc import SLDC
    from elign.attachments import Attachment, SplitOutputs, attach, detach
    from elign.classifiers.base import Aligned, HeadLogits, LatentClassifier
    from elign.classifiers.bias import WeightAligned
    from elign.classifiers.bic import BiC
    from elign.classifiers.fecam import FeCAM
    from elign.classifiers.gaussian import Gaussian
    from elign.classifiers.il2m import IL2M
    from elign.classifiers.linear_head import LinearHead
    from elign.classifiers.nearest_mean import NearestMean
    from elign.classifiers.random_features import RandomFeatures
    from elign.classifiers.ridge_head import RidgeHead
    from elign.classifiers.voting import Voting
    from elign.energy.model import EnergyModel
    from elign.energy.sampler import descend
    from elign.gates import Always, ByEnergy, ByMask, ByPrediction, ByProbe, FixedStrength, Gate
    from elign.repair import Repair
    from elign.repair_report import RepairReport
    from elign.statistics.class_statistics import ClassStatistics
    from elign.utils.errors import (
        AttachError,
        ElignError,
        FileFormatError,
        LatentError,
        NotFittedError,
        OptionError,
    )
    from elign.utils.extraction import Latents, Pairs
    from elign.utils.fitted import FittedModule, register, registered

__version__ = "0.2.0.dev0"

__all__ = [
    "ADC",
    "DPCR",
    "GLS",
    "IL2M",
    "LDC",
    "SLDC",
    "Aligned",
    "Aligner",
    "Always",
    "AttachError",
    "Attachment",
    "BiC",
    "ByEnergy",
    "ByMask",
    "ByPrediction",
    "ByProbe",
    "ClassStatistics",
    "DualE",
    "ElignError",
    "EnergyAligner",
    "EnergyModel",
    "FeCAM",
    "FileFormatError",
    "FisherShift",
    "FitReport",
    "FittedModule",
    "FixedStrength",
    "Gate",
    "Gaussian",
    "HeadLogits",
    "HopfieldShift",
    "Identity",
    "LatentClassifier",
    "LatentError",
    "Latents",
    "LinearHead",
    "LocalShift",
    "MLPMap",
    "MeanShift",
    "NearestMean",
    "NotFittedError",
    "OptionError",
    "Pairs",
    "RandomFeatures",
    "RandomShift",
    "Repair",
    "RepairReport",
    "Ridge",
    "RidgeHead",
    "SplitOutputs",
    "Voting",
    "WeightAligned",
    "attach",
    "descend",
    "detach",
    "register",
    "registered",
]

# Imported when the first name is used, so that `elign --help` does not wait for torch.
_MODULES = """
    aligners.adc aligners.base aligners.dpcr aligners.duale aligners.energy aligners.fisher aligners.gls
    aligners.hopfield aligners.kernel aligners.ldc aligners.linear aligners.mlp aligners.sldc attachments
    classifiers.base classifiers.bias classifiers.bic classifiers.fecam classifiers.gaussian classifiers.il2m
    classifiers.linear_head classifiers.nearest_mean classifiers.random_features classifiers.ridge_head
    classifiers.voting energy.model energy.sampler gates repair repair_report statistics.class_statistics
    utils.errors utils.extraction utils.fitted
"""


def _import_all() -> None:
    for module in _MODULES.split():
        found = vars(importlib.import_module(f"elign.{module}"))
        globals().update({name: found[name] for name in __all__ if name in found})


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        _import_all()
    if name not in globals():
        raise AttributeError(f"module 'elign' has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
