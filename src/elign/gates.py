"""Gates: which latents are aligned, and how strongly. A gate gives one weight per row, 0 (leave it) to 1 (align it).

No gate sees a label. Gates may ask the head for its opinion of the unaligned latents, or the aligner for energies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from elign.aligner import Aligner
from elign.checks import check_rows, whole_numbers
from elign.errors import LatentError, NotFittedError, OptionError
from elign.head_outputs import logits_of
from elign.probe import fit_logistic
from elign.storage import Storable

Head = Callable[[Tensor], Any]
"""Latents to whatever the model's head returns."""


class Gate(Storable):
    """Base of all gates: `gate(z, head=..., aligner=...)` gives a weight in [0, 1] for each row of z.

    Example:
        >>> import torch
        >>> from elign import Gate
        >>> class Long(Gate):                                       # a gate of one's own
        ...     learns = False
        ...     def forward(self, z, *, head=None, aligner=None):
        ...         return z.norm(dim=-1) > 1
        >>> Long()(torch.tensor([[0.1, 0.2], [3.0, 4.0]]))
        tensor([False,  True])
    """

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Weights of shape `z.shape[:-1]`: a bool mask, or floating point for a soft blend."""
        raise NotImplementedError


class Always(Gate):
    """Aligns every latent. Right for a model that now only sees old classes, or when drift is all that matters.

    Example:
        >>> import torch
        >>> from elign import Always
        >>> Always()(torch.randn(3, 8))
        tensor([True, True, True])
    """

    learns = False

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """All rows."""
        return torch.ones(z.shape[:-1], dtype=torch.bool, device=z.device)


class ByMask(Gate):
    """Aligns the rows that the caller names, when the caller knows which samples are old.

    With a mask made from test labels this is the paper's protocol: an oracle, to be called so wherever it is shown.

    Args:
        mask: One entry per row of the next batch: bool, or weights. Set `gate.mask` anew for each batch.

    Example:
        >>> import torch
        >>> from elign import ByMask
        >>> ByMask(torch.tensor([True, False]))(torch.randn(2, 8))
        tensor([ True, False])
    """

    learns = False

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def config(self) -> dict[str, Any]:
        """Refuses: a mask belongs to one batch."""
        raise OptionError("a ByMask gate cannot be saved: its mask belongs to one batch")

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """The rows of the mask."""
        if self.mask.shape != z.shape[:-1]:
            raise LatentError(
                f"the mask of this ByMask gate has shape {tuple(self.mask.shape)}, but the batch has rows "
                f"{tuple(z.shape[:-1])}: set gate.mask for each batch"
            )
        return self.mask.to(z.device)


class ByPrediction(Gate):
    """Aligns what the current head itself takes for an old class, before alignment.

    Args:
        known: Number of old classes, if they are the head's first outputs; or the indices of the old classes' outputs
            (not numbers of classes after each task, as a `Blend` takes them).
        soft: Weight each row by the probability (softmax) of the old classes instead of asking only for the top one.
        logits: Takes the logits out of what the head returns. By default: a tensor as it is, the entry "logits" of a
            mapping (or its only entry), the first entry of a tuple or list.

    Example:
        >>> import torch
        >>> from elign import ByPrediction
        >>> gate = ByPrediction(known=2)
        >>> logits = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0]])       # of two rows, 2 old classes and 1 new
        >>> gate(torch.randn(2, 8), head=lambda z: logits)
        tensor([ True, False])
    """

    learns = False

    def __init__(
        self, known: int | list[int], *, soft: bool = False, logits: Callable[[Any], Tensor] | None = None
    ) -> None:
        super().__init__()
        try:
            self.known: int | list[int] = whole_numbers(known)
        except TypeError:
            self.known = []
        old = list(range(self.known)) if isinstance(self.known, int) else self.known
        if not old or min(old) < 0:
            raise OptionError(f"known must be a number of old classes >= 1, or their indices, got {known!r}")
        self.soft = soft
        self._old = old
        self._logits = logits or logits_of

    def config(self) -> dict[str, Any]:
        """The options this gate was made with; refuses if a function for logits, which no file can hold, is one."""
        if self._logits is not logits_of:
            raise OptionError("a ByPrediction gate with logits=... cannot be saved: make it anew where it is used")
        return {"known": self.known, "soft": self.soft}

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Rows whose top class is an old one, or the probability of all old classes."""
        if head is None:
            raise OptionError("ByPrediction needs the head: attach it to a model, or call it with head=...")
        with torch.no_grad():
            logits = self._logits(head(z))
        if logits.shape[:-1] != z.shape[:-1]:
            raise LatentError(
                f"the head's logits {tuple(logits.shape)} do not have one row per latent {tuple(z.shape)}: attach to "
                "the layer that reads one latent for each row of logits"
            )
        if max(self._old) >= logits.shape[-1]:
            raise OptionError(f"known={self.known!r} does not fit a head with {logits.shape[-1]} outputs")
        old = torch.tensor(self._old, device=logits.device)
        if self.soft:
            return logits.float().softmax(dim=-1)[..., old].sum(dim=-1).clamp(0, 1)
        return torch.isin(logits.argmax(dim=-1), old)


