"""How well a detector tells objects of classes still to come from known ones (K. J. Joseph et al., CVPR 2021)."""

from __future__ import annotations

from typing import Any

import torch
from scipy.stats import weibull_min  # type: ignore[import-untyped]
from sklearn.metrics import roc_auc_score
from torch import Tensor

from elign.lab.detection.data import Batches
from elign.lab.detection.detector import Detector
from elign.utils.errors import LatentError

_MARGIN = 0.01  # of the range of the energies: how far below the lowest one a distribution starts


def free_energy(logits: Tensor) -> Tensor:
    """Return the Helmholtz free energy -log Σ_c exp(y_c) of each row; low where a class is certain.

    Example:
        >>> free_energy(torch.zeros(1, 4)).item() == -torch.tensor(4.0).log().item()
        True
    """
    return -torch.logsumexp(logits, dim=1)


class UnknownByEnergy:
    """The probability that a region holds an unknown object, by the free energy of its known classes' logits.

    Energies of known and of unknown objects each get a shifted Weibull distribution; the probability of "unknown" is
    its density's share of both (CVPR 2021, Section 4.3). Logits must be those of the known classes alone: neither
    background nor "unknown". It needs regions whose true kind is known, from validation images; no test image.

    The paper fits the shift along with scale and shape. That likelihood has no maximum (it grows without end when the
    shift nears the lowest energy), so here the shift lies 1 % of the range of the energies below the lowest one.

    Args:
        known: Logits of regions with known objects, (N, classes).
        unknown: Logits of regions with unknown objects, (M, classes).

    Raises:
        LatentError: Of one kind there are no two regions with different, finite energies.
    """

    def __init__(self, known: Tensor, unknown: Tensor) -> None:
        self.known = _weibull(free_energy(known), "known")
        self.unknown = _weibull(free_energy(unknown), "unknown")

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the probability of "unknown" for each region, (R,). Below all energies of both kinds it is 0."""
        energies = free_energy(logits).double().numpy()
        known, unknown = (torch.from_numpy(each.logpdf(energies)) for each in (self.known, self.unknown))
        return (unknown - known).sigmoid().nan_to_num(0.0).to(logits.dtype)


def _weibull(energies: Tensor, kind: str) -> Any:
    values = energies.detach().to("cpu", torch.float64)
    if len(values) < 2 or not values.isfinite().all() or values.min() == values.max():
        raise LatentError(f"regions with {kind} objects must have at least two different, finite energies")
    shift = values.min() - _MARGIN * (values.max() - values.min())
    shape, _, scale = weibull_min.fit((values - shift).numpy(), floc=0)
    return weibull_min(shape, loc=float(shift), scale=scale)


def unknown_metadata(detector: Detector, calibration: Batches, test: Batches) -> dict[str, Any]:
    """Return the area under the ROC curve of several scores of "unknown", for the metadata of a task.

    Both kinds of images come with their objects of all classes. ORE's rule is fitted on annotated unknown objects, as
    its authors do: it gets more than a detector in use has. Nothing is returned where known or unknown objects are
    missing, or have too few different energies.
    """
    own = slice(1, 1 + detector.classes)  # of the logits, without background and unknown
    fitted, fitted_unknown = _logits(detector, calibration)
    logits, is_unknown = _logits(detector, test)
    if is_unknown.all() or not is_unknown.any():
        return {}
    try:
        energy = UnknownByEnergy(fitted[~fitted_unknown, own], fitted[fitted_unknown, own])
    except LatentError:
        return {}
    probabilities = logits.softmax(dim=1)
    scores = {
        "energy": energy(logits[:, own]),  # ORE's rule
        "free-energy": free_energy(logits[:, own]),  # the same without distributions
        "doubt": 1 - probabilities[:, own].amax(dim=1),
        "output": probabilities[:, -1],  # the head's own output for the unknown
    }
    measured = {name: float(roc_auc_score(is_unknown.numpy(), score.numpy())) for name, score in scores.items()}
    counts = {"known": int((~is_unknown).sum()), "unknown": int(is_unknown.sum())}
    return {"unknown": {"area_under_roc": measured, "objects": counts}}


@torch.no_grad()
def _logits(detector: Detector, batches: Batches) -> tuple[Tensor, Tensor]:
    """Return the logits of all annotated boxes, and which of them are of a class that the detector was not taught."""
    detector.eval()
    logits, unknown = [], []
    for images, targets in batches:
        seen, placed = detector.transform(images, targets)
        rois = [target["boxes"].to(seen.tensors) for target in placed]
        outputs = detector.roi_outputs(detector.features(seen.tensors), rois, seen.image_sizes)
        logits.append(outputs.logits.cpu())
        unknown.append(torch.cat([target["labels"].cpu() for target in targets]) > detector.classes)
    return torch.cat(logits), torch.cat(unknown)
