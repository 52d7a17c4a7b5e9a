"""Finding the logits in whatever a head returns, and putting others in their place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from elign.errors import OptionError


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
