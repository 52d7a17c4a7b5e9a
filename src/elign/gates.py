"""Gates: which latents are aligned, and how strongly, where an aligner stands alone in front of a head. No labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.aligners.base import Aligner
from elign.utils.errors import LatentError, NotFittedError, OptionError
from elign.utils.extraction import logits_of, read_logits
from elign.utils.fitted import FittedModule, Ranges, Shapes, register
from elign.utils.tensors import (
    balanced_accuracy,
    check_labels,
    check_number,
    check_old_classes,
    check_rows,
    check_whole,
)

_MAX_STEPS = 50  # of Newton's method
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

Head = Callable[[Tensor], Any]
"""Latents to whatever the model's head returns."""


class Gate(FittedModule):
    """Base of all gates: `gate(z, head=..., aligner=...)` gives each row of z a weight from 0 (leave) to 1 (align).

    A gate may ask the head for its opinion of the unaligned latents, or the aligner for energies. A subclass gives
    `weights`, tensor operations only, so that it can be exported.

    Example:
        >>> import torch, elign
        >>> class Long(elign.Gate):                                       # a gate of your own
        ...     learns = False
        ...     def weights(self, z, head=None, aligner=None):
        ...         return z.norm(dim=-1) > 1
        >>> Long()(torch.tensor([[0.1, 0.2], [3.0, 4.0]]))
        tensor([False,  True])
    """

    needs_head: ClassVar[bool] = False
    """Whether the gate asks the head."""
    needs_energy: ClassVar[bool] = False
    """Whether the gate asks the aligner for energies."""

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Return weights of shape `z.shape[:-1]`: a bool mask, or floating point for a partial alignment."""
        self.require_fitted()
        name = type(self).__name__
        if self.needs_head and head is None:
            raise OptionError(f"{name} needs the head: attach it to a model, or call it with head=...")
        if self.needs_energy and aligner is None:
            raise OptionError(f"{name} needs the aligner: attach it together with one, or call it with aligner=...")
        if self.dim is not None and z.shape[-1:] != (self.dim,):
            raise LatentError(f"this {name} gate takes latents of dimension {self.dim}, got shape {tuple(z.shape)}")
        with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
            return self.weights(z.detach(), head, aligner)

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Do what `forward` does, without any check: tensor operations only."""
        raise NotImplementedError


@register
class Always(Gate):
    """Aligns every latent: for a model that now only sees old classes, or when drift is all that matters.

    Example:
        >>> import torch, elign
        >>> elign.Always()(torch.randn(3, 8))
        tensor([True, True, True])
    """

    learns = False

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take all rows."""
        return torch.ones(z.shape[:-1], dtype=torch.bool, device=z.device)


@register
class ByMask(Gate):
    """Aligns the rows that the caller names, when the caller knows which samples are old.

    With a mask made from test labels this is the paper's protocol: an oracle, to be called so wherever it is shown.

    Args:
        mask: One entry per row of the next batch: bool, or weights. Set `gate.mask` for each batch.

    Example:
        >>> import torch, elign
        >>> elign.ByMask(torch.tensor([True, False]))(torch.randn(2, 8))
        tensor([ True, False])
    """

    learns = False

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def config(self) -> dict[str, Any]:
        """Refuse: a mask belongs to one batch."""
        raise OptionError("a ByMask gate cannot be saved: its mask belongs to one batch")

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take the rows of the mask."""
        if self.mask.shape != z.shape[:-1]:
            raise LatentError(
                f"the mask of this ByMask gate has shape {tuple(self.mask.shape)}, but the batch has rows "
                f"{tuple(z.shape[:-1])}: set gate.mask for each batch"
            )
        return self.mask.to(z.device)


