"""A linear head that is retrained on exemplars, on samples of class statistics, or on both."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from elign.classifiers.base import Given, RefittedClassifier, places_in_order
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.fitted import Shapes, register
from elign.utils.tensors import check_number, check_seed, check_whole, compute_dtype, product, standard_normal

_MEMORY, _HALVINGS, _TOLERANCE = 10, 20, 1e-6  # of the descent: pairs kept, step sizes tried, relative gain to stop at
_NARROWEST = 1e-3  # deviation of a dimension, relative to the others': a dead unit must not get a huge weight
_EXACT_UP_TO = 10**7  # multiplications for each iteration, up to which these are in float64
_LARGE = 1e15  # latents whose squares may overflow in float32
_NO_WIDTH = 1e-30  # weights for narrower latents would be infinite
_MOST_STEPS, _MOST_SAMPLES = 100_000, 1_000_000  # options also come from files


@register
class LinearHead(RefittedClassifier):
    """Multinomial logistic regression on latents, balanced over classes: what most users write themselves.

    Minimises `mean_c mean_{i in c} -log p(c | z_i) + weight_decay / 2 ||W - W_0||^2` for latents that are scaled to
    variance 1 in each dimension; W_0 are the weights of the model's own head, or 0. L-BFGS takes no learning rate and
    gives the same weights on every run. A class with statistics and labelled latents gets half of its weight from each.
    Samples have the covariance `(1-b) S_c + b v I` with b = `smoothing` and v the mean variance: transported
    covariances are too narrow in some directions, and a head would take that for a difference between classes.

    Args:
        steps: Most iterations of L-BFGS.
        weight_decay: Strength of the pull towards W_0.
        samples_per_class: Number of samples of statistics, and most labelled latents, used for each class.
        smoothing: b, 0 to 1.
        seed: Of the samples.

    Attributes:
        weight: (classes, D) and `bias` (classes,): scores are `z W' + bias`.
        counts: (classes,) number of latents behind each row; 0 for a class without data.

    Example:
        >>> import torch
        >>> from elign import ClassStatistics, LinearHead
        >>> z, labels = torch.tensor([[0.0, 1.0], [0.0, 3.0], [2.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 0, 1, 1])
        >>> LinearHead().fit(z=z, labels=labels)(z).argmax(dim=1)
        tensor([0, 0, 1, 1])
        >>> LinearHead().fit(ClassStatistics().update(z, labels))(z).argmax(dim=1)
        tensor([0, 0, 1, 1])
    """

    rows_of: ClassVar[str] = "weight"
    shapes: ClassVar[Shapes] = {"weight": "RD", "bias": "R"}
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        *,
        steps: int = 50,
        weight_decay: float = 1e-3,
        samples_per_class: int = 200,
        smoothing: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.steps = check_whole(steps, "steps", least=1, most=_MOST_STEPS)
        self.weight_decay = check_number(weight_decay, "weight_decay", positive=True)
        self.smoothing = check_number(smoothing, "smoothing", most=1)
        self.samples_per_class = check_whole(samples_per_class, "samples_per_class", least=1, most=_MOST_SAMPLES)
        self.seed = check_seed(seed)

    def _learn(self, given: Given) -> None:
        parts = [] if given.labelled is None else [self._drawn(*given.labelled)]
        parts += [] if given.statistics is None else [self._sampled(given.statistics)]
        like = parts[0][0]
        rows = torch.cat([part.to(like) for part, _ in parts])
        labels = torch.cat([part.to(like.device) for _, part in parts])
        # Each part of a class, then each class, has the same weight.
        weights = torch.cat([1 / torch.bincount(part)[part].to(like) for _, part in parts])
        counts = torch.bincount(labels, minlength=given.classes)
        weights = weights / torch.zeros_like(counts, dtype=like.dtype).index_add_(0, labels, weights)[labels]
        self.rows = len(counts)
        with torch.no_grad(), torch.autocast(like.device.type, enabled=False):
            weight, bias = self._trained(rows, labels, weights / weights.sum(), given.head)
        self._set(rows.shape[1], weight=weight.to(like), bias=bias.to(like), counts=counts)

    def _drawn(self, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return at most `samples_per_class` labelled latents of each class."""
        labels = labels.cpu().long()
        shuffled = torch.randperm(len(z), generator=torch.Generator().manual_seed(self.seed), device="cpu")
        order = shuffled[labels[shuffled].argsort(stable=True)]
        kept = order[places_in_order(labels[order]) < self.samples_per_class].sort().values
        return z[kept.to(z.device)].to(compute_dtype(z)), labels[kept].to(z.device)

    def _sampled(self, statistics: ClassStatistics) -> tuple[Tensor, Tensor]:
        """Return samples of all classes of statistics, smoothed."""
        generator = torch.Generator().manual_seed(self.seed)
        z, labels = statistics.sample(self.samples_per_class, generator)
        means = statistics.means.repeat_interleave(self.samples_per_class, dim=0)
        variance, b = float(statistics.pooled().diagonal().mean()), self.smoothing
        noise = standard_normal(z.shape, z, generator)
        return means + math.sqrt(1 - b) * (z - means) + math.sqrt(b * variance) * noise, labels

    def _trained(self, z: Tensor, labels: Tensor, weights: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        """Return weight and bias for all outputs; those of classes without data are 0."""
        present, targets = torch.unique(labels, return_inverse=True)
        if z.numel() * len(present) <= _EXACT_UP_TO or z.abs().amax() > _LARGE:
            # On the CPU, since not every accelerator has float64.
            z, weights, present, targets = z.cpu().double(), weights.cpu().double(), present.cpu(), targets.cpu()
        center = weights @ z
        widths = (weights @ (z - center).square()).sqrt()
        typical = widths.square().mean().sqrt()
        widths = widths.clamp(min=_NARROWEST * float(typical)) if typical > _NO_WIDTH else torch.ones_like(widths)
        x = torch.cat([(z - center) / widths, torch.ones_like(z[:, :1])], dim=1)
        start = torch.zeros(self.rows, x.shape[1], dtype=x.dtype, device=x.device)
        if isinstance(head, nn.Linear) and head.in_features == z.shape[1]:
            own = head.weight.detach().to(z)[: self.rows]
            bias = own.new_zeros(len(own)) if head.bias is None else head.bias.detach().to(z)[: self.rows]
            start[: len(own)] = torch.cat([own * widths, (bias + own @ center).unsqueeze(1)], dim=1)
        start = start[present]
        places = torch.arange(len(x), device=x.device)

        def objective(w: Tensor) -> tuple[Tensor, Tensor]:
            """Return the loss and its gradient; the bias is not pulled."""
            pull = self.weight_decay * (w - start)
            pull[:, -1] = 0
            logits = x @ w.t()
            logits -= logits.amax(dim=1, keepdim=True)
            own = logits[places, targets]
            # In place: new memory would take most of the time.
            odds = logits.exp_()
            total = odds.sum(dim=1)
            loss = weights @ (total.log() - own) + (pull * (w - start)).sum() / 2
            odds *= (weights / total).unsqueeze(1)
            odds[places, targets] -= weights
            return loss, odds.t() @ x + pull

        found = _minimised(objective, start, self.steps)
        weight, bias = z.new_zeros(self.rows, z.shape[1]), z.new_zeros(self.rows)
        # Fold the scale of the latents into the weights.
        weight[present] = found[:, :-1] / widths
        bias[present] = found[:, -1] - weight[present] @ center
        return weight, bias

    def _row_scores(self, rows: Tensor) -> Tensor:
        return product(rows, self.weight.to(rows).t()) + self.bias.to(rows)


def _minimised(objective: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor, steps: int) -> Tensor:
    """Minimise by L-BFGS with halved steps (Nocedal and Wright, 2006, algorithm 7.5).

    Written by hand: the first optimizer of a process makes torch import its compiler, which takes seconds.
    """
    loss, gradient = objective(x)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(steps):
        direction = -_scaled(gradient, kept)
        slope, step = (gradient * direction).sum(), 1.0
        for _ in range(_HALVINGS):
            new_loss, new_gradient = objective(x + step * direction)
            if new_loss <= loss + 1e-4 * step * slope:
                break
            step /= 2
        else:
            return x  # rounding hides any further descent
        moved, turned = step * direction, new_gradient - gradient
        x, gained = x + moved, loss - new_loss
        loss, gradient = new_loss, new_gradient
        curvature = (moved * turned).sum()
        if curvature > 0:
            kept = [*kept[1 - _MEMORY :], (moved, turned, curvature)]
        if gained <= _TOLERANCE * loss.abs():
            return x
    return x


def _scaled(gradient: Tensor, kept: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return the gradient times the estimate of the inverse Hessian."""
    if not kept:
        return gradient / gradient.square().sum().sqrt().clamp(min=1)
    result = gradient.clone()
    shares: list[Tensor] = []
    for moved, turned, curvature in reversed(kept):
        shares.append((moved * result).sum() / curvature)
        result -= shares[-1] * turned
    result *= kept[-1][2] / kept[-1][1].square().sum()
    for (moved, turned, curvature), share in zip(kept, reversed(shares), strict=True):
        result += (share - (turned * result).sum() / curvature) * moved
    return result
