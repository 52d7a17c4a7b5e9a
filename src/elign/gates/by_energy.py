"""A gate that asks the energy of a latent: low where the previous model put its latents."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.gates.base import Gate, Head
from elign.utils.errors import NotFittedError, OptionError
from elign.utils.fitted import register
from elign.utils.tensors import check_rows


@register
class ByEnergy(Gate):
    """Aligns latents whose energy is below a threshold: they look like the previous model's.

    The threshold is a quantile of the energies of new-task latents or, if there are latents of old samples (exemplars),
    the value that tells the two apart best; nothing is aligned if no value does better than chance.

    Args:
        quantile: The share of new-task latents that falls below the threshold when only those are given.

    Example:
        >>> import torch
        >>> from elign import ByEnergy, EnergyAligner
        >>> z = torch.randn(256, 8)
        >>> aligner = EnergyAligner(iterations=100).fit_latents(z - 2, z)
        >>> gate = ByEnergy(quantile=0.05).fit(aligner, z_new=z)
        >>> round(gate(z, aligner=aligner).float().mean().item(), 2)
        0.05
    """

    how_to_fit = "fit(...)"
    needs_energy = True
    infinite = ("threshold",)
    threshold: Tensor

    def __init__(self, *, quantile: float = 0.05) -> None:
        super().__init__()
        if not 0 <= quantile <= 1:
            raise OptionError(f"quantile must be in [0, 1], got {quantile!r}")
        self.quantile = quantile

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("threshold", torch.zeros(()))

    def fit(self, aligner: Aligner, z_new: Tensor, z_old: Tensor | None = None) -> Self:
        """Choose the threshold from the current model's latents `(N, D)` of new data and, if any, of old samples."""
        check_rows(z_new, "z_new")
        new = _energies(aligner, z_new)
        if z_old is None:
            # On the CPU, since not every accelerator has float64 or sorts as many rows.
            threshold = torch.quantile(new.cpu().double(), self.quantile).to(new)
        else:
            check_rows(z_old, "z_old")
            threshold = _best_threshold(_energies(aligner, z_old).to(new.device), new).to(new.device)
        self._set(z_new.shape[-1], threshold=threshold)
        return self

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take rows of low energy."""
        return _energies(aligner, z) < self.threshold.to(z.device)


def _energies(aligner: nn.Module | None, z: Tensor) -> Tensor:
    energy = getattr(aligner, "energy", None)
    if not isinstance(energy, nn.Module) or not getattr(aligner, "fitted", True):
        raise NotFittedError("ByEnergy needs a fitted EnergyAligner; other aligners have no energy")
    weight = next(energy.parameters())
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        result: Tensor = energy(z.to(weight.device, weight.dtype))
    return result.to(z.device)


def _best_threshold(old: Tensor, new: Tensor) -> Tensor:
    """Return the energy that maximises the mean of 'old below it' and 'new not below it'."""
    values, order = torch.cat([old, new]).cpu().sort()
    weights = values.new_tensor([1 / len(old), -1 / len(new)], dtype=torch.float32)
    share = weights.repeat_interleave(order.new_tensor([len(old), len(new)])).double()
    gain = share[order].cumsum(dim=0)
    # No threshold falls between equal values.
    gain[:-1][values[1:] == values[:-1]] = -math.inf
    best = int(gain.argmax())
    # Energies that do not tell the two apart are no reason to align anything. (Sums of shares end in rounding, not 0.)
    if gain[best] < 1e-6:
        return torch.full_like(values[best], -math.inf)
    middle = (values[best] + values[best + 1]) / 2
    return middle if middle > values[best] else values[best + 1]
