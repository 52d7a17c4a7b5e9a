"""Class statistics: the count, mean and covariance of each class in a latent space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

import torch
from torch import Tensor, nn

from elign.utils.checks import MOST_LATENTS, check_labels, check_rows, check_whole, whole_numbers
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import Latents, extract_labelled
from elign.utils.fitted import FittedModule, Ranges, register
from elign.utils.tensors import compute_dtype, standard_normal

Covariance = Literal["auto", "full", "low-rank", "diagonal", "none"]
_FULL_UP_TO = 256  # latent dimension; 100 full covariances have 26 MB there, and 655 MB at 1,280
_LARGEST_CLASS = 10**6
_LARGEST_RANK = 1 << 20  # the largest dimension; options also come from files
_POWER_STEPS, _EXTRA_COLUMNS = 4, 16  # of the subspace iteration in `_principal_rows`

_Spread = dict[str, Tensor]  # the covariance of one class: its entries of `covariances`, `factors`, `diagonals`
_Entry = tuple[Tensor, _Spread]  # with its mean


class Transporter(Protocol):
    """Whatever moves statistics from one latent space into another: an aligner."""

    def transport(self, statistics: ClassStatistics) -> ClassStatistics:
        """Return the statistics in the other space."""
        ...


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
        >>> import torch
        >>> from elign import ClassStatistics
        >>> z, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]), torch.tensor([4, 4, 7])
        >>> statistics = ClassStatistics().update(z, labels)
        >>> statistics.classes.tolist(), statistics.counts.tolist(), statistics.means.tolist()
        ([4, 7], [2, 1], [[2.0, 0.0], [0.0, 5.0]])
        >>> statistics.covariance_of(4).tolist()
        [[1.0, 0.0], [0.0, 0.0]]
        >>> statistics.affine(2 * torch.eye(2), torch.ones(2)).means.tolist()
        [[5.0, 1.0], [1.0, 11.0]]
    """

    how_to_fit = "update(...) or from_data(...)"
    rows_of: ClassVar[str] = "means"
    ranges: ClassVar[Ranges] = {
        "classes": (0, _LARGEST_CLASS),
        "counts": (1, MOST_LATENTS),
        "diagonals": (0.0, math.inf),
    }
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
        shapes = {"means": (self.rows, dim)} | {name: (self.rows, *rest) for name, rest in self._shapes(dim).items()}
        if self.form == "low-rank":
            shapes["shared"] = (dim, dim)
        for name in ("covariances", "factors", "diagonals", "shared"):
            if name in self._buffers and name not in shapes:
                delattr(self, name)
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))

    def _shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each entry of a `_Spread`."""
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "full": {"covariances": (dim, dim)},
            "low-rank": {"factors": (min(self.rank, dim), dim), "diagonals": (dim,)},
            "diagonal": {"diagonals": (dim,)},
        }
        return shapes.get(self.form, {})

    @property
    def form(self) -> Covariance:
        """The form of the covariances: what `auto` stands for in this dimension."""
        if self.covariance != "auto":
            return self.covariance
        return "full" if self.require_fitted() <= _FULL_UP_TO else "low-rank"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, which is about the size of the file."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.buffers())

    def extra_repr(self) -> str:
        """Show how many classes there are, in which form, and how large they are."""
        if not self.fitted:
            return super().extra_repr()
        return f"classes={self.rows}, dim={self.dim}, covariance={self.form!r}, {self.nbytes / 1e6:.2f} MB"

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        # A file is data from outside: ids out of order would be found in the wrong place.
        held, counts = state_dict.get(f"{prefix}classes"), state_dict.get(f"{prefix}counts")
        if held is not None and held.ndim and len(held):
            if bool((held.diff() <= 0).any()) or int(held[0]) < 0 or int(held[-1]) > _LARGEST_CLASS:
                raise LatentError(f"class ids must ascend from 0 or more to at most {_LARGEST_CLASS}")
            if counts is not None and bool((counts < 1).any()):
                raise LatentError("counts of classes must be >= 1")

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

        Args:
            model: Any module.
            head: The name of its head, as in `model.named_modules()`.
            loader: Batches with inputs first and classes second.
            covariance: The form of the covariances; see the class.
            rank: Number of directions in the low-rank form.
            argument: Which argument of the head is the latent: a position or a keyword.
            inputs: Takes the model's input out of a batch, if it is not the first entry.
            labels: Takes the classes out of a batch, if they are not the second entry.
            device: Where to run the inputs; by default where the model's parameters are.
        """
        latents = Latents(model, head, argument=argument)
        (z,), classes = extract_labelled([latents], loader, inputs=inputs, labels=labels, device=device)
        return cls(covariance=covariance, rank=rank).update(z, classes)

    def update(self, z: Tensor, labels: Tensor) -> Self:
        """Add latents to these statistics; classes may be new or known.

        Batches give the same result as all latents at once. Only the low-rank form has to compress the covariance of a
        known class again, which is approximate: prefer one call with all latents of a class.

        Args:
            z: Latents `(N, D)`.
            labels: Their classes `(N,)`.

        Raises:
            LatentError: If latents and labels do not match, or the latents have another dimension than those before.
        """
        check_rows(z, "latents")
        check_labels(labels, len(z))
        if int(labels.max()) > _LARGEST_CLASS:
            raise LatentError(f"labels must be at most {_LARGEST_CLASS}, there is a {int(labels.max())}")
        classes, places, counts = torch.unique(labels.cpu().long(), return_inverse=True, return_counts=True)
        groups = torch.split(z.detach().cpu()[places.argsort(stable=True)], counts.tolist())
        fresh = self._collected(classes, counts, ((rows, rows) for rows in groups), z.shape[1], compute_dtype(z))
        self._take(self.merge(fresh) if self.fitted else fresh)
        return self

    def _collected(
        self, classes: Tensor, counts: Tensor, groups: Iterable[tuple[Tensor, Tensor]], dim: int, dtype: torch.dtype
    ) -> ClassStatistics:
        """Return the statistics of latents: for each class its rows, and those that `shared` is computed from."""
        made = self._empty(dim)
        entries, shared = [], torch.zeros(dim, dim, dtype=torch.float64, device="cpu")
        for count, (rows, pooled) in zip(counts.tolist(), groups, strict=True):
            mean, x = _centred(rows)
            entries.append((mean, made._spread(x, torch.zeros_like(mean))))
            if made.form == "low-rank":
                x = x if pooled is rows else _centred(pooled)[1]
                shared.addmm_(x.t(), x, alpha=count / int(counts.sum()))
        made._fill(classes, counts, entries, shared, dtype)
        return made

    def _empty(self, dim: int) -> ClassStatistics:
        made = ClassStatistics(covariance=self.covariance, rank=self.rank)
        made.dim = dim  # the form depends on it
        return made

    def _fill(self, classes: Tensor, counts: Tensor, entries: list[_Entry], shared: Tensor, dtype: torch.dtype) -> None:
        """Store means and covariances of the classes, in this type."""
        tensors = {name: torch.stack([spread[name].to(dtype) for _, spread in entries]) for name in entries[0][1]}
        tensors["means"] = torch.stack([mean.to(dtype) for mean, _ in entries])
        if self.form == "low-rank":
            tensors["shared"] = shared.to(dtype)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise LatentError(f"the covariances of these latents are too large for {dtype}: scale the latents down")
        self.rows = len(classes)
        self._set(self.require_fitted(), classes=classes, counts=counts, **tensors)

    def _take(self, other: ClassStatistics) -> None:
        """Become a copy of other statistics, and stay on this device."""
        device = self.latent_dim.device
        self.rows = other.rows
        self._set(other.require_fitted(), **{name: t for name, t in other.named_buffers() if name != "latent_dim"})
        self.to(device)

    def _changed(self, **tensors: Tensor) -> ClassStatistics:
        """Return a copy in which these tensors are exchanged; they are rounded to the type of this object."""
        made = self._empty(self.require_fitted())
        kept = {name: tensor for name, tensor in self.named_buffers() if name != "latent_dim"}
        kept |= {name: tensor.to(kept[name].device, kept[name].dtype) for name, tensor in tensors.items()}
        made.rows = len(kept["classes"])
        made._set(self.require_fitted(), **kept)
        return made.to(self.means.device)

    # The covariance of one class, in each of the forms.

    def _spread(self, x: Tensor, rest: Tensor) -> _Spread:
        """Express the covariance x'x + diag(rest) in the form of this object."""
        if self.form == "full":
            return {"covariances": x.t() @ x + rest.diag()}
        if self.form == "diagonal":
            return {"diagonals": x.square().sum(dim=0) + rest}
        if self.form == "none":
            return {}
        factors = _principal_rows(x, min(self.rank, x.shape[1]))
        left = x.square().sum(dim=0) - factors.square().sum(dim=0)
        # A class of few latents leaves nothing but rounding.
        left[left <= 1e-12 * x.square().sum(dim=0)] = 0
        return {"factors": factors, "diagonals": left + rest}

    def _entry(self, place: int) -> tuple[int, Tensor, _Spread]:
        """Return count, mean and covariance of the class in this place, in float64 on the CPU."""
        spread = {name: getattr(self, name)[place].cpu().double() for name in self._shapes(self.require_fitted())}
        return int(self.counts[place]), self.means[place].cpu().double(), spread

    def _joined(self, first: _Spread, second: _Spread, share: float, step: Tensor) -> _Spread:
        """Return `s S_1 + (1-s) S_2 + s (1-s) step step'` for the share s of the first."""
        between = share * (1 - share)
        if self.form == "low-rank":
            parts = (share**0.5 * first["factors"], (1 - share) ** 0.5 * second["factors"], between**0.5 * step[None])
            rest = share * first["diagonals"] + (1 - share) * second["diagonals"]
            return self._spread(torch.cat(parts), rest)
        outer = torch.outer(step, step) if self.form == "full" else step.square()
        return {name: share * first[name] + (1 - share) * second[name] + between * outer for name in first}

    # Public operations.

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
        classes, counts = torch.unique(torch.cat([self.classes.cpu(), other.classes.cpu()])), []
        entries, total = [], int(self.counts.sum()) + int(other.counts.sum())
        shared = torch.zeros((), dtype=torch.float64, device="cpu")
        if self.form == "low-rank":
            for part in (self, other):
                shared = shared + part.shared.cpu().double() * (int(part.counts.sum()) / total)
        mine, theirs = self._held(), other._held()
        for label in classes.tolist():
            count, mean, spread = self._entry(mine[label]) if label in mine else other._entry(theirs[label])
            if label in mine and label in theirs:
                more, mean_2, spread_2 = other._entry(theirs[label])
                share, step = count / (count + more), mean - mean_2
                spread = self._joined(spread, spread_2, share, step)
                if self.form == "low-rank":
                    shared.addr_(step, step, alpha=share * more / total)
                count, mean = count + more, share * mean + (1 - share) * mean_2
            counts.append(count)
            entries.append((mean, spread))
        made = self._empty(self.require_fitted())
        dtype = torch.promote_types(self.means.dtype, other.means.dtype)
        made._fill(classes, torch.tensor(counts, device="cpu"), entries, shared, dtype)
        return made.to(self.means.device)

    def select(self, classes: Sequence[int] | Tensor) -> ClassStatistics:
        """Return the statistics of these classes only; `shared` stays that of all classes.

        Raises:
            LatentError: If there is no such class.
        """
        places = torch.tensor(sorted(set(self._places(classes))), device=self.classes.device)
        names = ["classes", "counts", "means", *self._shapes(self.require_fitted())]
        return self._changed(**{name: getattr(self, name)[places] for name in names})

    def without(self, classes: Sequence[int]) -> ClassStatistics | None:
        """Return the statistics without some classes, which need not be there; None if no class is left."""
        rest = [label for label in self.classes.tolist() if label not in set(classes)]
        return self.select(rest) if rest else None

    def widened(self, covariance: Tensor) -> ClassStatistics:
        """Return statistics with a covariance (D, D) added to that of each class.

        The low-rank form adds its diagonal to `diagonals` and the whole of it to `shared`.
        """
        self._require_covariance()
        changes = {"covariances": covariance, "shared": covariance, "diagonals": covariance.diagonal()}
        return self._changed(
            **{
                name: getattr(self, name) + change.to(getattr(self, name))
                for name, change in changes.items()
                if name in self._buffers
            }
        )

    def means_only(self) -> ClassStatistics:
        """Return counts and means without covariances."""
        made = ClassStatistics(covariance="none")
        made.rows = self.rows
        made._set(self.require_fitted(), classes=self.classes, counts=self.counts, means=self.means)
        return made.to(self.means.device)

    def per_output(self, values: Tensor, outputs: int) -> Tensor:
        """Return values of classes (C, ...) as (outputs, ...): in the place of each class id, 0 for other outputs."""
        return values.new_zeros(outputs, *values.shape[1:]).index_copy_(0, self.classes.to(values.device), values)

    def with_counts(self, counts: Tensor | int) -> ClassStatistics:
        """Return the same means and covariances with other counts: how much they weigh when latents are merged in."""
        counts = torch.as_tensor(counts, device=self.counts.device).expand(self.rows)
        if self.require_fitted() and bool((counts < 1).any()):
            raise LatentError("counts of classes must be >= 1")
        return self._changed(counts=counts)

    def with_means(self, means: Tensor) -> ClassStatistics:
        """Return the same counts and covariances about other means (C, D)."""
        check_rows(means, "means")
        if means.shape != self.means.shape:
            raise LatentError(f"means must have shape {tuple(self.means.shape)}, got {tuple(means.shape)}")
        return self._changed(means=means)

    def shrink_means(self, z: Tensor, labels: Tensor, *, prior: float = 20.0) -> ClassStatistics:
        """Move means towards those of exemplars: `m_c <- (prior m_c + n m) / (prior + n)`.

        m is the mean of the n exemplars of class c. Classes without exemplars keep their mean; exemplars of other
        classes are ignored.

        Args:
            z: Latents `(N, D)` of exemplars in the same space.
            labels: Their classes `(N,)`.
            prior: How many exemplars a remembered mean counts for.
        """
        if not prior >= 0:
            raise OptionError(f"prior must be a number >= 0, got {prior!r}")
        seen = ClassStatistics(covariance="none").update(z, labels)
        if seen.dim != self.require_fitted():
            raise LatentError(f"these statistics have dimension {self.dim}, the exemplars {seen.dim}")
        means, held = self.means.cpu().double().clone(), self._held()
        for label, count, mean in zip(seen.classes.tolist(), seen.counts.tolist(), seen.means, strict=True):
            if label in held:
                means[held[label]] += (mean - means[held[label]]) * (count / (prior + count))
        return self._changed(means=means)

    def covariance_of(self, label: int) -> Tensor:
        """Return the covariance (D, D) of one class, in float64 on the CPU.

        Raises:
            LatentError: If there is no such class, or there are only means.
        """
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
        total = torch.zeros_like(self.covariances[0], dtype=torch.float64, device="cpu")
        for share, covariance in zip(shares.tolist(), self.covariances, strict=True):
            total.add_(covariance.cpu().double(), alpha=share)
        return total

    def sample(
        self, n: int, generator: torch.Generator | None = None, classes: Sequence[int] | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw n latents of each class from N(m_c, S_c); S_c may be singular.

        Args:
            n: Number of latents for each class.
            generator: Source of the draw; the same state gives the same latents.
            classes: Which classes; all of them by default.

        Returns:
            Latents `(n C, D)` and their classes, class after class.
        """
        n = check_whole(n, "n", least=1)
        self._require_covariance()
        places = range(self.rows) if classes is None else self._places(classes)
        noise = torch.zeros(n, self._noise_width(), dtype=torch.float64, device="cpu")
        z = [self._drawn(place, standard_normal(noise.shape, noise, generator)) for place in places]
        labels = self.classes[torch.tensor(list(places), device=self.classes.device)].repeat_interleave(n)
        return torch.cat(z).to(self.means), labels

    def transport(self, aligner: Transporter) -> ClassStatistics:
        """Move these statistics into the space of the current model.

        Args:
            aligner: Fitted with `direction="forward"` on data of the new classes.
        """
        return aligner.transport(self)

    def affine(self, matrix: Tensor, offset: Tensor) -> ClassStatistics:
        """Return the statistics of `z A + b`: means `m A + b`, covariances `A'SA`.

        The low-rank form keeps `F A`, the exact `A' shared A`, and of `A' diag(d) A` the diagonal.

        Args:
            matrix: A, (D, D).
            offset: b, (D,).
        """
        dim = self.require_fitted()
        if matrix.shape != (dim, dim) or offset.shape != (dim,):
            raise LatentError(f"expected a matrix ({dim}, {dim}) and an offset ({dim},), got {tuple(matrix.shape)}")
        a, b = (t.detach().cpu().double() for t in (matrix, offset))
        moved = {"means": self.means.cpu().double() @ a + b}
        held = {
            name: getattr(self, name)
            for name in ("covariances", "factors", "diagonals", "shared")
            if name in self._buffers
        }
        for name, tensor in held.items():
            if name in ("covariances", "shared"):
                # One class at a time: all of them in float64 would double or triple the memory.
                each = [(a.t() @ s.cpu().double() @ a).to(s.dtype) for s in tensor.reshape(-1, dim, dim)]
                moved[name] = torch.stack(each).reshape(tensor.shape)
            elif name in ("factors", "diagonals"):
                moved[name] = tensor.cpu().double() @ (a if name == "factors" else a.square())
        return self._changed(**moved)

    def resampled(
        self,
        move: Callable[[Tensor], Tensor],
        per_class: int | None = None,
        generator: torch.Generator | None = None,
    ) -> ClassStatistics:
        """Return the statistics of latents that any function moves, through samples; the counts stay.

        The samples of a class have exactly its mean and, if there are enough of them, its covariance: a move that is
        affine is then followed without sampling error. With means only, the means are moved.

        Args:
            move: Rows `(N, D)` to rows `(N, D)`.
            per_class: Samples for each class; by default 1,000, or 1.5 times the dimension if that is more.
            generator: Source of the draw.
        """
        dim = self.require_fitted()
        if self.form == "none":
            return self.with_means(move(self.means))
        n = max(1000, 3 * dim // 2) if per_class is None else check_whole(per_class, "per_class", least=2)
        double = torch.zeros(0, dtype=torch.float64, device="cpu")
        noise = _matched(standard_normal((n, self._noise_width()), double, generator))
        around = noise[:, :dim] @ _root(self.shared) if self.form == "low-rank" else double

        def moved(z: Tensor) -> Tensor:
            return move(z.to(self.means)).detach().cpu()

        def groups() -> Iterator[tuple[Tensor, Tensor]]:
            for place, mean in enumerate(self.means.cpu().double()):
                rows = moved(self._drawn(place, noise))
                # Samples of a class do not hold what all classes share beyond its leading directions.
                yield rows, moved(mean + around) if self.form == "low-rank" else rows

        made = self._collected(self.classes.cpu(), self.counts.cpu(), groups(), dim, self.means.dtype)
        return made.to(self.means.device)

    def _noise_width(self) -> int:
        dim = self.require_fitted()
        return dim + min(self.rank, dim) if self.form == "low-rank" else dim

    def _drawn(self, place: int, noise: Tensor) -> Tensor:
        """Turn standard normal rows into latents of one class, in float64 on the CPU."""
        _, mean, spread = self._entry(place)
        if self.form == "full":
            return mean + noise @ _root(spread["covariances"])
        dim = len(mean)
        z = mean + noise[:, :dim] * spread["diagonals"].clamp(min=0).sqrt()
        return z + noise[:, dim:] @ spread["factors"] if self.form == "low-rank" else z

    def _held(self) -> dict[int, int]:
        """Return the place of each class."""
        self.require_fitted()
        return {label: place for place, label in enumerate(self.classes.tolist())}

    def _places(self, classes: Sequence[int] | Tensor) -> list[int]:
        """Return where these classes stand."""
        held, wanted = self._held(), whole_numbers(classes)
        wanted = [wanted] if isinstance(wanted, int) else wanted
        missing = [label for label in wanted if label not in held]
        if missing:
            raise LatentError(f"there are no statistics of class {missing[0]}")
        return [held[label] for label in wanted]

    def _require_covariance(self) -> None:
        self.require_fitted()
        if self.form == "none":
            raise LatentError('these statistics hold means only: make them with another covariance than "none"')


def _centred(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of rows, and x with x'x their covariance."""
    rows = rows.double()
    mean = rows.mean(dim=0)
    return mean, (rows - mean) / math.sqrt(len(rows))


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
