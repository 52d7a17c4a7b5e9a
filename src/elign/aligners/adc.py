"""Drift at the means of old classes, measured on new images that are changed to look like them: ADC."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor

from elign.aligners.base import Direction
from elign.aligners.kernel import PairShift
from elign.statistics.class_statistics import ClassStatistics, check_statistics
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import Pairs, evaluating, extract_batches
from elign.utils.fitted import Progress, Ranges, register
from elign.utils.tensors import (
    MOST_CLASSES,
    MOST_LATENTS,
    check_finite,
    check_number,
    check_whole,
    compute_dtype,
)

Norm = Literal["batch", "image"]
Bound = float | Tensor

_Model = Callable[[Any], Tensor]
_FARTHEST = 1e25  # latents from the means, in units of the means' own distances


class _Found(NamedTuple):
    """What `fit` hands to `_learn` beside the pairs."""

    labels: Tensor
    classes: Tensor
    means: Tensor
    kept: Tensor


@register
class ADC(PairShift):
    """Adds the drift of adversarial images to the mean of each old class (ADC, D. Goswami et al., CVPR 2024).

    For an old class with mean m, take the `images` new images nearest to m under the previous model f, and make `steps`
    steps `x - step g / |g|`, with g the gradient of the mean squared error of f(x) and m, clamped to the range of the
    data. The images that the nearest mean of f takes for the class are kept; the class drifts by the mean of
    `current(x) - previous(x)`. If none is kept, the nearest images count as they are.

    The paper's formula is for one image (`norm="image"`). The released code differs: it divides by the norm over all
    images of a class (`norm="batch"`, the default, since the published `step` is for it), and clamps to one range for
    all channels. Of 100 images, each moves by about a tenth of `step` then.

    `transport` moves the mean of each class by its own drift and leaves covariances as they are. A single latent moves
    as the nearest mean does. Needs images and models with gradients: `fit`, not `fit_latents`.

    Args:
        images: Nearest images of each class.
        steps: Steps of each image; 0 takes the nearest images as they are.
        step: Length of a step, in units of the images' values.
        norm: Of the gradient, over all images of a class (`batch`) or over each of them (`image`).
        batch_size: Images that go through a model at one time.

    Attributes:
        pairs: `Pairs` of the images that the drifts are means of: latents under both models, and the old class.
            Fit other aligners on these and on the new data's pairs. Files do not hold them.
        classes: (C,) the old classes.
        kept: (C,) how many images of each class were kept; 0 where the unchanged images count.

    Example:
        >>> import torch, elign
        >>> old, new = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        >>> images = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        >>> statistics = elign.ClassStatistics().update(old(images).detach(), torch.arange(60) % 2)
        >>> aligner = elign.ADC(images=20).fit(old, new, [images], statistics=statistics, direction="forward")
        >>> aligner.transport(statistics).means.shape, len(aligner.pairs.labels) > 0
        (torch.Size([2, 2]), True)
    """

    how_to_fit = "fit(..., statistics=...)"
    needs_images = True
    ranges: ClassVar[Ranges] = {"classes": (0, MOST_CLASSES), "kept": (0, MOST_LATENTS)}
    classes: Tensor
    kept: Tensor

    def __init__(
        self, *, images: int = 100, steps: int = 3, step: float = 25.0, norm: Norm = "batch", batch_size: int = 100
    ) -> None:
        super().__init__(anchors=MOST_CLASSES, seed=0)
        self.images = check_whole(images, "images", least=1)
        self.steps = check_whole(steps, "steps", least=0, most=10_000)
        self.step = check_number(step, "step")
        if norm not in get_args(Norm):
            raise OptionError(f"norm must be one of {', '.join(get_args(Norm))}, got {str(norm)[:80]!r}")
        self.norm: Norm = norm
        self.batch_size = check_whole(batch_size, "batch_size", least=1)
        self.pairs: Pairs | None = None
        self._found: _Found | None = None

    def fit(  # type: ignore[override]
        self,
        previous: Callable[[Any], Tensor],
        current: Callable[[Any], Tensor],
        data: Iterable[Any],
        *,
        statistics: ClassStatistics,
        value_range: tuple[Bound, Bound] | None = None,
        passes: int = 1,
        mixup: float | None = None,
        inputs: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        direction: Direction = "backward",
        progress: Progress | None = None,
    ) -> Self:
        """Measure the drift of old classes on data of the current task.

        Memory holds at most `images` images of each old class. Parameters get no gradients. The arguments are those of
        `Aligner.fit`, and:

        Args:
            previous: Inputs to latents, before the task was learned; gradients must pass through it.
            current: The same after the task was learned.
            data: Batches of images: floating-point tensors of one size.
            statistics: Of the old classes, in the previous model's space.
            value_range: The smallest and the largest value of an image, as numbers or as tensors that fit an image. By
                default those of the data, for each channel of images (N, channels, height, width).
            passes: How often to go through `data`.
            mixup: As for `Aligner.fit`.
            inputs: Takes the models' input out of a batch.
            device: Where to run the models; by default where the parameters of `previous` are.
            direction: `forward` to transport statistics.
            progress: Called after each class, with the mean squared error of its images.

        Raises:
            LatentError: If inputs are no images of one size, or a model does not give one latent for each.
            OptionError: If no gradients pass through `previous`.
        """
        check_statistics(statistics, None)
        nearest = _Nearest(statistics, self.images)
        batches = extract_batches(
            (_copied, previous), data, passes=passes, mixup=mixup, inputs=inputs, device=device, seed=self.seed
        )
        # Closed after an error, too: it holds the models and the caller's mode.
        with closing(batches):
            for x, z in batches:
                nearest.add(x, _rows(z, x, "previous"))
        low, high = _bounds(nearest, value_range)
        # Gradients cannot pass what was computed in inference mode.
        with torch.inference_mode(False), evaluating(previous, current):
            parts, kept = [], []
            for place in range(statistics.rows):
                z_prev, z_cur, count = self._drifted(previous, current, nearest, place, low, high)
                parts.append((z_prev, z_cur))
                kept.append(count)
                if progress is not None:
                    error = (z_prev.cpu().double() - nearest.means[place]).square().mean()
                    progress(place + 1, statistics.rows, float(error))
            z_prev, z_cur = (torch.cat(side) for side in zip(*parts, strict=True))
            classes = statistics.classes.cpu().clone()
            labels = classes.repeat_interleave(torch.tensor([len(part[0]) for part in parts], device="cpu"))
            self._found = _Found(labels, classes, nearest.means, torch.tensor(kept, device="cpu"))
            try:
                super().fit_latents(z_prev, z_cur, direction=direction)
            finally:
                self._found = None
            self.pairs = Pairs(z_prev, z_cur, labels.to(z_cur.device))
        return self

    def fit_latents(
        self, z_prev: Tensor, z_cur: Tensor, *, direction: Direction = "backward", progress: Progress | None = None
    ) -> Self:
        """Raise: latents have no images that could be changed.

        Raises:
            OptionError: Always.
        """
        raise OptionError("ADC needs images and both models: call fit(previous, current, data, statistics=...)")

    def transport(self, statistics: ClassStatistics, *, per_class: int | None = None) -> ClassStatistics:
        """Add the drift of each class to its mean; covariances stay as they are.

        Raises:
            LatentError: If there is a class that this aligner was not fitted on.
        """
        self._check_transport(statistics)
        places = {label: place for place, label in enumerate(self.classes.tolist())}
        missing = [label for label in statistics.classes.tolist() if label not in places]
        if missing:
            raise LatentError(f"this ADC was not fitted on class {missing[0]}: fit it with statistics of all classes")
        order = [places[label] for label in statistics.classes.tolist()]
        return statistics.with_means(statistics.means + self.drifts.to(statistics.means)[order])

    def _build(self, dim: int) -> None:
        super()._build(dim)
        self.register_buffer("classes", torch.arange(self.rows))
        self.register_buffer("kept", torch.zeros(self.rows, dtype=torch.int64))

    def _forget(self) -> None:
        super()._forget()
        self.pairs = None

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> None:
        assert self._found is not None  # noqa: S101  (`fit` sees to it)
        labels, classes, means, kept = self._found
        # From source to target, in float64 on the CPU: sums of large latents.
        moves = z_prev.cpu().double() - z_cur.cpu().double()
        counts = torch.unique_consecutive(labels, return_counts=True)[1].tolist()
        drifts = torch.stack([rows.mean(dim=0) for rows in torch.split(moves, counts)])
        # Backward, latents come from where the means have gone.
        self.points = (means if self.is_forward else means - drifts).to(z_cur)
        self.drifts = drifts.to(z_cur)
        if not bool(self.points.isfinite().all() & self.drifts.isfinite().all()):
            raise LatentError("these latents are too large for differences of them: scale them down")
        self.classes, self.kept = classes.to(z_cur.device), kept.to(z_cur.device)
        self.rows = len(classes)

    def _check_state(self) -> None:
        classes = self.classes.tolist()
        if classes != sorted(set(classes)):
            raise LatentError("class ids must ascend")

    def _weigher(self, points: Tensor) -> Callable[[Tensor], Tensor]:
        # Seen from the middle of the means and in units of their distances: squares of huge latents would be infinite.
        center = points.mean(dim=0)
        scale = (points - center).abs().max().clamp(min=torch.finfo(points.dtype).tiny)
        points = (points - center) / scale
        lengths = points.square().sum(dim=1)
        places = torch.arange(len(points), device=points.device)

        def weights(some: Tensor) -> Tensor:
            nearness = ((some - center) / scale).clamp(-_FARTHEST, _FARTHEST) @ points.t() - lengths / 2
            return (nearness.argmax(dim=1, keepdim=True) == places).to(some.dtype)

        return weights

    def _drifted(
        self, previous: _Model, current: _Model, nearest: _Nearest, place: int, low: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        """Return latents of changed images of one class under both models, and how many of them were kept."""
        x = nearest.images_of(place)
        changed = self._changed_images(previous, x, nearest, place, low, high)
        z_prev = self._latents(previous, changed, "previous")
        own = nearest.distances_of(z_prev).argmin(dim=0) == place
        count = int(own.sum())
        if count:
            own = own.to(x.device)
            changed, z_prev = changed[own], z_prev[own]
        else:
            changed, z_prev = x, self._latents(previous, x, "previous")
        return z_prev, self._latents(current, changed, "current"), count

    def _changed_images(
        self, previous: _Model, x: Tensor, nearest: _Nearest, place: int, low: Tensor, high: Tensor
    ) -> Tensor:
        given = x.dtype
        # In half precision small steps would be lost.
        x = x.to(compute_dtype(x))
        low, high = low.to(x), high.to(x)
        # Over a whole class one number for all chunks and steps, which the norm takes off again: residuals as they are
        # may be too large or too small for the gradient's type.
        unit = nearest.distances[place].amax().clamp(min=1e-300)
        for _ in range(self.steps):
            parts = torch.split(x, self.batch_size)
            g = torch.cat([_gradient(previous, part, given, nearest.means[place], unit) for part in parts])
            dims = tuple(range(1 if self.norm == "image" else 0, g.ndim))
            x = torch.minimum(torch.maximum(x - self.step * _directions(g, dims), low), high)
        return x.to(given)

    @torch.no_grad()
    def _latents(self, model: _Model, x: Tensor, which: str) -> Tensor:
        """Return latents of images, chunk by chunk."""
        z = torch.cat([_rows(model(part.clone()), part, which) for part in torch.split(x, self.batch_size)])
        return z.to(compute_dtype(z))


class _Nearest:
    """The images of a stream whose latents are nearest to the mean of each class; each image is held once."""

    def __init__(self, statistics: ClassStatistics, images: int) -> None:
        self.statistics, self.count = statistics, images
        self.means = statistics.means.detach().cpu().double()
        self.distances = self.means.new_zeros(len(self.means), 0)
        self.low: Tensor | None = None
        self.high: Tensor | None = None
        self._numbers = torch.zeros(len(self.means), 0, dtype=torch.int64, device="cpu")
        self._held: dict[int, Tensor] = {}
        self._seen = 0
        self._device = torch.device("cpu")

    def add(self, x: Tensor, z: Tensor) -> None:
        check_finite(z, "latents of previous")
        check_statistics(self.statistics, z.shape[1])
        some = next(iter(self._held.values()), x[0])
        if some.shape != x.shape[1:]:
            raise LatentError(f"images must have one size, got {tuple(some.shape)} and {tuple(x.shape[1:])}")
        # A range for each channel, if there are channels.
        over = (0, *range(2, x.ndim)) if x.ndim >= 4 else tuple(range(x.ndim))
        low, high = x.amin(dim=over, keepdim=True), x.amax(dim=over, keepdim=True)
        self.low = low if self.low is None else torch.minimum(self.low, low)
        self.high = high if self.high is None else torch.maximum(self.high, high)
        numbers = torch.arange(self._seen, self._seen + len(x), device="cpu")
        distances = torch.cat([self.distances, self.distances_of(z)], dim=1)
        self._numbers = torch.cat([self._numbers, numbers.expand(len(self.means), -1)], dim=1)
        # Stable: of equally near images the first ones.
        order = distances.sort(dim=1, stable=True).indices[:, : self.count]
        self.distances, self._numbers = distances.gather(1, order), self._numbers.gather(1, order)
        needed = set(torch.unique(self._numbers).tolist())
        self._held = {number: image for number, image in self._held.items() if number in needed}
        for place, number in enumerate(numbers.tolist()):
            if number in needed:
                self._held[number] = x[place].cpu().clone()
        self._seen += len(x)
        self._device = x.device

    def distances_of(self, z: Tensor) -> Tensor:
        """Return the distances (C, N) of all means to latents (N, D)."""
        exact = "donot_use_mm_for_euclid_dist"  # sums of squares, which are not differences of large numbers
        return torch.cdist(self.means, z.detach().cpu().double(), compute_mode=exact)

    def images_of(self, place: int) -> Tensor:
        """Return the nearest images of a class, where the models are."""
        return torch.stack([self._held[number] for number in self._numbers[place].tolist()]).to(self._device)


def _copied(x: Any) -> Tensor:
    """Return a copy of images: a model may begin with an operation in place."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise LatentError("ADC needs inputs that are floating-point tensors; use inputs=... to convert them")
    if not len(x) or not bool(x.isfinite().all()):
        raise LatentError(f"images are empty or hold NaN or infinite numbers (shape {tuple(x.shape)})")
    return x.detach().clone()


