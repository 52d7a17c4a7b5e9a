"""Reading latents off models: `Latents` for a whole model, `extract_pairs` for the training pairs of an aligner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elign.checks import check_labels, check_rows, check_whole
from elign.errors import AttachError, LatentError, OptionError
from elign.heads import find_module, latent_of, unwrapped


class Latents(nn.Module):
    """The latents that reach a head inside a model, as a callable from inputs to latents.

    Runs the whole model and catches what goes into the head, before any aligner that is attached there. Called by
    yourself, it runs the model as it is: `model.eval()` first. What fits or adds latents sees to that by itself.

    Args:
        model: Any module.
        head: The head: a name as in `model.named_modules()`, or the module itself.
        argument: Which argument of the head is the latent: a position or a keyword.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from elign import Latents
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Linear(32, 10))
        >>> Latents(model, "2")(torch.randn(5, 1, 28, 28)).shape
        torch.Size([5, 32])
    """

    def __init__(self, model: nn.Module, head: str | nn.Module, *, argument: int | str = 0) -> None:
        super().__init__()
        # The replicas of DataParallel would hand in their rows in any order, from several devices; and what was
        # compiled does not notice a hook.
        self.model = unwrapped(model)
        self.argument = argument
        self.head_name = _name_of(self.model, find_module(model, head) if isinstance(head, str) else head)

    def forward(self, x: Any) -> Tensor:
        """Inputs of the model to latents `(..., D)`; several calls of the head give their rows one after the other."""
        caught: list[Tensor] = []

        def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # A copy: a head may begin with an operation in place.
            caught.append(latent_of(args, kwargs, self.argument).clone())

        head = find_module(self.model, self.head_name)
        # prepend: an aligner that is attached to this head must not be seen.
        handle = head.register_forward_pre_hook(catch, prepend=True, with_kwargs=True)
        try:
            self.model(x)
        finally:
            handle.remove()
        if not caught:
            raise AttachError(f"the model never called its module {self.head_name!r}: is that the head it uses?")
        return caught[0] if len(caught) == 1 else torch.cat([z.reshape(-1, z.shape[-1]) for z in caught])


def extract_pairs(
    previous: Callable[[Any], Tensor],
    current: Callable[[Any], Tensor],
    data: Iterable[Any],
    *,
    passes: int = 1,
    mixup: float | None = None,
    inputs: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Latents of the same inputs under both models, each `(N, D)`; the arguments are those of `Aligner.fit`."""
    passes = check_whole(passes, "passes", least=1)
    if mixup is not None and not (math.isfinite(mixup) and mixup > 0):
        raise OptionError(f"mixup must be a finite number > 0, or None, got {mixup!r}")
    where = device if device is not None else _device_of(current)
    take = inputs or _first_entry
    blend = _Mixup(mixup, seed) if mixup is not None else None
    pairs: list[tuple[Tensor, Tensor]] = []
    # Not inference mode: whatever models or data sets keep of these tensors must still be of use in later training.
    with evaluating(previous, current), torch.no_grad():
        for number in range(passes):
            seen = len(pairs)
            for batch in data:
                x = _to_device(take(batch), where)
                x = blend(x) if blend else x
                z_prev, z_cur = _rows(previous(x), "previous"), _rows(current(x), "current")
                if z_prev.shape != z_cur.shape:
                    raise LatentError(
                        f"previous gave latents {tuple(z_prev.shape)} and current {tuple(z_cur.shape)} "
                        "for the same batch"
                    )
                pairs.append((z_prev, z_cur))
            if len(pairs) == seen:
                again = " (a generator can be read only once: pass a DataLoader or a list)" if number else ""
                raise LatentError(f"data gave no batch in pass {number + 1} of {passes}{again}")
    z_prev, z_cur = (torch.cat(side) for side in zip(*pairs, strict=True))
    return z_prev, z_cur


