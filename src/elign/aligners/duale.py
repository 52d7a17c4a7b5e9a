"""A mixture of local linear maps beside a global one of low rank: Dual-E."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from elign.aligners.affine import solve_ridge
from elign.aligners.base import Aligner
from elign.statistics.class_statistics import ClassStatistics, check_statistics
from elign.utils.errors import LatentError
from elign.utils.fitted import Progress, register
from elign.utils.tensors import check_number, check_seed, check_whole, compute_dtype

_PENALTY = 1e-9
_STARTS, _ROUNDS, _STILL = 10, 300, 1e-4  # of k-means, as in scikit-learn: the last is a share of the mean variance


@register
class DualE(Aligner):
    """Mixes local linear maps with a global one of low rank (Dual-E, CVPR 2026).

    - Local: k-means finds `experts` centres c_k of the latents X that are moved. Each pair goes to the centre of the
      largest cosine, and `Q_k = (X_k'X_k + 1e-9 I)^-1 X_k'Y_k`. A latent moves by `sum_k w_k z Q_k`, with w the
      softmax of `cos(z, c_k) / temperature`.
    - Global: A (D, r) and B (r, D) that minimise `|XAB - Y|^2 + keep |PAB - P|^2`, by turns from random numbers; P are
      the means of old classes.
    - Mixed: `b (local) + (1 - b) (global)` with b the largest cosine of z and a centre.

    The released code assigns pairs to experts by cosine and the paper by k-means; this follows the code. Ours are the
    pseudo-inverse where a matrix is singular, the map of all pairs for an expert without any, and latents other than
    means. Missing is the augmentation with rotated, blended images that the experts learn from. An expert with fewer
    pairs than dimensions is a bad map: give several passes of augmented data, or fewer experts.

    Args:
        statistics: Of the old classes, in the space that latents are moved from: the means P. Without them that term is
            left out. Not needed to load a fitted aligner.
        experts: Number of local maps.
        temperature: Of the softmax.
        rank: r as a share of D.
        keep: Weight of the old means.
        rounds: Turns of A and B.
        seed: Of k-means and of the first A and B.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> aligner = elign.DualE(experts=2, rank=1.0).fit_latents(z, 2 * z, direction="forward")
        >>> aligner.align(torch.ones(1, 3)).round(decimals=3).tolist()
        [[2.0, 2.0, 2.0]]
    """

    rows_of: ClassVar[str] = "centers"
    centers: Tensor
    maps: Tensor
    left: Tensor
    right: Tensor

    def __init__(
        self,
        *,
        statistics: ClassStatistics | None = None,
        experts: int = 4,
        temperature: float = 1.0,
        rank: float = 0.4,
        keep: float = 5.0,
        rounds: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if statistics is not None:
            check_statistics(statistics, None)
        # Not a part of this module: files hold the maps, not the statistics.
        self._statistics = (statistics,)
        self.experts = check_whole(experts, "experts", least=1, most=1024)
        self.temperature = check_number(temperature, "temperature", least=1e-6)
        self.rank = check_number(rank, "rank", most=1, positive=True)
        self.keep = check_number(keep, "keep")
        self.rounds = check_whole(rounds, "rounds", least=1, most=10_000)
        self.seed = check_seed(seed)

    @property
    def statistics(self) -> None:
        """None: what was learned does not hold the statistics."""

    def _shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        rank = max(1, int(self.rank * dim))
        maps = {"maps": (self.rows, dim, dim), "left": (dim, rank), "right": (rank, dim)}
        return {"centers": (self.rows, dim), **maps}

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        source, target = z_cur.cpu().double(), z_prev.cpu().double()
        generator = torch.Generator().manual_seed(self.seed)
        try:
            centers = _k_means(source, min(self.experts, len(source)), generator)
            nearest = (_directions(source) @ _directions(centers).t()).argmax(dim=1)
            whole = solve_ridge(source, target, _PENALTY)
            members = [nearest == k for k in range(len(centers))]
            maps = [solve_ridge(source[own], target[own], _PENALTY) if bool(own.any()) else whole for own in members]
            left, right = self._low_rank(source, target, generator)
        except RuntimeError:  # of a solver that finds infinite numbers
            raise LatentError("these latents are too large for sums over them: scale them down") from None
        learned = {"centers": centers, "maps": torch.stack(maps), "left": left, "right": right}
        for name, tensor in learned.items():
            setattr(self, name, tensor.to(z_cur).contiguous())
            if not bool(getattr(self, name).isfinite().all()):
                raise LatentError("these latents are too large for sums over them: scale them down")
        self.rows = len(centers)

    def _low_rank(self, source: Tensor, target: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return A and B, by least squares for one of them at a time."""
        gram, cross = source.t() @ source, source.t() @ target
        if (statistics := self._statistics[0]) is not None:
            check_statistics(statistics, source.shape[1])
            means = statistics.means.cpu().double()
            gram, cross = gram + self.keep * means.t() @ means, cross + self.keep * means.t() @ means
        gram.diagonal().add_(_PENALTY)
        factor, failed = torch.linalg.cholesky_ex(gram)
        solved = torch.linalg.pinv(gram, hermitian=True) @ cross if int(failed) else torch.cholesky_solve(cross, factor)
        rank, dim = self.right.shape
        # The first numbers of `kaiming_uniform_(right, a=5**0.5)`, as in the released code; `left` needs none.
        right = torch.empty(rank, dim, dtype=torch.float64, device="cpu")
        right.uniform_(-(dim**-0.5), dim**-0.5, generator=generator)
        left = right.t()
        for _ in range(self.rounds):
            left = solved @ torch.linalg.pinv(right)
            right = torch.linalg.pinv(left.t() @ gram @ left, hermitian=True) @ (left.t() @ cross)
        return left, right

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        dtype = compute_dtype(rows)
        centers, local, left, right = (
            t.to(rows.device, dtype) for t in (self.centers, self.maps, self.left, self.right)
        )
        z = rows.to(dtype)
        cosines = _directions(z) @ _directions(centers).t()
        weights = (cosines / self.temperature).softmax(dim=1)
        share = cosines.max(dim=1, keepdim=True).values
        maps = torch.cat([local, (left @ right)[None]])
        # Sums must not be infinite: rows that are too long for that are moved as shorter ones.
        most = torch.finfo(dtype).max / (8 * z.shape[1]) / maps.abs().max().clamp(min=1)
        z = z * (most / z.abs().amax(dim=1, keepdim=True)).clamp(max=1)
        moved = (1 - share) * (z @ maps[-1])
        for k in range(self.rows):
            moved = moved + share * weights[:, k : k + 1] * (z @ maps[k])
        return moved.to(rows.dtype)