def _rows(z: Any, x: Tensor, which: str) -> Tensor:
    """Return latents (N, D) of images."""
    if not isinstance(z, Tensor) or z.ndim < 2 or z.shape[:-1].numel() != len(x):
        shape = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise LatentError(
            f"{which} must return one latent for each of {len(x)} images, (N, D), got {shape}: see elign.Latents"
        )
    return z.reshape(len(x), z.shape[-1])


def _gradient(previous: _Model, x: Tensor, given: torch.dtype, mean: Tensor, unit: Tensor) -> Tensor:
    """Return a multiple of the gradient of the squared distance to a mean; parameters get none."""
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        # A copy: a model may begin with an operation in place, which a leaf of the graph does not take.
        z = _rows(previous(x.to(given, copy=True)), x, "previous")
        pull = ((z.detach().cpu().double() - mean) / unit).to(z)
        g = torch.autograd.grad(z, x, pull, allow_unused=True)[0] if z.requires_grad else None
    if g is None:
        raise OptionError(
            "no gradients pass from the latents of previous to its inputs, and ADC follows them: give a module, or a "
            "function without torch.no_grad"
        )
    # One pixel without a slope (a square root at 0) must not spoil the norm of all.
    return g.nan_to_num(0.0, 0.0, 0.0)


def _directions(g: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Divide by the norm over some dimensions; 0 stays 0. Squares of huge or tiny numbers are infinite or 0."""
    tiny = torch.finfo(g.dtype).tiny
    g = g / g.abs().amax(dim=dims, keepdim=True).clamp(min=tiny)
    return g / g.square().sum(dim=dims, keepdim=True).sqrt().clamp(min=tiny)


def _bounds(nearest: _Nearest, given: tuple[Bound, Bound] | None) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of an image."""
    assert nearest.low is not None and nearest.high is not None  # noqa: S101, PT018  (there was a batch)
    if given is None:
        return nearest.low, nearest.high
    try:
        low, high = (torch.as_tensor(bound, device=nearest.low.device).to(nearest.low) for bound in given)
        fits = bool(low.isfinite().all() & high.isfinite().all() & (low <= high).all())
        for bound in (low, high):
            bound.expand(nearest.images_of(0).shape)
    except (TypeError, ValueError, RuntimeError):
        fits = False
    if not fits:
        raise OptionError("value_range must be the smallest and the largest value of an image: two finite numbers")
    return low, high
