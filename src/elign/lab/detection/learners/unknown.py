"""Objects that no class is known for yet: labels for them while learning, and telling them apart by energy (ORE).

K. J. Joseph et al., "Towards Open World Object Detection", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from elign.utils.errors import LatentError, NotFittedError, OptionError

_MARGIN = 0.01  # of the range of the energies: how far below the lowest one a distribution starts


def label_unknown(labels: Tensor, objectness: Tensor, counts: Sequence[int], *, unknown: int, top: int = 1) -> Tensor:
    """Call the background regions that look most like an object "unknown" (CVPR 2021, Section 4.2).

    Args:
        labels: Of the regions of all images, image after image, (R,); 0 is background.
        objectness: How much each looks like an object, (R,).
        counts: How many regions each image has.
        unknown: The label of unknown objects.
        top: How many regions of each image; fewer where there is less background.

    Returns:
        New labels, (R,).
    """
    labels = labels.clone()
    start = 0
    for count in counts:
        background = start + (labels[start : start + count] == 0).nonzero().squeeze(1)
        best = objectness[background].topk(min(top, len(background))).indices
        labels[background[best]] = unknown
        start += count
    return labels


def free_energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The Helmholtz free energy -T log Σ_c exp(y_c / T) of each row ; low where a class is certain.

    Example:
        >>> free_energy(torch.zeros(1, 4)).item() == -torch.tensor(4.0).log().item()
        True
    """
    return -temperature * torch.logsumexp(logits / temperature, dim=1)


class UnknownByEnergy(nn.Module):
    """How probable it is that a region holds an unknown object, by the free energy of its known classes' logits.

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
        """The probability of "unknown" for each region, (R,). Below all energies of both kinds it is 0."""
        if self.known.isnan().any():
            raise NotFittedError("UnknownByEnergy has no distributions yet; call fit(known, unknown) first")
        energies = free_energy(logits, self.temperature).double()
        surplus = _log_density(energies, self.unknown) - _log_density(energies, self.known)
        return surplus.sigmoid().nan_to_num(0.0).to(logits.dtype)


def _fit(energies: Tensor, kind: str) -> Tensor:
    from scipy.stats import weibull_min  # type: ignore[import-untyped]  # takes a second to import

    values = energies.detach().to("cpu", torch.float64)
    if len(values) < 2 or not values.isfinite().all() or values.min() == values.max():
        raise LatentError(f"regions with {kind} objects must have at least two different, finite energies")
    shift = values.min() - _MARGIN * (values.max() - values.min())
    shape, _, scale = weibull_min.fit((values - shift).numpy(), floc=0)
    return torch.tensor([float(shift), float(scale), float(shape)], dtype=torch.float64)


def _log_density(energies: Tensor, parameters: Tensor) -> Tensor:
    """Of a Weibull distribution: log(k / λ) + (k - 1) log(x / λ) - (x / λ)^k, with x the distance from its start."""
    shift, scale, shape = parameters
    inside = energies > shift
    distance = torch.where(inside, (energies - shift) / scale, 1.0)
    return torch.where(inside, (shape / scale).log() + (shape - 1) * distance.log() - distance**shape, -torch.inf)
