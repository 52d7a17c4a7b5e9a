"""Heads of models: find one by name, take the latent out of its arguments and the logits out of its output."""

from __future__ import annotations

import copy
import difflib
import threading
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from elign.utils.errors import AttachError, OptionError

hook_lock = threading.Lock()
"""Held while a hook is registered: torch numbers hooks without a lock, and two of one number are one."""

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of what `nn.DataParallel`, `DistributedDataParallel` or `torch.compile` made of it."""
    while True:
        if isinstance(model, _WRAPPERS):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def find_module(model: nn.Module, name: str) -> nn.Module:
    """The part of `model` with this dotted name; an error that names the nearest ones if there is none.

    Names are those of `model.named_modules()`; of a wrapped model, those of the model inside will do.
    """
    inside: dict[str, nn.Module] = dict(unwrapped(model).named_modules())
    parts: dict[str, nn.Module] = {**inside, **dict(model.named_modules())}
    if name in parts:
        return parts[name]
    below = [part for part in inside if part.endswith(f".{name}")]
    near = below[:3] or difflib.get_close_matches(name, parts, n=3) or [part for part in parts if part][-3:]
    if not near:
        raise AttachError(f"the model has no module {name!r}: it has no parts at all")
    raise AttachError(f"the model has no module {name!r}; did you mean one of {', '.join(map(repr, near))}?")


def latent_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], argument: int | str) -> Tensor:
    """The latent among the arguments that a head was called with."""
    try:
        z = args[argument] if isinstance(argument, int) else kwargs[argument]
    except (IndexError, KeyError):
        got = [f"{len(args)} positional", *kwargs]
        raise AttachError(
            f"the head was called without argument {argument!r} (it got: {', '.join(got)}); "
            "name the right one with argument=..."
        ) from None
    if not isinstance(z, Tensor):
        raise AttachError(f"argument {argument!r} of the head is a {type(z).__name__}, not a tensor of latents")
    return z


def refuse_maps(head: nn.Module, z: Tensor) -> None:
    """Raise if a head gets feature maps: their last dimension is a width, even where it is as large as a latent."""
    if z.ndim > 3 or isinstance(head, nn.modules.conv._ConvNd):
        raise AttachError(
            f"this head gets feature maps {tuple(z.shape)}, not latents (N, D) or (N, tokens, D): name the layer that "
            "reads them once they are flat (inside a head that flattens them itself, its linear layer)"
        )


def logits_of(output: Any) -> Tensor:
    """The logits in what a head returns: see `ByPrediction`."""
    if isinstance(output, Mapping) and ("logits" in output or len(output) == 1):
        output = output["logits"] if "logits" in output else next(iter(output.values()))
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise OptionError(
            f"cannot find logits in a head's output of type {type(output).__name__}: expected a tensor, a tuple or "
            'list that begins with one, or a mapping with one as "logits" (ByPrediction also takes logits=...)'
        )
    return output


def read_logits(head: Callable[[Tensor], Any], z: Tensor) -> Tensor:
    """What a head says of latents, without gradients."""
    with torch.no_grad():
        return logits_of(head(z))


def with_logits(output: Any, logits: Tensor) -> Any:
    """What a head returned, with other logits in the place where `logits_of` finds them."""
    if isinstance(output, Mapping):
        key = "logits" if "logits" in output else next(iter(output))
        return with_entries(output, {key: logits})
    if isinstance(output, tuple | list):
        changed: Any = [logits, *output[1:]]
        if hasattr(output, "_fields"):  # a named tuple
            return type(output)(*changed)
        return type(output)(changed)
    return logits


def with_entries(output: Mapping[str, Any], entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping that a head returned with other entries, of the same type where that can be changed."""
    if not isinstance(output, MutableMapping):
        return {**output, **entries}
    changed = copy.copy(output)
    for key, value in entries.items():
        changed[key] = value
    return changed
