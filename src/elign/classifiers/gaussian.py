"""Gaussian classes: regularised discriminant analysis, from linear (LDA) to quadratic (QDA)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.classifiers.base import Given, MeansClassifier
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.errors import LatentError, OptionError
from elign.utils.fitted import Ranges, register
from elign.utils.tensors import compute_dtype, product, rounded

_NO_SPREAD = 1e-12  # mean variance within classes, relative to the squared length of means, that is rounding
_LEAST_VARIANCE, _FARTHEST = 1e-50, 1e36  # beyond these, float32 holds neither weights nor squared distances
_BLOCK = 1 << 18  # whitened numbers to compute at one time, with a covariance for each class: they fit into a cache
_WIDTH = 4096  # the same for each latent in a graph, which does not know how many latents there will be

# What `auto` stands for: chosen on the development seed of benchmarks/panel.
_OWN_SHARE, _SHRINKAGE, _WIDE_SHRINKAGE, _WIDE = 0.2, 0.1, 0.3, 256

Dial = float | Literal["auto"]


@register
class Gaussian(MeansClassifier):
    """Scores classes by their Gaussian densities: regularised discriminant analysis (Friedman, 1989).

    With the covariance `S_c` of class c, the covariance S within classes (pooled by counts) and its mean variance
    `v = trace(S) / D`:

    - `Sigma_c = (1 - b) ((1 - a_c) S_c + a_c S) + b v I`, a_c = a = `shared`, b = `shrinkage`;
    - `score_c = -1/2 (z - m_c)' Sigma_c^-1 (z - m_c) - 1/2 log det Sigma_c`.

    a = 1 is Fisher's linear discriminant (LDA): one covariance, so that scores are linear in z. a = 0 is quadratic
    (QDA). b = 1 is the nearest mean. All classes have the same prior. Scores leave out terms that all classes have in
    common: the highest score is 0, and their softmax gives the probabilities of the classes. Statistics and labelled
    latents of one class are merged.

    `normalize=True` classifies the directions of latents: they, and samples of statistics, are scaled to length 1.
    Scores are then in units of v, so that they are of the size of cosines; with a = 1, `-1/2 z' Sigma^-1 z` is left out
    and nothing else.

    Args:
        shared: a, 0 to 1. `auto` is 1 if covariances are not full, else `a_c = 1 - 0.2 n_c / (n_c + D)` for a class
            with n_c latents: few latents say little of a covariance.
        shrinkage: b, 0 to 1. `auto` is 0.1 where classes have their own covariance; with one for all, 0.3 from
            dimension 256 on and 0.1 below, or the estimate of Chen et al. (OAS, 2010) if there are so few latents that
            it is larger.
        normalize: Whether to classify directions.

    Attributes:
        means: (classes, D), of directions if `normalize`.
        counts: (classes,) number of latents behind each mean; 0 for a class without data.
        fitted_rows: (classes,) how many of these were given as labelled latents.
        own_shares: (classes,) `1 - a_c` in use.
        chosen_shrinkage: b in use.
        center: (D,) origin for linear scores.
        whitening: (1 or classes, D, D) W with `W W' = Sigma^-1`.
        weights: (classes, D) slopes of linear scores; none with a covariance for each class.
        biases: (classes,) constant terms, `scale` the factor v or 1.

    Example:
        >>> import torch
        >>> from elign import Gaussian, NearestMean
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(200) % 2                       # two classes differ in the second number alone
        >>> noise = torch.randn(200, 1, generator=generator)
        >>> z = torch.cat([2 * noise, 0.2 * labels.unsqueeze(1) - 0.1, torch.ones(200, 1)], dim=1)
        >>> def accuracy(classifier):
        ...     return float((classifier.fit(z=z, labels=labels)(z).argmax(dim=1) == labels).float().mean())
        >>> accuracy(Gaussian(shrinkage=0.01)), accuracy(NearestMean()) < 0.9
        (1.0, True)
    """

    ranges: ClassVar[Ranges] = {
        **MeansClassifier.ranges,
        "own_shares": (0.0, 1.0),
        "chosen_shrinkage": (0.0, 1.0),
        "scale": (1e-45, math.inf),
    }
    own_shares: Tensor
    chosen_shrinkage: Tensor
    center: Tensor
    whitening: Tensor
    weights: Tensor
    biases: Tensor
    scale: Tensor

    def __init__(self, *, shared: Dial = "auto", shrinkage: Dial = "auto", normalize: bool = False) -> None:
        super().__init__()
        for name, dial in (("shared", shared), ("shrinkage", shrinkage)):
            if dial != "auto" and (isinstance(dial, str) or not 0 <= dial <= 1):
                raise OptionError(f'{name} must be in [0, 1], or "auto", got {dial!r}')
        self.shared: Dial = shared
        self.shrinkage: Dial = shrinkage
        self.normalize = normalize
        self._matrices = 1

    def _shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        return super()._shapes(dim) | {
            "own_shares": (self.rows,),
            "chosen_shrinkage": (),
            "center": (dim,),
            "whitening": (self._matrices, dim, dim),
            "weights": (self.rows if self._matrices == 1 else 0, dim),
            "biases": (self.rows,),
            "scale": (),
        }

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # Options may say "auto", so only the tensor tells whether there is one covariance or one for each class.
        held = state_dict.get(f"{prefix}whitening")
        if held is not None and held.ndim == 3 and len(held) != self._matrices:
            self._matrices = len(held)
            self._forget()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check_state(self) -> None:
        if self._matrices not in (1, self.rows):
            raise LatentError(f"there are {self._matrices} covariances for {self.rows} classes")

    def _learn(self, given: Given) -> None:
        known, dtype = given.statistics, compute_dtype(given.like)
        precision = torch.float64
        if known is not None and self.normalize:
            draw = torch.Generator().manual_seed(0)
            known = known.resampled(lambda rows: F.normalize(rows, dim=-1), generator=draw)
        elif known is None and self.shared == 1:
            # This form holds the one covariance of all classes exactly; then no other one is needed.
            known = ClassStatistics(covariance="low-rank", rank=1)
        elif known is None:
            known, precision = ClassStatistics(rank=1 if self.shared == "auto" else 32), dtype
        known, counts = self._collected(known, given, precision)
        # Solved first: it says how many covariances there are, which sizes depend on.
        solved = self._solved(known, dtype)
        self._set(known.require_fitted(), **counts, **solved)

    def _solved(self, known: ClassStatistics, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return all floating-point tensors of this classifier, computed in float64 on the CPU."""
        pooled, means = known.pooled(), known.means.cpu().double()
        variance, dim = float(pooled.diagonal().mean()), pooled.shape[0]
        if variance <= max(_LEAST_VARIANCE, _NO_SPREAD * float(means.square().sum(dim=1).mean())):
            # One latent of each class does not tell how classes spread; the nearest mean is left.
            variance, own, b = 1.0, means.new_zeros(known.rows), 1.0
        else:
            own, b = self._chosen(known, pooled)
        ridge = b * variance * torch.eye(dim, dtype=torch.float64, device="cpu")
        scale = variance if self.normalize else 1.0
        # Linear scores seen from the middle of the classes are small, so that float32 does not round them off.
        center = means.new_zeros(dim) if self.normalize or own.any() else means.mean(dim=0)
        if own.any():
            # Rounded one class after the other: these are the large tensors.
            whitening = torch.zeros(self.rows, dim, dim, dtype=dtype, device="cpu")
            weights, biases = means.new_zeros(0, dim), means.new_zeros(self.rows)
            for label, share in zip(known.classes.tolist(), own.tolist(), strict=True):
                mixed = share * known.covariance_of(label) + (1 - share) * pooled
                whitening[label], half_log_det = _whitened((1 - b) * mixed + ridge)
                biases[label] = -scale * half_log_det
        else:
            one, _ = _whitened((1 - b) * pooled + ridge)
            whitening, white = one[None], (means - center) @ one
            weights = known.per_output(scale * white @ one.t(), self.rows)
            biases = known.per_output(-scale * white.square().sum(dim=1) / 2, self.rows)
        self._matrices = len(whitening)
        made = {"means": known.per_output(means, self.rows), "own_shares": known.per_output(own, self.rows)}
        made |= {"center": center, "whitening": whitening, "weights": weights, "biases": biases}
        made |= {"scale": means.new_tensor(scale), "chosen_shrinkage": means.new_tensor(b)}
        return {name: tensor.to(dtype) for name, tensor in made.items()}

    def _chosen(self, known: ClassStatistics, pooled: Tensor) -> tuple[Tensor, float]:
        """Return `1 - a_c` of each class, and b."""
        dim, total, counts = len(pooled), int(known.counts.sum()), known.counts.cpu().double()
        if known.rows == 1 or (self.shared == "auto" and known.form != "full"):
            own = torch.zeros_like(counts)  # the covariance of a single class is the pooled one
        elif self.shared == "auto":
            own = _OWN_SHARE * counts / (counts + dim)
        else:
            own = torch.full_like(counts, 1 - float(self.shared))
        if self.shrinkage != "auto":
            return own, float(self.shrinkage)
        least = _WIDE_SHRINKAGE if dim >= _WIDE and not own.any() else _SHRINKAGE
        squares, trace = float(pooled.square().sum()), float(pooled.trace())
        above, below = (1 - 2 / dim) * squares + trace**2, (total + 1 - 2 / dim) * (squares - trace**2 / dim)
        return own, max(least, min(1.0, above / below)) if below > 0 else 1.0

    def _row_scores(self, rows: Tensor) -> Tensor:
        rows, biases = self._points(rows), self.biases.to(rows)
        if self._matrices == 1:
            return product(rows - self.center.to(rows), self.weights.to(rows).t()) + biases
        return biases - self.scale.to(rows) / 2 * self._distances(rows)

    def _distances(self, rows: Tensor) -> Tensor:
        """Return squared Mahalanobis distances (..., classes) of rows (..., D)."""
        most = torch.finfo(rows.dtype).max ** 0.75
        flat, found = rows.clamp(-most, most).reshape(-1, rows.shape[-1]), []
        step = _WIDTH // rows.shape[-1] if torch.compiler.is_compiling() else _BLOCK // max(1, flat.numel())
        for start in range(0, self.rows, step := max(1, step)):
            means, whitening = (t[start : start + step].to(rows) for t in (self.means, self.whitening))
            found.append(((flat - means.unsqueeze(1)) @ whitening).square().sum(dim=2))
        # Far from all classes, squares are infinite: their differences would be NaN.
        return torch.cat(found).clamp(max=_FARTHEST).t().reshape(*rows.shape[:-1], self.rows)

    def _finished(self, scores: Tensor) -> Tensor:
        scores = super()._finished(scores)
        # In half precision, large numbers would hide small differences between classes.
        return scores if self.normalize else scores - scores.amax(dim=-1, keepdim=True)

    def traceable(self) -> nn.Module:
        """Return a copy without what only `leave_one_out_scores` needs: with one covariance, nine tenths of it."""
        made = copy.deepcopy(self)
        for name in ("means", "whitening") if self._matrices == 1 else ():
            made._buffers.pop(name, None)
        return made

    def leave_one_out_scores(self, z: Tensor, labels: Tensor, *, logits: Tensor | None = None) -> Tensor:
        """Score latents that it was fitted on, each as if it had been fitted without it, in closed form.

        Exact under this convention: the latent is taken out of the mean of its class and out of the sums behind `S_c`
        and S, which are still divided by `n_c` and N; then `Sigma_c` is multiplied by `N / (N - 1)`. v stays. With
        residual r and `g = n_c / (n_c - 1)`, `S_c` loses `g/n_c r r'` and S loses `g/N r r'`, so that inverses and
        determinants follow by the formulas of Sherman and Morrison. The only latent of its class has the score minus
        infinity there. A class that was fitted on statistics alone does not change.
        """
        self._check_labelled(z, labels)
        labels = labels.cpu().long()
        inside = (self.fitted_rows.cpu()[labels, None] > 0).double()
        if not inside.any():
            return self.scores(z.detach())
        own, b = self.own_shares.cpu().double(), float(self.chosen_shrinkage)
        counts, total = self.counts.cpu()[labels, None].double(), int(self.counts.sum())
        grown = torch.where(inside > 0, counts / (counts - 1).clamp(min=1), 1.0)
        # How each latent (N, 1) lies to each class (N, classes).
        distance, along, near = self._directions(self._points(z.detach().cpu().double()), labels)
        mine = torch.arange(self.rows, device="cpu") == labels[:, None]
        # The mean of the own class moves away, and each Sigma_c loses `lost` times the outer product of the residual.
        lost = inside * (1 - b) * grown * ((1 - own) / total + mine * (own / counts.clamp(min=1)))
        away = torch.where(mine, grown, 1.0)
        rest = (1 - lost * near).clamp(min=1e-12)
        shrink = 1 - inside / max(2, total)
        scores = -shrink / 2 * (away * away * distance + lost / rest * (away * along).square())
        scale = float(self.scale)
        if self._matrices > 1:
            # With one covariance, its determinant is the same for all classes.
            scores = scores + self.biases.cpu().double() / scale - rest.log() / 2
        scores = self._finished(scale * scores).masked_fill(mine & (inside * counts == 1), -torch.inf)
        return rounded(scores, z.dtype).to(z.device)

    def _directions(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return |y - m|^2, r (y - m) and |r|^2 for whitened rows y, means m and residuals r, in float64."""
        means = self.means.cpu().double()
        if self._matrices == 1:
            whitening = self.whitening[0].cpu().double()
            # From the center, where differences of squares lose no digits.
            center = self.center.cpu().double()
            y, m, r = (rows - center) @ whitening, (means - center) @ whitening, (rows - means[labels]) @ whitening
            distance = y.square().sum(dim=1, keepdim=True) - 2 * y @ m.t() + m.square().sum(dim=1)
            return distance, (r * y).sum(dim=1, keepdim=True) - r @ m.t(), r.square().sum(dim=1, keepdim=True)
        found: list[tuple[Tensor, ...]] = []
        for mean, whitening in zip(means, self.whitening, strict=True):
            white = whitening.cpu().double()
            y = (rows - mean) @ white
            r = y + ((mean - means) @ white)[labels]
            found.append((y.square().sum(dim=1), (r * y).sum(dim=1), r.square().sum(dim=1)))
        distance, along, near = (torch.stack(each, dim=1) for each in zip(*found, strict=True))
        return distance, along, near


def _whitened(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return W with W W' the inverse of a covariance, and half the logarithm of its determinant."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        raise LatentError("these latents leave a covariance singular: choose a larger shrinkage")
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    whitening: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False).t()
    return whitening, factor.diagonal().log().sum()
