"""What attachments have in common: a hook of a head that works in evaluation mode only. For `attach.py` and export."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from elign.heads import latent_of, unwrapped

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_AS_IT_CAME = "_elign_as_it_came"


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
        self.model = unwrapped(model)
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

    def register(self) -> None:
        """Put this on its head."""
        self._last_id = self.head.register_forward_pre_hook(self, with_kwargs=True).id
        _notice_hooks()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In another process torch numbers hooks from 0 again: the next one would take the place of this one.
        self.__dict__.update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, state.get("_last_id", -1) + 1)

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
                _notice_hooks()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


class ScoresHook(HeadHook):
    """A hook that rewrites what a head says of its latents.

    Torch calls it twice: before the head, which gets a copy of the latents, since it may begin with an operation in
    place; and after it, when the latents are wanted as they were.
    """

    def register(self) -> None:
        """Put this on its head."""
        super().register()
        self._last_id = self.head.register_forward_hook(self, with_kwargs=True).id

    def come_last(self) -> None:
        """See the latents after everything else that is in front of the head."""
        hooks = self.head._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is self]:
            hooks[key] = hooks.pop(key)

    def __call__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *output: Any) -> Any:
        """Called by torch, before and after the head runs."""
        if self._trains(head):
            return None
        z = latent_of(args, kwargs, self._argument)
        if output:
            came = getattr(z, _AS_IT_CAME, z)
            # A head may hand its latents on, and whoever keeps them must not keep two. A compiler follows no deletion.
            if came is not z and not torch.compiler.is_compiling():
                delattr(z, _AS_IT_CAME)
            return self._rewritten(output[0], came, head, (args, kwargs))
        copy = z.clone()
        # Kept with the copy, not here: replicas on several devices share this hook.
        setattr(copy, _AS_IT_CAME, z)
        return self._call_with(copy, args, kwargs)

    def _rewritten(self, output: Any, z: Tensor, head: nn.Module, call: Call) -> Any:
        """What takes the place of the head's output for these latents."""
        raise NotImplementedError


def _notice_hooks() -> None:
    """Have torch's compiler look at hooks, from now on and in what it has compiled.

    Left alone it does not: what was compiled before goes on without them, and another model of the same class is taken
    for this one. If that part of torch was never loaded, nothing was compiled, and to load it would take seconds.
    """
    if "torch._dynamo" in sys.modules and torch._dynamo.config.skip_nnmodule_hook_guards:
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        torch.compiler.reset()


def hooks_of(head: nn.Module) -> list[HeadHook]:
    """All attachments on a head."""
    hooks = [*head._forward_pre_hooks.values(), *head._forward_hooks.values()]
    return list(dict.fromkeys(hook for hook in hooks if isinstance(hook, HeadHook)))
