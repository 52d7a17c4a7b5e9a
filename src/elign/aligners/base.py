"""The contract of all aligners: learn from pairs of latents how to undo drift, then align latents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from elign.statistics.class_statistics import ClassStatistics
from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import extract_pairs
from elign.utils.fitted import FittedModule, Progress
from elign.utils.tensors import check_finite, check_pairs, check_tensor, check_weights

Direction = Literal["backward", "forward"]
"""Current latents to where the previous model put them, or previous ones to where the current model puts them."""

# Enough rows for means that are steady to a few per cent; in blocks, so that memory does not grow with them.
_REPORT_ROWS, _REPORT_BLOCK = 4096, 256


@dataclass(frozen=True)
class FitReport:
    """What a fit saw and did; `aligner.report` after `fit` or `fit_latents`.

    Means are over training pairs: all of them, or 4096 evenly spread ones when there are more.

    Example:
        >>> import torch, elign
        >>> z = torch.randn(100, 4)
        >>> report = elign.MeanShift().fit_latents(z, z + 1).report
        >>> report.rows, report.dim, round(report.drift_before, 2), round(report.drift_after, 2)
        (100, 4, 2.0, 0.0)
    """

    rows: int
    """Pairs of latents learned from."""
    dim: int
    """Latent dimension."""
    seconds: float = 0.0
    """Time of learning, without the extraction of latents."""
    drift_before: float = 0.0
    """Mean distance of current from previous latents."""
    drift_after: float = 0.0
    """Mean distance of aligned from previous latents; of an aligner that was fitted forward, from current ones."""
    energy_previous: float | None = None
    """Mean energy of previous latents under the final weights; all energies are None if the aligner has none."""
    energy_current: float | None = None
    """Mean energy of current latents: higher than `energy_previous` when the fit worked (forward: lower)."""
    energy_aligned: float | None = None
    """Mean energy of aligned latents."""
    loss: Tensor = field(default_factory=lambda: torch.zeros(0), compare=False)
    """Training loss of each iteration, mean E(previous) - mean E(sampled); of `MLPMap`, the error of each epoch."""


class Aligner(FittedModule):
    """Undoes the drift of latents between a previous and a current model. Base class; see `EnergyAligner`.

    State lives in the `state_dict` and moves with `.to()`. Labels never enter: an aligner sees latents only.

    Example:
        >>> import torch, elign
        >>> class Halve(elign.Aligner):                                   # an aligner of your own: _learn and _move
        ...     def _learn(self, z_prev, z_cur, progress):
        ...         pass                                            # nothing to learn from the pairs
        ...     def _move(self, rows, generator):
        ...         return rows / 2
        >>> z = torch.ones(2, 3)
        >>> Halve().fit_latents(z, 2 * z).align(2 * z, where=torch.tensor([True, False]))
        tensor([[1., 1., 1.],
                [2., 2., 2.]])
    """

    how_to_fit = "fit(...) or fit_latents(...)"
    needs_images: ClassVar[bool] = False
    """Whether it learns from images and models, with `fit`, and not from latents alone."""
    seed = 0

    def __init__(self) -> None:
        super().__init__()
        self.report: FitReport | None = None
        # A buffer, so that files hold it; nothing could be loaded into a tensor that was made under inference mode.
        with torch.inference_mode(False):
            self.register_buffer("is_forward", torch.tensor(False))

    @property
    def direction(self) -> Direction:
        """Which way it moves latents; `backward` unless it was fitted forward."""
        return "forward" if self.is_forward else "backward"

    def fit(
        self,
        previous: Callable[[Any], Tensor],
        current: Callable[[Any], Tensor],
        data: Iterable[Any],
        *,
        passes: int = 1,
        mixup: float | None = None,
        inputs: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
        direction: Direction = "backward",
        progress: Progress | None = None,
    ) -> Self:
        """Learn from data of the current task.

        Each input goes through both models once per pass, without gradients and in evaluation mode. Modules, and
        modules whose methods are given, are put into that mode and back.

        Args:
            previous: Inputs to latents, before the task was learned: a module or any callable. `Latents(model, "head")`
                reads them off a whole model.
            current: The same after the task was learned.
            data: Batches of inputs: tensors, or tuples, lists or mappings whose first entry is the input. Labels in
                them are ignored.
            passes: How often to go through `data`; more than one makes sense when it augments at random.
            mixup: Alpha of the Beta distribution that blends each batch of images with its own permutation (one
                coefficient per batch); None for no mixup.
            inputs: Takes the models' input out of a batch, if it is not the first entry.
            device: Where to run the models; by default where the parameters of `current` are.
            direction: `backward` for latents of the current model, `forward` for `ClassStatistics` of the previous one.
            progress: Called now and then while learning.
        """
        z_prev, z_cur = extract_pairs(
            previous, current, data, passes=passes, mixup=mixup, inputs=inputs, device=device, seed=self.seed
        )
        return self.fit_latents(z_prev, z_cur, direction=direction, progress=progress)

    def fit_latents(
        self, z_prev: Tensor, z_cur: Tensor, *, direction: Direction = "backward", progress: Progress | None = None
    ) -> Self:
        """Learn from latents of the same inputs under the previous and the current model, both `(N, D)`; see `fit`.

        A fit that is broken off leaves this aligner not fitted.
        """
        if direction not in get_args(Direction):
            raise OptionError(f"direction must be one of {', '.join(get_args(Direction))}, got {direction!r}")
        z_prev, z_cur = check_pairs(z_prev, z_cur)
        forward = direction == "forward"
        # From here on latents move from `source` to `target`.
        target, source = (z_cur, z_prev) if forward else (z_prev, z_cur)
        start = time.perf_counter()
        # What is learned must not depend on the caller's modes: autocast would round it, and parameters that are made
        # under inference mode could never be changed again.
        with torch.inference_mode(False), torch.autocast(z_cur.device.type, enabled=False):
            try:
                self._build(source.shape[1])
                self.to(source.device)
                self.is_forward = torch.tensor(forward, device=source.device)
                report = self._learn(target, source, progress) or FitReport(rows=len(source), dim=source.shape[1])
                seconds = time.perf_counter() - start
                every = -(-len(source) // _REPORT_ROWS)
                self.report = replace(report, seconds=seconds, **self._means(target[::every], source[::every]))
            except BaseException:
                self._forget()
                self.report = None
                raise
        return self

    def align(self, z: Tensor, *, where: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Move latents to where the previous model would have put them (or forward, if it was fitted so).

        Args:
            z: Latents `(..., D)` of any floating dtype, on any device.
            where: Which rows to move, of shape `(...)`: a bool mask, or a weight per row (0 leaves a row as it is, bit
                for bit, 1 moves it all the way, more goes further). All rows when not given.
            generator: Source of noise, for aligners that use some.

        Returns:
            Aligned latents with the shape, dtype and device of `z`. Gradients (`backward`, `torch.autograd.grad`) pass
            through unchanged, as if alignment were a constant added to `z`; `torch.func` cannot follow an energy.
        """
        self.require_fitted()
        check_tensor(z, "latents")
        if z.ndim == 0 or self.dim not in (None, z.shape[-1]):
            raise LatentError(f"this aligner takes latents of dimension {self.dim}, got shape {tuple(z.shape)}")
        check_finite(z, "latents")
        rows = z.detach().reshape(-1, z.shape[-1])
        with torch.autocast(z.device.type, enabled=False):
            if where is None:
                moved = self._move(rows, generator)
            else:
                moved = self._move_some(rows, check_weights(where, z).reshape(-1), generator)
        moved = moved.reshape(z.shape)
        # Zero, with the gradient of z: alignment must not cut a saliency map off its image.
        return moved + (z - z.detach()) if z.requires_grad and torch.is_grad_enabled() else moved

    def forward(self, z: Tensor) -> Tensor:
        """Align all rows, so that an aligner can stand in an `nn.Sequential`."""
        return self.align(z)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        """Return A (D, D) and b (D,) in float64 on the CPU if this aligner computes `z A + b`, else None."""
        return None

    def transport(self, statistics: ClassStatistics, *, per_class: int | None = None) -> ClassStatistics:
        """Move the statistics of classes from the previous model's space into the current one's.

        Exact for affine aligners: means `m A + b`, covariances `A'SA`. Others move samples, `per_class` of each class;
        see `ClassStatistics.resampled`. Needs an aligner that was fitted with `direction="forward"`.
        """
        self._check_transport(statistics)
        if (found := self.affine()) is not None:
            return statistics.affine(*found)
        # One stream for samples and noise, since two of one seed would give the same numbers to both; of a fixed seed,
        # so that the same statistics come out at each call.
        generator = torch.Generator().manual_seed(self.seed)
        return statistics.resampled(lambda z: self.align(z, generator=generator), per_class, generator)

    def _check_transport(self, statistics: ClassStatistics) -> None:
        """Raise if this aligner cannot transport these statistics."""
        dim = self.require_fitted()
        if self.direction != "forward":
            raise OptionError('statistics are transported by an aligner that was fitted with direction="forward"')
        if statistics.require_fitted() != dim:
            raise LatentError(f"this aligner takes latents of dimension {dim}, the statistics have {statistics.dim}")

    def traceable(self) -> nn.Module:
        """Return a module with the `align` of this aligner that torch can record."""
        return TracedAligner(self, self._move)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # Files from before there were two directions do not say which one it is.
        if f"{prefix}latent_dim" in state_dict and f"{prefix}is_forward" not in state_dict:
            state_dict = {**state_dict, f"{prefix}is_forward": torch.tensor(False)}
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _learn(self, z_prev: Tensor, z_cur: Tensor, progress: Progress | None) -> FitReport | None:
        """Fill the parameters made by `_build` from checked latents, both (N, D) on one device.

        `z_prev` is where latents are moved to, `z_cur` where from: fitted forward, the two are exchanged. Return a
        report only if there is more to say than the numbers of rows and dimensions.
        """
        raise NotImplementedError

    def _move(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        """Align each row of checked, detached latents (N, D); N may be 0."""
        raise NotImplementedError

    def _move_some(self, rows: Tensor, weights: Tensor, generator: torch.Generator | None) -> Tensor:
        chosen = weights != 0
        if not chosen.any():
            return rows.clone()
        moved = self._move(rows[chosen], generator)
        if weights.dtype != torch.bool:
            moved = torch.lerp(rows[chosen], moved, weights[chosen].to(rows.dtype).unsqueeze(1))
        result = rows.clone()
        result[chosen] = moved
        return result

    @torch.no_grad()
    def _means(self, z_prev: Tensor, z_cur: Tensor) -> dict[str, Any]:
        """Return the means of a `FitReport`."""
        sums: dict[str, float] = {}
        generator = torch.Generator().manual_seed(self.seed)
        for before, after in zip(torch.split(z_prev, _REPORT_BLOCK), torch.split(z_cur, _REPORT_BLOCK), strict=True):
            aligned = self.align(after, generator=generator)
            for name, values in self._row_values(before, after, aligned).items():
                sums[name] = sums.get(name, 0.0) + values.sum().item()
        return {name: total / len(z_cur) for name, total in sums.items()}

    def _row_values(self, z_prev: Tensor, z_cur: Tensor, aligned: Tensor) -> dict[str, Tensor]:
        """Return what a `FitReport` says about each row."""
        return {"drift_before": (z_cur - z_prev).norm(dim=1), "drift_after": (aligned - z_prev).norm(dim=1)}


def check_size(*learned: Tensor) -> None:
    """Raise if sums over latents became NaN or infinite."""
    if not all(bool(tensor.isfinite().all()) for tensor in learned):
        raise LatentError("these latents are too large for sums over them: scale them down")


class TracedAligner(nn.Module):
    """An aligner whose `align` can be recorded: no checks of values, every row moved and then chosen from.

    `move` is the `_move` of an aligner, in tensor operations only; `energy` is for gates that ask for it.
    """

    def __init__(self, aligner: Aligner, move: Callable[[Tensor, None], Tensor]) -> None:
        super().__init__()
        # A part, so that its tensors have names in the graph.
        self.aligner, self.move = aligner, move
        self.energy: nn.Module | None = getattr(aligner, "energy", None)

    def align(self, z: Tensor, *, where: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Map latents `(..., D)` to aligned latents; `where` as in `Aligner.align`."""
        # A shape is known while recording; latents (N, D) need no reshaping in the graph.
        rows = z if z.ndim == 2 else z.reshape(-1, z.shape[-1])
        moved = self.move(rows, None)
        if where is not None:
            weights = where.reshape(-1, 1)
            if weights.dtype != torch.bool:
                moved = torch.lerp(rows, moved, weights.to(rows.dtype))
                weights = weights != 0
            moved = torch.where(weights, moved, rows)
        return moved if z.ndim == 2 else moved.reshape(z.shape)