def extract_labelled(
    models: Sequence[Callable[[Any], Tensor]],
    data: Iterable[Any],
    *,
    inputs: Callable[[Any], Any] | None = None,
    labels: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Latents `(N, D)` of the same inputs under each model, and their classes `(N,)`; see `fit_blend`."""
    where = device if device is not None else _device_of(models[-1])
    take, told = inputs or _first_entry, labels or _second_entry
    found: list[list[Tensor]] = []
    with evaluating(*models), torch.no_grad():
        for batch in data:
            x = _to_device(take(batch), where)
            given = [model(x) for model in models]
            latents = [_rows(z, "the model") for z in given]
            classes = _classes(told(batch)).to(latents[-1].device)
            if classes.is_floating_point() or classes.is_complex():
                raise LatentError(
                    f"classes must be whole numbers, got {classes.dtype}: say with labels=... where they are"
                )
            classes = classes.long()
            lengths = [len(z) for z in latents]
            _refuse_tokens(given[-1], len(classes))
            if lengths != [len(classes)] * len(models):
                raise LatentError(
                    f"a batch has {lengths} latents but {len(classes)} classes: one whole number for each latent is "
                    "needed (not one-hot rows); say with labels=... where they are"
                )
            found.append([*latents, classes])
    if not found:
        raise LatentError("data gave no batch: there is nothing to learn from")
    *latents, classes = (torch.cat(side) for side in zip(*found, strict=True))
    check_rows(latents[-1], "latents")
    check_labels(classes, len(classes))
    return latents, classes


class _Mixup:
    """Blends a batch of images with its own permutation, one coefficient per batch."""

    def __init__(self, alpha: float, seed: int) -> None:
        self._alpha = alpha
        self._rng = np.random.default_rng(seed)

    def __call__(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise LatentError("mixup needs inputs that are floating-point tensors; use inputs=... to convert them")
        share = float(self._rng.beta(self._alpha, self._alpha))
        order = torch.from_numpy(self._rng.permutation(len(x))).to(x.device)
        return share * x[order] + (1 - share) * x


def _first_entry(batch: Any) -> Any:
    if not isinstance(batch, Mapping | tuple | list):
        return batch
    if not batch:
        raise LatentError(f"data gave an empty {type(batch).__name__} as a batch: there is no input in it")
    return next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]


def _second_entry(batch: Any) -> Any:
    entries = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(entries, tuple | list) or len(entries) < 2:
        raise LatentError(
            "a batch must hold inputs and classes, in this order; use inputs=... and labels=... to say where"
        )
    return entries[1]


def _classes(given: Any) -> Tensor:
    try:
        return torch.as_tensor(given).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LatentError(
            f"classes must be whole numbers, got {type(given).__name__} ({error}): say with labels=... where they are"
        ) from error


def _refuse_tokens(z: Tensor, inputs: int) -> None:
    if z.ndim == 3 and len(z) == inputs and z.shape[1] > 1:
        raise LatentError(
            f"there are {z.shape[1]} latents for each input: the head gets all tokens of an input. Name the layer "
            'inside of it that reads one latent for each, such as "head.fc"'
        )


def _rows(z: Any, which: str) -> Tensor:
    if not isinstance(z, Tensor) or z.ndim < 2:
        shape = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise LatentError(
            f"{which} must return latents (N, D), got {shape}: see elign.Latents to read them off a model; data must "
            "give batches (a DataLoader, not a Dataset)"
        )
    if z.ndim > 3:
        raise LatentError(
            f"{which} returns feature maps {tuple(z.shape)}, not latents (N, D) or (N, tokens, D): name the layer that "
            "reads them once they are flat (inside a head that flattens them itself, its linear layer), or flatten "
            "all but the last dimension yourself"
        )
    return z.reshape(-1, z.shape[-1])


def _to_device(x: Any, device: torch.device | str | None) -> Any:
    if device is None:
        return x
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple | list):
        parts = [_to_device(part, device) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if isinstance(x, Mapping):
        return {key: _to_device(part, device) for key, part in x.items()}
    return x


def _device_of(model: Callable[[Any], Tensor]) -> torch.device | None:
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if first is None else first.device


def _name_of(model: nn.Module, head: nn.Module) -> str:
    for name, module in model.named_modules():
        if module is head:
            return str(name)
    raise AttachError("the given head is not a part of the given model")


@contextmanager
def evaluating(*models: Callable[[Any], Tensor]) -> Iterator[None]:
    """Models in evaluation mode; afterwards each of their parts is as it was."""
    # A method of a model, say `model.features`, stands for that model.
    owners = (model if isinstance(model, nn.Module) else getattr(model, "__self__", None) for model in models)
    modes = [(part, part.training) for owner in owners if isinstance(owner, nn.Module) for part in owner.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode
