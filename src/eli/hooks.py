"""What attachments have in common: a hook of a head that works in evaluation mode only. For `attach.py` and export."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class HeadHook:
    """A hook of a head that can be taken off again; also a context manager.

    It is the hook itself: it travels with `copy.deepcopy` of the model, and `nn.DataParallel`'s replicas share it.

    Args:
        model: The model.
        head: The part of it that the hook is on.
        argument: Which argument of the head is the latent.
    """

    def __init__(self, model: nn.Module, head: nn.Module, argument: int | str) -> None:
        # Wrappers for several devices have a mode of their own, which says nothing about the model inside.
        self.model: nn.Module = model.module if isinstance(model, _WRAPPERS) else model
        self.head = head
        self._argument = argument

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by torch, before or after the head runs."""
        raise NotImplementedError

    def _call_with(self, latent: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The arguments of a call of the head, with another latent."""
        if isinstance(self._argument, str):
            return args, {**kwargs, self._argument: latent}
        changed = list(args)
        changed[self._argument] = latent
        return tuple(changed), kwargs

    def _trains(self, head: nn.Module) -> bool:
        # Both: a frozen head is often left in evaluation mode while the rest of the model trains.
        return head.training or self.model.training

    def detach(self) -> None:
        """Take this off; the model is as it was before. Does nothing the second time."""
        tables = (
            (self.head._forward_pre_hooks, self.head._forward_pre_hooks_with_kwargs),
            (self.head._forward_hooks, self.head._forward_hooks_with_kwargs),
        )
        for hooks, with_kwargs in tables:
            for key in [key for key, hook in hooks.items() if hook is self]:
                del hooks[key]
                with_kwargs.pop(key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


def hooks_of(head: nn.Module) -> list[HeadHook]:
    """All attachments on a head."""
    hooks = [*head._forward_pre_hooks.values(), *head._forward_hooks.values()]
    return [hook for hook in hooks if isinstance(hook, HeadHook)]
