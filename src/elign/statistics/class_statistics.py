"""Class statistics: the count, mean and covariance of each class in a latent space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

import torch
from torch import Tensor, nn

from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import Latents, extract_labelled
from elign.utils.fitted import FittedModule, Ranges, register
from elign.utils.tensors import (
    MOST_CLASSES,
    MOST_LATENTS,
    check_labels,
    check_rows,
    check_whole,
    compute_dtype,
    standard_normal,
    whole_numbers,
)

PRIOR = 60.0
"""How many exemplars of a class weigh as much as its remembered mean; see docs/decisions.md."""
Covariance = Literal["auto", "full", "low-rank", "diagonal", "none"]
_FULL_UP_TO = 256  # latent dimension; 100 full covariances have 26 MB there, and 655 MB at 1,280
_LARGEST_RANK = 1 << 20  # the largest dimension; options also come from files
_POWER_STEPS, _EXTRA_COLUMNS = 4, 16  # of the subspace iteration in `_principal_rows`

_HELD = {"full": ["covariances"], "low-rank": ["factors", "diagonals", "shared"], "diagonal": ["diagonals"], "none": []}
"""The tensors of each form; all but `shared` have one entry for each class."""
_Entry = tuple[int, Tensor, dict[str, Tensor]]
"""Count, mean and covariance of one class; the latter is its entries of `_HELD`."""


class Transporter(Protocol):
    """What moves statistics from one latent space into another: an aligner."""

    def transport(self, statistics: ClassStatistics) -> ClassStatistics: ...  # noqa: D102


@register
class ClassStatistics(FittedModule):
    """Count, mean and covariance of each class in the latent space of a model. No image is stored.

    Covariances are biased (divided by n). The low-rank form approximates `S_c` by `F'F + diag(d)`: F holds the leading
    principal directions, d the variances that they leave, so that the diagonal of `S_c` is exact. `shared` is then the
    exact covariance within classes, pooled over all classes. Everything is computed in float64 on the CPU and stored in
    float32, or in float64 for float64 latents. All methods but `update` return new statistics.

    Args:
        covariance: `full`, `low-rank`, `diagonal`, or `none` for means only. `auto` is full up to dimension 256 and
            low-rank above.
        rank: Number of directions for each class in the low-rank form.

    Attributes:
        classes: (C,) class ids, ascending.
        counts: (C,) number of latents of each class.
        means: (C, D).
        covariances: (C, D, D), if full.
        factors: (C, rank, D), `diagonals` (C, D) and `shared` (D, D), if low-rank; `diagonals` alone, if diagonal.

    Example:
        >>> import torch, elign
        >>> z, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]), torch.tensor([4, 4, 7])
        >>> statistics = elign.ClassStatistics().update(z, labels)
        >>> statistics.classes.tolist(), statistics.counts.tolist(), statistics.means.tolist()
        ([4, 7], [2, 1], [[2.0, 0.0], [0.0, 5.0]])
        >>> statistics.covariance_of(4).tolist()
        [[1.0, 0.0], [0.0, 0.0]]
        >>> statistics.affine(2 * torch.eye(2), torch.ones(2)).means.tolist()
        [[5.0, 1.0], [1.0, 11.0]]
    """

    how_to_fit = "update(...) or from_data(...)"
    rows_of: ClassVar[str] = "means"
    ranges: ClassVar[Ranges] = {"classes": (0, MOST_CLASSES), "counts": (1, MOST_LATENTS), "diagonals": (0.0, math.inf)}
    classes: Tensor
    counts: Tensor
    means: Tensor
    covariances: Tensor
    factors: Tensor
    diagonals: Tensor
    shared: Tensor

    def __init__(self, *, covariance: Covariance = "auto", rank: int = 32) -> None:
        super().__init__()
        if covariance not in get_args(Covariance):
            raise OptionError(f"covariance must be one of {', '.join(get_args(Covariance))}, got {covariance!r}")
        self.covariance: Covariance = covariance
        self.rank = check_whole(rank, "rank", least=1, most=_LARGEST_RANK)

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("classes", torch.arange(self.rows))
        self.register_buffer("counts", torch.ones(self.rows, dtype=torch.int64))
        shapes = {
            "means": (self.rows, dim),
            "covariances": (self.rows, dim, dim),
            "factors": (self.rows, min(self.rank, dim), dim),
            "diagonals": (self.rows, dim),
            "shared": (dim, dim),
        }
        for name in shapes:
            self._buffers.pop(name, None)  # another dimension may have another form
        for name in ("means", *_HELD[self.form]):
            self.register_buffer(name, torch.zeros(shapes[name]))

    @property
    def form(self) -> Covariance:
        """The form of the covariances: what `auto` stands for in this dimension."""
        return self._form(self.require_fitted())

    def _form(self, dim: int) -> Covariance:
        if self.covariance != "auto":
            return self.covariance
        return "full" if dim <= _FULL_UP_TO else "low-rank"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, which is about the size of the file."""
        return sum(tensor.nbytes for tensor in self.buffers())

    def extra_repr(self) -> str:
        """Show how many classes there are, in which form, and how large they are."""
        if not self.fitted:
            return super().extra_repr()
        return f"classes={self.rows}, dim={self.dim}, covariance={self.form!r}, {self.nbytes / 1e6:.2f} MB"

    def _check_state(self) -> None:
        classes = self.classes.tolist()
        if not classes or classes != sorted(set(classes)) or not 0 <= classes[0] <= classes[-1] <= MOST_CLASSES:
            raise LatentError(f"class ids must ascend from 0 or more to at most {MOST_CLASSES}")
        if bool((self.counts < 1).any()):
            raise LatentError("counts of classes must be >= 1")

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        # Checkpoints come this way: ids out of order would be found in the wrong place.
        if self.fitted:
            self._check_state()

    @classmethod
    def from_data(
        cls,
        model: nn.Module,
        head: str,
        loader: Iterable[Any],
        *,
        covariance: Covariance = "auto",
        rank: int = 32,
        argument: int | str = 0,
        inputs: Callable[[Any], Any] | None = None,
        labels: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Compute the statistics of labelled data under a model, in evaluation mode.

        `loader` gives batches with inputs first and classes second. `head` and `argument` are those of `Repair`,
        `inputs`, `labels` and `device` those of `Repair.fit`.
        """
        latents = Latents(model, head, argument=argument)
        (z,), classes = extract_labelled([latents], loader, inputs=inputs, labels=labels, device=device)
        return cls(covariance=covariance, rank=rank).update(z, classes)

    def update(self, z: Tensor, labels: Tensor) -> Self:
        """Add latents `(N, D)` and their classes `(N,)` to these statistics; classes may be new or known.

        Batches give the same result as all latents at once. Only the low-rank form has to compress the covariance of a
        known class again, which is approximate: prefer one call with all latents of a class.

        Raises:
            LatentError: If latents and labels do not match, or the latents have another dimension than those before.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        classes, places, counts = torch.unique(labels.cpu().long(), return_inverse=True, return_counts=True)
        groups = torch.split(z.detach().cpu()[places.argsort(stable=True)], counts.tolist())
        made = self._collected(classes, counts, ((rows, rows) for rows in groups), z.shape[1], compute_dtype(z))
        made = self.merge(made) if self.fitted else made
        device, self.rows = self.latent_dim.device, made.rows
        self._set(z.shape[1], **made._tensors())
        return self.to(device)

    def _collected(
        self, classes: Tensor, counts: Tensor, groups: Iterable[tuple[Tensor, Tensor]], dim: int, dtype: torch.dtype
    ) -> ClassStatistics:
        """Return the statistics of latents: for each class its rows, and those that `shared` is computed from."""
        form, shared, entries = self._form(dim), _zeros(dim), {}
        for label, count, (rows, pooled) in zip(classes.tolist(), counts.tolist(), groups, strict=True):
            mean, x = _centred(rows)
            _check_size([x], dtype)
            entries[label] = count, mean, _spread(form, self.rank, x, torch.zeros_like(mean))
            if form == "low-rank":
                x = x if pooled is rows else _centred(pooled)[1]
                shared.addmm_(x.t(), x, alpha=count / int(counts.sum()))
        return self._joined(entries, shared, dtype)

    def _joined(self, entries: Mapping[int, _Entry], shared: Tensor, dtype: torch.dtype) -> ClassStatistics:
        """Return the statistics of classes from those of each of them."""
        classes = sorted(entries)
        counts, means, spreads = zip(*(entries[label] for label in classes), strict=True)
        tensors = {name: torch.stack([spread[name].to(dtype) for spread in spreads]) for name in spreads[0]}
        tensors |= {name: torch.tensor(n, device="cpu") for name, n in (("classes", classes), ("counts", counts))}
        tensors["means"] = torch.stack(means)
        if "factors" in tensors:
            tensors["shared"] = shared
        return self._made(tensors, dtype)

    def _made(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> ClassStatistics:
        """Return statistics with the options and on the device of these, with tensors that are rounded to a type."""
        made = ClassStatistics(covariance=self.covariance if len(tensors) > 3 else "none", rank=self.rank)
        rounded = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        _check_size(rounded.values(), dtype)
        made.rows, dim = tensors["means"].shape
        made._set(dim, **rounded)
        made._check_state()
        return made.to(self.latent_dim.device)

    def _changed(self, **tensors: Tensor) -> ClassStatistics:
        """Return a copy in which these tensors are exchanged."""
        return self._made(self._tensors() | tensors, self.means.dtype)

    def _tensors(self) -> dict[str, Tensor]:
        self.require_fitted()
        return {name: tensor for name, tensor in self.named_buffers() if name != "latent_dim"}

    def _entry(self, place: int) -> _Entry:
        """Return count, mean and covariance of the class in this place, in float64 on the CPU."""
        spread = {name: getattr(self, name)[place].cpu().double() for name in _HELD[self.form] if name != "shared"}
        return int(self.counts[place]), self.means[place].cpu().double(), spread

    def merge(self, other: ClassStatistics) -> ClassStatistics:
        """Return the statistics of both sets of latents together; of a class in both, by the exact pairwise formulas.

        With `s = n_1 / (n_1 + n_2)`: mean `s m_1 + (1-s) m_2`, covariance
        `s S_1 + (1-s) S_2 + s (1-s) (m_1-m_2)(m_1-m_2)'`. The low-rank form compresses the latter again.

        Raises:
            LatentError: If dimension or form of the covariances differ.
        """
        one, two = (f"dimension {s.require_fitted()} with {s.form} covariances" for s in (self, other))
        if one != two:
            raise LatentError(f"cannot merge statistics of {one} and of {two}")
        total, shared = int(self.counts.sum()) + int(other.counts.sum()), _zeros(self.means.shape[1])
        entries: dict[int, _Entry] = {}
        for part in (self, other):
            if self.form == "low-rank":
                shared.add_(part.shared.cpu().double(), alpha=int(part.counts.sum()) / total)
            for place, label in enumerate(part.classes.tolist()):
                entry = part._entry(place)
                if label in entries:
                    entry = self._pair(entries[label], entry, shared, total)
                entries[label] = entry
        return self._joined(entries, shared, torch.promote_types(self.means.dtype, other.means.dtype))

    def _pair(self, first: _Entry, second: _Entry, shared: Tensor, total: int) -> _Entry:
        """Return what two sets of latents of one class are together; add what is between them to `shared`."""
        (n_1, mean_1, spread_1), (n_2, mean_2, spread_2) = first, second
        share, step = n_1 / (n_1 + n_2), mean_1 - mean_2
        between = share * (1 - share)
        spread = {name: share * spread_1[name] + (1 - share) * spread_2[name] for name in spread_1}
        if self.form == "full":
            spread["covariances"] += between * torch.outer(step, step)
        elif self.form == "diagonal":
            spread["diagonals"] += between * step.square()
        elif self.form == "low-rank":
            parts = (share**0.5 * spread_1["factors"], (1 - share) ** 0.5 * spread_2["factors"])
            x = torch.cat([*parts, between**0.5 * step[None]])
            spread = _spread(self.form, self.rank, x, spread["diagonals"])
            shared.addr_(step, step, alpha=share * n_2 / total)
        return n_1 + n_2, share * mean_1 + (1 - share) * mean_2, spread

    def select(self, classes: Sequence[int] | Tensor) -> ClassStatistics:
        """Return the statistics of these classes only; `shared` stays that of all classes."""
        places = torch.tensor(sorted(set(self._places(classes))), device=self.classes.device)
        return self._changed(**{name: t[places] for name, t in self._tensors().items() if name != "shared"})

    def without(self, classes: Sequence[int]) -> ClassStatistics | None:
        """Return the statistics without some classes, which need not be there; None if no class is left."""
        rest = [label for label in self.classes.tolist() if label not in set(classes)]
        return self.select(rest) if rest else None

    def widened(self, covariance: Tensor) -> ClassStatistics:
        """Return statistics with a covariance (D, D) added to that of each class.

        The low-rank form adds its diagonal to `diagonals` and the whole of it to `shared`.
        """
        self._require_covariance()
        more = {"covariances": covariance, "shared": covariance, "diagonals": covariance.diagonal()}
        return self._changed(**{name: t + more[name].to(t) for name, t in self._tensors().items() if name in more})

    def means_only(self) -> ClassStatistics:
        """Return counts and means without covariances."""
        self.require_fitted()
        return self._made({"classes": self.classes, "counts": self.counts, "means": self.means}, self.means.dtype)

    def per_output(self, values: Tensor, outputs: int) -> Tensor:
        """Return values of classes (C, ...) as (outputs, ...): in the place of each class id, 0 for other outputs."""
        return values.new_zeros(outputs, *values.shape[1:]).index_copy_(0, self.classes.to(values.device), values)

    def with_counts(self, counts: Tensor | int) -> ClassStatistics:
        """Return the same means and covariances with other counts: how much they weigh when latents are merged in."""
        self.require_fitted()
        return self._changed(counts=torch.as_tensor(counts, device=self.counts.device).expand(self.rows).long())

    def with_means(self, means: Tensor) -> ClassStatistics:
        """Return the same counts and covariances about other means (C, D)."""
        check_rows(means, "means")
        if means.shape != self.means.shape:
            raise LatentError(f"means must have shape {tuple(self.means.shape)}, got {tuple(means.shape)}")
        return self._changed(means=means)

    def shrink_means(self, z: Tensor, labels: Tensor, *, prior: float = PRIOR) -> ClassStatistics:
        """Move means towards those of exemplars: `m_c <- (prior m_c + n m) / (prior + n)`.

        m is the mean of the n exemplars of class c, latents `z` in the same space: a remembered mean counts for `prior`
        exemplars. Classes without exemplars keep their mean; exemplars of other classes are ignored.
        """
        if not prior >= 0:
            raise OptionError(f"prior must be a number >= 0, got {prior!r}")
        seen = ClassStatistics(covariance="none").update(z, labels)
        check_statistics(self, seen.dim)
        means, known = self.means.cpu().double().clone(), set(self.classes.tolist())
        for label, count, mean in zip(seen.classes.tolist(), seen.counts.tolist(), seen.means, strict=True):
            if label in known:
                own = means[self._places([label])[0]]
                own += (mean - own) * (count / (prior + count))
        return self._changed(means=means)

    def covariance_of(self, label: int) -> Tensor:
        """Return the covariance (D, D) of one class, in float64 on the CPU."""
        self._require_covariance()
        spread = self._entry(self._places([label])[0])[2]
        if self.form == "full":
            return spread["covariances"].clone()
        diagonal = spread["diagonals"].diag()
        return diagonal if self.form == "diagonal" else spread["factors"].t() @ spread["factors"] + diagonal

    def pooled(self) -> Tensor:
        """Return the covariance within classes `sum n_c S_c / sum n_c` (D, D), in float64 on the CPU."""
        self._require_covariance()
        if self.form == "low-rank":
            return self.shared.cpu().double().clone()
        shares = self.counts.cpu().double() / int(self.counts.sum())
        if self.form == "diagonal":
            return (shares @ self.diagonals.cpu().double()).diag()
        total = _zeros(self.covariances.shape[1])
        for share, covariance in zip(shares.tolist(), self.covariances, strict=True):
            total.add_(covariance.cpu().double(), alpha=share)
        return total

    def sample(
        self, n: int, generator: torch.Generator | None = None, classes: Sequence[int] | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw n latents of each class (or of some) from N(m_c, S_c); S_c may be singular.

        Returns latents `(n C, D)` and their classes, class after class.
        """
        n = check_whole(n, "n", least=1)
        self._require_covariance()
        places = list(range(self.rows)) if classes is None else self._places(classes)
        z = [self._drawn(place, self._noise(n, generator)) for place in places]
        return torch.cat(z).to(self.means), self.classes[places].repeat_interleave(n)

    def transport(self, aligner: Transporter) -> ClassStatistics:
        """Move these statistics by an aligner that was fitted with `direction="forward"` on data of the new classes."""
        return aligner.transport(self)

    def affine(self, matrix: Tensor, offset: Tensor) -> ClassStatistics:
        """Return the statistics of `z A + b` for A (D, D) and b (D,): means `m A + b`, covariances `A'SA`.

        The low-rank form keeps `F A`, the exact `A' shared A`, and of `A' diag(d) A` the diagonal.
        """
        dim = self.require_fitted()
        if matrix.shape != (dim, dim) or offset.shape != (dim,):
            raise LatentError(f"expected a matrix ({dim}, {dim}) and an offset ({dim},), got {tuple(matrix.shape)}")
        a, b = (t.detach().cpu().double() for t in (matrix, offset))
        moved = {"means": self.means.cpu().double() @ a + b}
        for name, tensor in self._tensors().items():
            if name in ("covariances", "shared"):
                # One class at a time: all of them in float64 would double or triple the memory.
                each = [(a.t() @ s.cpu().double() @ a).to(s.dtype) for s in tensor.reshape(-1, dim, dim)]
                moved[name] = torch.stack(each).reshape(tensor.shape)
            elif name in ("factors", "diagonals"):
                moved[name] = tensor.cpu().double() @ (a if name == "factors" else a.square())
        return self._changed(**moved)

    def resampled(
        self, move: Callable[[Tensor], Tensor], per_class: int | None = None, generator: torch.Generator | None = None
    ) -> ClassStatistics:
        """Return the statistics of latents that any function from rows to rows moves, through samples; counts stay.

        The samples of a class have exactly its mean and, if there are enough of them, its covariance: a move that is
        affine is then followed without sampling error. By default there are 1,000, or 1.5 times the dimension if that
        is more. With means only, the means are moved.
        """
        dim = self.require_fitted()
        if self.form == "none":
            return self.with_means(move(self.means))
        n = max(1000, 3 * dim // 2) if per_class is None else check_whole(per_class, "per_class", least=2)
        noise = _matched(self._noise(n, generator))
        around = noise[:, :dim] @ _root(self.shared) if self.form == "low-rank" else noise[:0]

        def moved(z: Tensor) -> Tensor:
            return move(z.to(self.means)).detach().cpu()

        def groups() -> Iterator[tuple[Tensor, Tensor]]:
            for place, mean in enumerate(self.means.cpu().double()):
                rows = moved(self._drawn(place, noise))
                # Samples of a class do not hold what all classes share beyond its leading directions.
                yield rows, moved(mean + around) if self.form == "low-rank" else rows

        return self._collected(self.classes.cpu(), self.counts.cpu(), groups(), dim, self.means.dtype)

    def _noise(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal rows, as wide as `_drawn` needs them."""
        dim = self.require_fitted()
        width = dim + min(self.rank, dim) if self.form == "low-rank" else dim
        return standard_normal((n, width), torch.zeros(0, dtype=torch.float64, device="cpu"), generator)

    def _drawn(self, place: int, noise: Tensor) -> Tensor:
        """Turn standard normal rows into latents of one class, in float64 on the CPU."""
        _, mean, spread = self._entry(place)
        if self.form == "full":
            return mean + noise @ _root(spread["covariances"])
        dim = len(mean)
        z = mean + noise[:, :dim] * spread["diagonals"].clamp(min=0).sqrt()
        return z + noise[:, dim:] @ spread["factors"] if self.form == "low-rank" else z

    def _places(self, classes: Sequence[int] | Tensor) -> list[int]:
        """Return where these classes stand."""
        self.require_fitted()
        places = {label: place for place, label in enumerate(self.classes.tolist())}
        wanted = whole_numbers(classes)
        wanted = [wanted] if isinstance(wanted, int) else wanted
        missing = set(wanted) - set(places)
        if missing:
            raise LatentError(f"there are no statistics of class {min(missing)}")
        return [places[label] for label in wanted]

    def _require_covariance(self) -> None:
        self.require_fitted()
        if self.form == "none":
            raise LatentError('these statistics hold means only: make them with another covariance than "none"')


def check_statistics(statistics: Any, dim: int | None) -> None:
    """Raise if these are not fitted statistics, or if latents have another dimension."""
    if not isinstance(statistics, ClassStatistics):
        raise OptionError(f"statistics must be ClassStatistics, got {type(statistics).__name__}")
    if statistics.require_fitted() != (dim or statistics.dim):
        raise LatentError(f"the statistics have dimension {statistics.dim}, the latents {dim}")


def _check_size(tensors: Iterable[Tensor], dtype: torch.dtype) -> None:
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise LatentError(f"the covariances of these latents are too large for {dtype}: scale the latents down")


def _zeros(dim: int) -> Tensor:
    return torch.zeros(dim, dim, dtype=torch.float64, device="cpu")


def _centred(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of rows, and x with x'x their covariance."""
    rows = rows.double()
    mean = rows.mean(dim=0)
    return mean, (rows - mean) / math.sqrt(len(rows))


def _spread(form: Covariance, rank: int, x: Tensor, rest: Tensor) -> dict[str, Tensor]:
    """Express the covariance x'x + diag(rest) in this form."""
    if form == "full":
        return {"covariances": x.t() @ x + rest.diag()}
    if form == "none":
        return {}
    variances = x.square().sum(dim=0)
    if form == "diagonal":
        return {"diagonals": variances + rest}
    factors = _principal_rows(x, min(rank, x.shape[1]))
    left = variances - factors.square().sum(dim=0)
    # A class of few latents leaves nothing but rounding.
    left[left <= 1e-12 * variances] = 0
    return {"factors": factors, "diagonals": left + rest}


def _principal_rows(x: Tensor, rank: int) -> Tensor:
    """Return F (rank, D), so that F'F is the leading part of x'x; zeros where x has a lower rank."""
    if len(x) <= rank:
        return torch.cat([x, x.new_zeros(rank - len(x), x.shape[1])])
    wide = rank + _EXTRA_COLUMNS
    if min(x.shape) <= 2 * wide:
        _, lengths, directions = torch.linalg.svd(x, full_matrices=False)
    else:
        # Subspace iteration with a fixed start: an exact decomposition would take most of the time of an update.
        start = torch.randn(x.shape[1], wide, generator=torch.Generator().manual_seed(0), dtype=x.dtype, device="cpu")
        basis = torch.linalg.qr(start)[0]
        for _ in range(_POWER_STEPS):
            basis = torch.linalg.qr(x.t() @ (x @ basis))[0]
        _, lengths, inner = torch.linalg.svd(x @ basis, full_matrices=False)
        directions = inner @ basis.t()
    rows: Tensor = lengths[:rank, None] * directions[:rank]
    return rows


def _root(covariance: Tensor) -> Tensor:
    """Return R with R'R the covariance, also of a singular one."""
    covariance = covariance.cpu().double()
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        values, vectors = torch.linalg.eigh(covariance)
        factor = vectors * values.clamp(min=0).sqrt()
    root: Tensor = factor.t()
    return root


def _matched(noise: Tensor) -> Tensor:
    """Give standard normal rows the mean 0 and, if there are more rows than columns, the covariance I exactly."""
    _, x = _centred(noise)
    if len(x) > x.shape[1]:
        x = torch.linalg.solve_triangular(torch.linalg.cholesky(x.t() @ x), x.t(), upper=False).t()
    return x * math.sqrt(len(x))
