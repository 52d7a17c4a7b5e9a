"""How well a detector tells objects of classes still to come from known ones (K. J. Joseph et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from scipy.stats import weibull_min  # type: ignore[import-untyped]
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from elign.lab.detection.data.base import Batches
from elign.lab.detection.models.detector import Detector
from elign.utils.errors import LatentError, NotFittedError, OptionError

_MARGIN = 0.01  # of the range of the energies: how far below the lowest one a distribution starts


def free_energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the Helmholtz free energy -T log Σ_c exp(y_c / T) of each row; low where a class is certain.

    Example:
        >>> free_energy(torch.zeros(1, 4)).item() == -torch.tensor(4.0).log().item()
        True
    """
    return -temperature * torch.logsumexp(logits / temperature, dim=1)


class UnknownByEnergy(nn.Module):
    """The probability that a region holds an unknown object, by the free energy of its known classes' logits.

    Energies of known and of unknown objects each get a shifted Weibull distribution; the probability of "unknown" is
    its density's share of both (CVPR 2021, Section 4.3). Logits must be those of the known classes alone: neither
    background nor "unknown". It needs regions whose true kind is known, from validation images; no test image.

    The paper fits the shift along with scale and shape. That likelihood has no maximum (it grows without end when the
    shift nears the lowest energy), so here the shift lies 1 % of the range of the energies below the lowest one.

    Args:
        temperature: Of the free energy.
    """

    known: Tensor
    unknown: Tensor

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise OptionError(f"temperature must be positive, not {temperature!r}")
        self.temperature = temperature
        # Shift, scale and shape of both; NaN until they are fitted.
        self.register_buffer("known", torch.full((3,), torch.nan, dtype=torch.float64))
        self.register_buffer("unknown", torch.full((3,), torch.nan, dtype=torch.float64))

    def fit(self, known: Tensor, unknown: Tensor) -> Self:
        """Learn both distributions.

        Args:
            known: Logits of regions with known objects, (N, classes).
            unknown: Logits of regions with unknown objects, (M, classes).

        Raises:
            LatentError: Of one kind there are no two regions with different, finite energies.
        """
        self.known.copy_(_fit(free_energy(known, self.temperature), "known"))
        self.unknown.copy_(_fit(free_energy(unknown, self.temperature), "unknown"))
        return self

    def forward(self, logits: Tensor) -> Tensor:
        """Return the probability of "unknown" for each region, (R,). Below all energies of both kinds it is 0."""
        if self.known.isnan().any():
            raise NotFittedError("UnknownByEnergy has no distributions yet; call fit(known, unknown) first")
        energies = free_energy(logits, self.temperature).double()
        surplus = _log_density(energies, self.unknown) - _log_density(energies, self.known)
        return surplus.sigmoid().nan_to_num(0.0).to(logits.dtype)


def _fit(energies: Tensor, kind: str) -> Tensor:
    values = energies.detach().to("cpu", torch.float64)
    if len(values) < 2 or not values.isfinite().all() or values.min() == values.max():
        raise LatentError(f"regions with {kind} objects must have at least two different, finite energies")
    shift = values.min() - _MARGIN * (values.max() - values.min())
    shape, _, scale = weibull_min.fit((values - shift).numpy(), floc=0)
    return torch.tensor([float(shift), float(scale), float(shape)], dtype=torch.float64)


def _log_density(energies: Tensor, parameters: Tensor) -> Tensor:
    """Return log(k / λ) + (k - 1) log(x / λ) - (x / λ)^k, with x the distance from the distribution's start."""
    shift, scale, shape = parameters
    inside = energies > shift
    distance = torch.where(inside, (energies - shift) / scale, 1.0)
    return torch.where(inside, (shape / scale).log() + (shape - 1) * distance.log() - distance**shape, -torch.inf)


MEASURES: Mapping[str, str] = {
    "energy": "ORE's rule: the free energy of the known classes' logits, under two Weibull distributions",
    "free-energy": "that energy alone, without distributions",
    "doubt": "one minus the highest probability of a known class",
    "output": "the probability of the head's own output for the unknown",
}
"""The scores that are compared, with their meaning."""


def unknown_metadata(detector: Detector, calibration: Batches, test: Batches) -> dict[str, Any]:
    """Return the area under the ROC curve of several scores of "unknown", as plain values for the metadata of a task.

    0.5 is guessing, 1 tells all objects of known classes from all others. The distributions of ORE's rule are fitted
    on training images whose unknown objects are annotated, as its authors do: it gets more than a detector in use has.

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