class ByEnergy(Gate):
    """Aligns latents whose energy is below a threshold: they look like the previous model's.

    Call `calibrate` once, on latents of the *current* model: the threshold is a quantile of the energies of new-task
    latents or, when latents of old samples (exemplars) exist, the value that tells the two apart best; none is
    aligned where no value does better than chance.

    Args:
        quantile: The share of new-task latents that falls below the threshold when only those are given.

    Example:
        >>> import torch
        >>> from elign import ByEnergy, EnergyAligner
        >>> z = torch.randn(256, 8)
        >>> aligner = EnergyAligner(iterations=100).fit_latents(z - 2, z)
        >>> gate = ByEnergy(quantile=0.05).calibrate(aligner, z_new=z)
        >>> round(gate(z, aligner=aligner).float().mean().item(), 2)
        0.05
    """

    how_to_fit = "calibrate(...)"
    threshold: Tensor

    def __init__(self, *, quantile: float = 0.05) -> None:
        super().__init__()
        if not 0 <= quantile <= 1:
            raise OptionError(f"quantile must be in [0, 1], got {quantile!r}")
        self.quantile = quantile

    def config(self) -> dict[str, Any]:
        """The options this gate was made with."""
        return {"quantile": self.quantile}

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("threshold", torch.zeros(()))

    def calibrate(self, aligner: Aligner, z_new: Tensor, z_old: Tensor | None = None) -> Self:
        """Choose the threshold from latents `(N, D)` of new-task data and, where there are some, of old samples."""
        for z, name in ((z_new, "z_new"), (z_old, "z_old")):
            if z is not None:
                check_rows(z, name)
        new = _energies(aligner, z_new)
        if z_old is None:
            # On the CPU, since not every accelerator has float64 or sorts as many rows.
            threshold = torch.quantile(new.cpu().double(), self.quantile).to(new)
        else:
            threshold = _best_threshold(_energies(aligner, z_old).to(new.device), new).to(new.device)
        with torch.inference_mode(False):
            self._build(z_new.shape[-1])
            self.threshold = threshold.clone()
        return self

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Rows of low energy."""
        self.require_fitted()
        if aligner is None:
            raise OptionError("ByEnergy needs the aligner: attach it together with one, or call it with aligner=...")
        return _energies(aligner, z) < self.threshold.to(z.device)


class ByProbe(Gate):
    """Aligns what a logistic probe on the latents takes for old; needs latents of some old samples (exemplars).

    Args:
        penalty: Weight of the squared norm of the probe's coefficients (on standardised latents).
        soft: Weight each row by its probability of being old instead of a yes or no at one half.

    Example:
        >>> import torch
        >>> from elign import ByProbe
        >>> z_old, z_new = torch.randn(50, 8) + 2, torch.randn(200, 8) - 2
        >>> gate = ByProbe().fit(z_old, z_new)
        >>> gate(z_old).float().mean().item() > 0.9
        True
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, *, penalty: float = 1e-2, soft: bool = False) -> None:
        super().__init__()
        if not (math.isfinite(penalty) and penalty > 0):
            raise OptionError(f"penalty must be a finite number > 0, got {penalty!r}")
        self.penalty = penalty
        self.soft = soft

    def config(self) -> dict[str, Any]:
        """The options this gate was made with."""
        return {"penalty": self.penalty, "soft": self.soft}

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("weight", torch.zeros(dim))
        self.register_buffer("bias", torch.zeros(()))

    def fit(self, z_old: Tensor, z_new: Tensor) -> Self:
        """Learn to tell old from new latents of the current model; both groups weigh the same, whatever their sizes."""
        for z, name in ((z_old, "z_old"), (z_new, "z_new")):
            check_rows(z, name)
        if z_old.shape[1] != z_new.shape[1]:
            raise LatentError(f"z_old has dimension {z_old.shape[1]}, z_new {z_new.shape[1]}: same model, same layer?")
        with torch.autocast(z_old.device.type, enabled=False):
            weight, bias = fit_logistic(z_old.detach(), z_new.detach().to(z_old.device), penalty=self.penalty)
        with torch.inference_mode(False):
            self._build(z_new.shape[1])
            self.weight, self.bias = weight.clone(), bias.clone()
        return self

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Rows on the old side of the probe, or the probability of it."""
        dim = self.require_fitted()
        if z.shape[-1:] != (dim,):
            raise LatentError(f"this ByProbe gate takes latents of dimension {dim}, got shape {tuple(z.shape)}")
        with torch.autocast(z.device.type, enabled=False):
            score = z.detach().float() @ self.weight.to(z.device, torch.float32) + self.bias.to(z.device)
        return score.sigmoid() if self.soft else score > 0


def _energies(aligner: Aligner, z: Tensor) -> Tensor:
    energy = getattr(aligner, "energy", None)
    if energy is None or not aligner.fitted:
        raise NotFittedError("ByEnergy needs a fitted EnergyAligner; other aligners have no energy")
    weight = next(energy.parameters())
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        result: Tensor = energy(z.detach().to(weight.device, weight.dtype))
    return result.to(z.device)


def _best_threshold(old: Tensor, new: Tensor) -> Tensor:
    """The energy that maximises the mean of 'old below it' and 'new not below it'."""
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
