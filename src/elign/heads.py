"""Finding a head in a model and the latent among a head's arguments."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from elign.errors import AttachError

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