def _directions(z: Tensor) -> Tensor:
    """Divide rows by their norm; 0 stays 0. Squares of huge or tiny numbers are infinite or 0."""
    tiny = torch.finfo(z.dtype).tiny
    z = z / z.abs().amax(dim=1, keepdim=True).clamp(min=tiny)
    found: Tensor = z / z.square().sum(dim=1, keepdim=True).sqrt().clamp(min=tiny)
    return found


def _k_means(z: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the best centres of several starts of Lloyd's algorithm, each spread out by k-means++."""
    # Around 0 and not larger than 1: distances must neither be differences of large numbers nor infinite.
    middle = z.mean(dim=0)
    scale = (z - middle).abs().max()
    z = ((z - middle) / torch.where(scale > 0, scale, 1.0)).float()
    best, least = z[:count], torch.inf
    for _ in range(_STARTS):
        centers, error = _lloyd(z, _spread_out(z, count, generator))
        if error < least:
            best, least = centers, error
    return best.double() * scale + middle


def _spread_out(z: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw rows, each with a chance that grows with the squared distance to those before it."""
    chosen = [int(torch.randint(len(z), (1,), generator=generator, device="cpu"))]
    nearest = (z - z[chosen[0]]).square().sum(dim=1)
    while len(chosen) < count:
        # Where all rows are alike, any will do.
        chances = nearest if float(nearest.sum()) > 0 else torch.ones_like(nearest)
        total = chances.cumsum(dim=0)
        drawn = torch.rand((), generator=generator, dtype=z.dtype, device="cpu") * total[-1]
        chosen.append(min(int(torch.searchsorted(total, drawn, right=True)), len(z) - 1))
        nearest = torch.minimum(nearest, (z - z[chosen[-1]]).square().sum(dim=1))
    return z[chosen]


def _lloyd(z: Tensor, centers: Tensor) -> tuple[Tensor, float]:
    """Move centres to the means of the rows that are nearest to them, until they hardly move; return the error, too."""
    places = torch.arange(len(centers), device="cpu")
    enough = _STILL * float(z.square().mean())
    error = torch.inf
    for _ in range(_ROUNDS):
        # The squared distances without |z|^2, which is the same for all centres.
        least, nearest = (centers.square().sum(dim=1) - 2 * z @ centers.t()).min(dim=1)
        error = float(least.sum())
        members = (nearest[:, None] == places).to(z)
        counts = members.sum(dim=0)[:, None]
        # A centre without rows stays where it is.
        moved = torch.where(counts > 0, members.t() @ z / counts.clamp(min=1), centers)
        shift, centers = float((moved - centers).square().sum()), moved
        if shift <= enough:
            break
    return centers, error
