"""Tensors and numbers: checks of those that come from outside, types to compute in, noise, accuracy."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elign.utils.errors import LatentError, OptionError

MOST_CLASSES = 1_000_000  # more than any head has; a label beyond it is an identifier, not an output
MOST_LATENTS = 1 << 53  # of a class, in files: more cannot be counted in floating point
WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_tensor(z: object, what: str) -> None:
    """Raise if `z` is not a torch tensor."""
    if not isinstance(z, Tensor):
        raise LatentError(f"{what} must be a torch tensor, got {type(z).__name__} (torch.from_numpy makes one)")


def check_finite(z: Tensor, what: str) -> None:
    """Raise if `z` is not a floating-point tensor or holds NaN or infinite numbers."""
    check_tensor(z, what)
    if not z.is_floating_point():
        raise LatentError(f"{what} must be floating point, got {z.dtype}")
    # One cheap sum finds nearly every case; only a suspicious one is worth a mask of the whole tensor.
    if not z.detach().sum(dtype=torch.float32).isfinite() and not z.isfinite().all():
        bad = int((~z.isfinite()).any(dim=-1).sum())
        raise LatentError(f"{what} hold NaN or infinite numbers in {bad} rows: check the model or its input")


def check_rows(z: Tensor, what: str) -> None:
    """Raise if `z` is not a non-empty `(N, D)` of finite numbers."""
    check_tensor(z, what)
    if z.ndim != 2:
        raise LatentError(f"{what} must have shape (N, D), got {tuple(z.shape)}")
    if z.numel() == 0:
        raise LatentError(f"{what} is empty (shape {tuple(z.shape)}): there is nothing to learn from")
    check_finite(z, what)


def check_pairs(z_prev: Tensor, z_cur: Tensor) -> tuple[Tensor, Tensor]:
    """Return two sets of latents of the same inputs as detached `(N, D)` float32 (or float64) on one device."""
    check_rows(z_prev, "z_prev")
    check_rows(z_cur, "z_cur")
    if z_prev.shape != z_cur.shape:
        raise LatentError(
            f"z_prev {tuple(z_prev.shape)} and z_cur {tuple(z_cur.shape)} must be latents of the same inputs, in order"
        )
    dtype = compute_dtype(z_cur)
    current, previous = z_cur.detach().to(dtype), z_prev.detach().to(z_cur.device, dtype)
    if previous.dtype != z_prev.dtype:
        check_finite(previous, f"z_prev as {dtype}")
    # Latents extracted under inference mode cannot take part in training: copy those.
    with torch.inference_mode(False):
        current, previous = (z.clone() if z.is_inference() else z for z in (current, previous))
    return previous, current


def check_labels(labels: Tensor, rows: int) -> None:
    """Raise if `labels` are not one class for each of so many rows."""
    check_tensor(labels, "labels")
    if labels.shape != (rows,) or labels.dtype not in WHOLE_NUMBERS:
        raise LatentError(f"labels must be {rows} whole numbers, got {labels.dtype} {tuple(labels.shape)}")
    if rows and int(labels.min()) < 0:
        raise LatentError(f"labels must be >= 0, there is a {int(labels.min())}: take rows without a class out")
    if rows and int(labels.max()) > MOST_CLASSES:
        raise LatentError(f"labels must be <= {MOST_CLASSES}, there is a {int(labels.max())}: number classes from 0 on")


def check_weights(where: Tensor, z: Tensor) -> Tensor:
    """Return a mask or weights for the rows of `z`, on its device; raise if they do not fit."""
    check_tensor(where, "where")
    if where.shape != z.shape[:-1]:
        raise LatentError(f"where must have one entry per row, shape {tuple(z.shape[:-1])}, got {tuple(where.shape)}")
    if where.dtype != torch.bool:
        if not where.is_floating_point():
            raise LatentError(f"where must be bool (a mask) or floating point (weights), got {where.dtype}")
        if not (where.isfinite().all() and (where >= 0).all()):
            raise LatentError("weights in where must be finite and >= 0")
    return where.to(z.device)


def whole_number(number: Any) -> int:
    """Return a whole number (numpy's and torch's too) as a plain one; a TypeError for anything else, bool included."""
    if isinstance(number, bool) or getattr(number, "dtype", None) == torch.bool:
        raise TypeError("a truth value is not a whole number")
    return operator.index(number)


def whole_numbers(given: Any) -> int | list[int]:
    """Return one plain number, or a list of them from a sequence, an array or a tensor; see `whole_number`."""
    single = hasattr(given, "__index__") and not getattr(given, "ndim", 0)
    return whole_number(given) if single else [*map(whole_number, given)]


def check_whole(number: Any, what: str, *, least: int, most: int | None = None) -> int:
    """Return an option as a plain number; raise if it is not a whole one, too small or too large."""
    try:
        found = whole_number(number)
    except TypeError:
        found = least - 1
    if found < least or (most is not None and found > most):
        bound = "" if most is None else f" and <= {most}"
        raise OptionError(f"{what} must be a whole number >= {least}{bound}, got {number!r}")
    return found


def check_number(number: Any, what: str, *, least: float = 0.0, most: float = math.inf, positive: bool = False) -> Any:
    """Return an option unchanged; raise if it is not a finite number in [least, most], or 0 where it must not be."""
    try:
        fits = math.isfinite(number) and least <= number <= most and not (positive and number == 0)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        bound = "> 0" if positive else f">= {least:g}"
        upper = "" if math.isinf(most) else f" and <= {most:g}"
        raise OptionError(f"{what} must be a finite number {bound}{upper}, got {str(number)[:80]}")
    return number


def check_seed(seed: Any) -> int:
    """Return a seed as a plain number; raise if torch or numpy does not take it."""
    return check_whole(seed, "seed", least=0, most=2**63 - 1)


def check_old_classes(given: int | Sequence[int]) -> tuple[int | list[int], list[int]]:
    """Return old classes as they were given, in plain numbers, and as a list of indices."""
    try:
        plain = whole_numbers(given)
    except TypeError:
        plain = []
    count = plain if isinstance(plain, int) else len(plain)
    if 1 <= count <= MOST_CLASSES:
        indices = list(range(plain)) if isinstance(plain, int) else plain
        if min(indices) >= 0 and max(indices) <= MOST_CLASSES:
            return plain, indices
    raise OptionError(f"old_classes must be a number of old classes >= 1, or their indices, got {str(given)[:80]}")


def compute_dtype(z: Tensor) -> torch.dtype:
    """Return float32, or float64 for float64 latents: half precision loses small steps."""
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows by a matrix; cut them off where sums would overflow, since infinity minus infinity is NaN."""
    most = torch.finfo(rows.dtype).max / (8 * rows.shape[-1]) / matrix.abs().max().clamp(min=1)
    return rows.clamp(-most, most) @ matrix


def rounded(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Round scores to a type in which those that are finite stay so: minus infinity is for classes without data."""
    if scores.dtype == dtype:
        return scores
    most = torch.finfo(dtype).max
    return torch.where(scores == -torch.inf, scores, scores.clamp(-most, most)).to(dtype)


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw Gaussian numbers with the dtype and device of `like`; a generator may live on another device."""
    device = generator.device if generator else like.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def fixed_generator(z: Tensor) -> torch.Generator:
    """Make a generator that gives the same noise for the same rows, so that a choice made on them can be repeated."""
    return torch.Generator(z.device).manual_seed(0)


def balanced_accuracy(right: Tensor, labels: Tensor) -> float:
    """Average the accuracy over classes, from which predictions are right `(N,)` and the classes `(N,)`.

    Example:
        >>> import torch
        >>> balanced_accuracy(torch.tensor([True, False, True]), torch.tensor([4, 4, 7]))
        0.75
    """
    classes, places = torch.unique(labels.cpu(), return_inverse=True)
    sums = torch.zeros(len(classes), dtype=torch.float64, device="cpu").index_add_(0, places, right.cpu().double())
    return float((sums / torch.bincount(places)).mean())
