"""How well a detector of ORE tells objects of classes that are still to come from those of its own classes.

A measure of its own, beside the readings: it looks at annotated boxes only, and no detection depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from elign.lab.detection.data.tasks import Batches
from elign.lab.detection.learners.unknown import UnknownByEnergy, free_energy
from elign.lab.detection.models.detector import Detector
from elign.utils.errors import LatentError

MEASURES: Mapping[str, str] = {
    "energy": "ORE's rule: the free energy of the known classes' logits, under two Weibull distributions",
    "free-energy": "that energy as it is, without distributions",
    "doubt": "one minus the highest probability of a known class",
    "output": "the probability of the head's own output for the unknown",
}
"""The scores that are compared, with their meaning."""


def unknown_facts(detector: Detector, calibration: Batches, test: Batches) -> dict[str, Any]:
    """The area under the ROC curve of several scores of "unknown", as plain values for the facts of a task.

    0.5 is guessing, 1 tells all objects of known classes from all others. The distributions of ORE's rule are fitted
    on training images whose unknown objects are annotated, as its authors do: it is told more than a detector in use
    would know.

    Args:
        detector: After the task, with an output for the unknown; it is put into evaluation mode.
        calibration: Training images for the distributions, with their objects of all classes.
        test: Test images, likewise.

    Returns:
        Nothing where known or unknown objects are missing, or have too few different energies.
    """
    own = slice(1, 1 + detector.classes)  # of the logits, without background and unknown
    fitted, fitted_unknown = _logits(detector, calibration)
    logits, is_unknown = _logits(detector, test)
    if is_unknown.all() or not is_unknown.any():
        return {}
    try:
        energy = UnknownByEnergy().fit(fitted[~fitted_unknown, own], fitted[fitted_unknown, own])
    except LatentError:
        return {}
    probabilities = logits.softmax(dim=1)
    scores = {
        "energy": energy(logits[:, own]),
        "free-energy": free_energy(logits[:, own]),
        "doubt": 1 - probabilities[:, own].amax(dim=1),
        "output": probabilities[:, -1],
    }
    measured = {name: float(roc_auc_score(is_unknown.numpy(), scores[name].numpy())) for name in MEASURES}
    counts = {"known": int((~is_unknown).sum()), "unknown": int(is_unknown.sum())}
    return {"unknown": {"area_under_roc": measured, "objects": counts}}


@torch.no_grad()
def _logits(detector: Detector, batches: Batches) -> tuple[Tensor, Tensor]:
    """Logits of all annotated boxes, and which are of no class that the detector knows."""
    detector.eval()
    logits, unknown = [], []
    for images, targets in batches:
        seen, placed = detector.transform(images, targets)
        rois = [target["boxes"].to(seen.tensors) for target in placed]
        outputs = detector.read(detector.features(seen.tensors), rois, seen.image_sizes)
        logits.append(outputs.logits.cpu())
        unknown.append(torch.cat([target["labels"].cpu() for target in targets]) > detector.classes)
    return torch.cat(logits), torch.cat(unknown)
