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
    from elign.aligners.base import Aligner, FitReport
    from elign.aligners.energy import EnergyAligner
    from elign.aligners.kernel import LocalShift
    from elign.aligners.linear import Identity, MeanShift, RandomShift, Ridge
    from elign.attachments.attachment import Attachment, attach, detach
    from elign.attachments.split_outputs import SplitOutputs
    from elign.classifiers.base import Aligned, LatentClassifier
    from elign.classifiers.bias import WeightAligned
    from elign.classifiers.gaussian import Gaussian
    from elign.classifiers.head import HeadLogits
    from elign.classifiers.linear_head import LinearHead
    from elign.classifiers.nearest_mean import NearestMean
    from elign.classifiers.voting import Voting
    from elign.energy.model import EnergyModel
    from elign.energy.sampler import descend
    from elign.gates.base import Always, ByMask, Gate
    from elign.gates.by_energy import ByEnergy
    from elign.gates.by_prediction import ByPrediction
    from elign.gates.by_probe import ByProbe
    from elign.gates.fixed_strength import FixedStrength
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
    "Aligned",
    "Aligner",
    "Always",
    "AttachError",
    "Attachment",
    "ByEnergy",
    "ByMask",
    "ByPrediction",
    "ByProbe",
    "ClassStatistics",
    "ElignError",
    "EnergyAligner",
    "EnergyModel",
    "FileFormatError",
    "FitReport",
    "FittedModule",
    "FixedStrength",
    "Gate",
    "Gaussian",
    "HeadLogits",
    "Identity",
    "LatentClassifier",
    "LatentError",
    "Latents",
    "LinearHead",
    "LocalShift",
    "MeanShift",
    "NearestMean",
    "NotFittedError",
    "OptionError",
    "Pairs",
    "RandomShift",
    "Repair",
    "RepairReport",
    "Ridge",
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
    aligners.base aligners.energy aligners.kernel aligners.linear attachments.attachment
    attachments.split_outputs classifiers.base classifiers.bias classifiers.gaussian classifiers.head
    classifiers.linear_head classifiers.nearest_mean classifiers.voting energy.model energy.sampler gates.base
    gates.by_energy gates.by_prediction gates.by_probe gates.fixed_strength repair repair_report
    statistics.class_statistics utils.errors utils.extraction utils.fitted
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