@register
class ByPrediction(Gate):
    """Aligns what the current head itself takes for an old class, before alignment.

    Args:
        old_classes: Number of old classes, if they are the head's first outputs; or their indices.
        soft: Weight each row by the probability (softmax) of the old classes instead of asking for the top one.
        logits: Takes the logits out of what the head returns. By default: a tensor itself, the entry "logits" of a
            mapping (or its only entry), the first entry of a tuple or list.

    Example:
        >>> import torch, elign
        >>> gate = elign.ByPrediction(old_classes=2)
        >>> logits = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0]])       # of two rows, 2 old classes and 1 new
        >>> gate(torch.randn(2, 8), head=lambda z: logits)
        tensor([ True, False])
    """

    learns = False
    needs_head = True
    _old: Tensor

    def __init__(
        self, old_classes: int | Sequence[int], *, soft: bool = False, logits: Callable[[Any], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.old_classes, old = check_old_classes(old_classes)
        if logits is not None and not callable(logits):
            raise OptionError(f"logits must be a function of the head's output, got {type(logits).__name__}")
        self.soft, self.logits = soft, logits
        self._most = max(old)
        # Not in files: it follows from the options. A buffer, so that an exported graph holds it once.
        with torch.inference_mode(False):
            self.register_buffer("_old", torch.tensor(list(dict.fromkeys(old)), device="cpu"), persistent=False)

    def config(self) -> dict[str, Any]:
        """Return the options; refuse if a function for logits, which no file can hold, is one of them."""
        if self.logits is not None:
            raise OptionError("a ByPrediction gate with logits=... cannot be saved: make it where it is used")
        return super().config()

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take rows whose top class is an old one, or the probability of all old classes."""
        assert head is not None  # noqa: S101  (`forward` and exports see to it)
        logits = (self.logits or logits_of)(head(z))
        if logits.shape[:-1] != z.shape[:-1]:
            raise LatentError(
                f"the head's logits {tuple(logits.shape)} do not have one row per latent {tuple(z.shape)}: attach to "
                "the layer that reads one latent for each row of logits"
            )
        if self._most >= logits.shape[-1]:
            raise OptionError(f"old_classes={self.old_classes!r} does not fit a head with {logits.shape[-1]} outputs")
        old = self._old.to(logits.device)
        if self.soft:
            # A head in half precision may give infinity, of which a softmax is NaN.
            logits = logits.float().clamp(max=torch.finfo(torch.float32).max)
            return logits.softmax(dim=-1).index_select(-1, old).sum(dim=-1).clamp(0, 1)
        return (logits.argmax(dim=-1, keepdim=True) == old).any(dim=-1)


@register
class ByEnergy(Gate):
    """Aligns latents whose energy is below a threshold: they look like the previous model's.

    The threshold is a quantile of the energies of new-task latents or, if there are latents of old samples (exemplars),
    the value that tells the two apart best; nothing is aligned if no value does better than chance.

    Args:
        quantile: The share of new-task latents that falls below the threshold when only those are given.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(256, 8)
        >>> aligner = elign.EnergyAligner(iterations=100).fit_latents(z - 2, z)
        >>> gate = elign.ByEnergy(quantile=0.05).fit(aligner, z_new=z)
        >>> round(gate(z, aligner=aligner).float().mean().item(), 2)
        0.05
    """

    needs_energy = True
    infinite = ("threshold",)
    shapes: ClassVar[Shapes] = {"threshold": ""}
    threshold: Tensor

    def __init__(self, *, quantile: float = 0.05) -> None:
        super().__init__()
        self.quantile = check_number(quantile, "quantile", most=1)

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


@register
class ByProbe(Gate):
    """Aligns what a logistic probe on the latents takes for old; needs latents of some old samples (exemplars).

    Args:
        penalty: Weight of the squared norm of the probe's coefficients (on standardised latents).
        soft: Weight each row by its probability of being old instead of a yes or no at one half.

    Example:
        >>> import torch, elign
        >>> z_old, z_new = torch.randn(50, 8) + 2, torch.randn(200, 8) - 2
        >>> gate = elign.ByProbe().fit(z_old, z_new)
        >>> gate(z_old).float().mean().item() > 0.9
        True
    """

    shapes: ClassVar[Shapes] = {"weight": "D", "bias": ""}
    weight: Tensor
    bias: Tensor

    def __init__(self, *, penalty: float = 1e-2, soft: bool = False) -> None:
        super().__init__()
        self.penalty, self.soft = check_number(penalty, "penalty", positive=True), soft

    def fit(self, z_old: Tensor, z_new: Tensor) -> Self:
        """Learn to tell old from new latents of the current model; both groups weigh the same, whatever their sizes."""
        check_rows(z_old, "z_old")
        check_rows(z_new, "z_new")
        if z_old.shape[1] != z_new.shape[1]:
            raise LatentError(f"z_old has dimension {z_old.shape[1]}, z_new {z_new.shape[1]}: same model, same layer?")
        with torch.autocast(z_old.device.type, enabled=False):
            weight, bias = fit_logistic(z_old.detach(), z_new.detach().to(z_old.device), penalty=self.penalty)
        self._set(z_new.shape[1], weight=weight, bias=bias)
        return self

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Take rows on the old side of the probe, or the probability of it."""
        score = z.float() @ self.weight.to(z.device, torch.float32) + self.bias.to(z.device)
        return score.sigmoid() if self.soft else score > 0


def fit_logistic(z_old: Tensor, z_new: Tensor, *, penalty: float) -> tuple[Tensor, Tensor]:
    """Return coefficients and intercept of `P(old | z) = sigmoid(w.z + b)`.

    Minimises `0.5 * mean_old log(1 + exp(-s)) + 0.5 * mean_new log(1 + exp(s)) + penalty / 2 * ||v||^2` with
    `s = v.x + c` on standardised latents x, so that a handful of exemplars counts as much as a whole task. Convex and
    small (D + 1 unknowns): Newton's method with a halved step where needed, in float64.
    """
    # On the CPU, since not every accelerator has float64; the problem is small.
    z = torch.cat([z_old.cpu(), z_new.cpu()]).double()
    center, scale = z.mean(dim=0), z.std(dim=0, correction=0)
    # A dimension that varies by no more than its own rounding, or too little for a weight in float32, says nothing: an
    # infinite scale gives it no weight.
    scale = scale.masked_fill(scale <= (1e-9 * center.abs()).clamp(min=1e-30), torch.inf)
    x = torch.cat([(z - center) / scale, z.new_ones(len(z), 1)], dim=1)
    # s enters with the sign of the group: rows of new latents are negated once.
    x[len(z_old) :].neg_()
    share = torch.cat([z.new_full((len(z_old),), 0.5 / len(z_old)), z.new_full((len(z_new),), 0.5 / len(z_new))])
    ridge = torch.full_like(x[0], penalty)
    # The intercept is all but free: a trace of penalty keeps the system solvable when one constant explains all.
    ridge[-1] = 1e-9

    def objective(v: Tensor) -> Tensor:
        return (share * F.softplus(-(x @ v))).sum() + 0.5 * (ridge * v * v).sum()

    v = torch.zeros_like(ridge)
    for _ in range(_MAX_STEPS):
        p = torch.sigmoid(-(x @ v))
        gradient = -(x.t() @ (share * p)) + ridge * v
        if gradient.abs().max() < 1e-9:
            break
        curvature = (x.t() * (share * p * (1 - p))) @ x + torch.diag(ridge)
        step, before = torch.linalg.solve(curvature, gradient), objective(v)
        while objective(v - step) > before and step.abs().max() > 1e-12:
            step = step / 2
        v = v - step
    weight = v[:-1] / scale
    return weight.float(), (v[-1] - (weight * center).sum()).float()


@register
class FixedStrength(Gate):
    """Aligns every latent, but only as far as serves all classes: no sample is told from another.

    `fit` looks at training data only. With latents of old classes among them (exemplars), the strength is the one with
    the highest balanced accuracy. Without, it is the largest one that leaves the accuracy on the new classes nearly as
    it was: what alignment costs the new classes can be seen, what it does to old ones cannot.

    Args:
        shares: The strengths to choose from: 0 aligns nothing, 1 all the way.
        tolerance: How much of the new classes' accuracy may be lost if there are no exemplars.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> z, labels = torch.eye(4).repeat(10, 1), torch.arange(4).repeat(10)
        >>> head = nn.Identity()                                     # a latent is its own logits
        >>> drifted = z + 2.2 * torch.tensor([0.0, 0.0, 1.0, 1.0])     # everything looks like the new classes 2 and 3
        >>> aligner = elign.MeanShift().fit_latents(z, drifted)
        >>> elign.FixedStrength().fit(aligner, head, drifted, labels, old_classes=2).strength
        tensor(0.6000)
    """

    ranges: ClassVar[Ranges] = {"strength": (0.0, 1.0)}
    shapes: ClassVar[Shapes] = {"strength": ""}
    strength: Tensor

    def __init__(self, *, shares: Sequence[float] = _SHARES, tolerance: float = 0.02) -> None:
        super().__init__()
        given = [*shares] if isinstance(shares, Iterable) else []
        self.shares = tuple(sorted(float(check_number(share, "each of shares", most=1)) for share in given))
        if not self.shares:
            raise OptionError(f"shares must be numbers in [0, 1], got {shares!r}")
        self.tolerance = check_number(tolerance, "tolerance", most=1)

    def fit(self, aligner: Aligner, head: Head, z: Tensor, labels: Tensor, *, old_classes: int) -> Self:
        """Choose the strength with latents `z` `(N, D)` of training data under the current model, and their classes.

        They are of new classes and, if any, of exemplars of old ones; the first `old_classes` outputs are the old ones.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        old = check_whole(old_classes, "old_classes", least=0)
        # In a small type, a comparison with `old` would be one of that type.
        labels = labels.long().to(z.device)
        if not (labels >= old).any():
            raise LatentError(f"there is no latent of a new class: no label from {old} on")
        if aligner.direction == "forward":
            raise OptionError('FixedStrength needs an aligner that was fitted with direction="backward"')
        outputs = read_logits(head, z).shape[-1]
        if int(labels.max()) >= outputs:
            raise LatentError(f"there is a label {int(labels.max())}, but the head has {outputs} outputs")
        moved = aligner.align(z, generator=torch.Generator().manual_seed(0))
        found = [_accuracy(head, torch.lerp(z, moved, share), labels) for share in self.shares]
        if (labels < old).any():
            best = found.index(max(found))
        else:
            least = (1 - self.tolerance) * _accuracy(head, z, labels)
            best = max((number for number, value in enumerate(found) if value >= least), default=0)
        self._set(z.shape[1], strength=torch.tensor(self.shares[best], device=z.device))
        return self

    def weights(self, z: Tensor, head: Head | None = None, aligner: Aligner | None = None) -> Tensor:
        """Return the strength for every row."""
        return self.strength.to(z.device).expand(z.shape[:-1])


def _accuracy(head: Head, z: Tensor, labels: Tensor) -> float:
    return balanced_accuracy(read_logits(head, z).argmax(dim=-1) == labels, labels)
