"""The hook that `attach` puts on a head: it aligns latents, or rewrites what the head says of them."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from elign.aligners.base import Aligner
from elign.attachments.split_outputs import SplitOutputs
from elign.classifiers.base import LatentClassifier
from elign.gates.base import Gate
from elign.utils.errors import AttachError
from elign.utils.heads import hook_lock, latent_of, logits_of, refuse_maps, unwrapped, with_logits

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_AS_IT_CAME = "_elign_as_it_came"


class Attachment:
    """What `attach` puts on a head and returns; also a context manager. Works in evaluation mode only.

    It is the hook itself: it travels with `copy.deepcopy` of the model, and `nn.DataParallel`'s replicas share it. An
    aligner with a gate changes what the head gets. A classifier, and an aligner with `SplitOutputs`, rewrite what the
    head returns: torch then calls the hook twice, before the head, which gets a copy of the latents, since it may begin
    with an operation in place; and after it, when the latents are wanted unchanged.

    Attributes:
        model: The model it was attached to.
        head: The part of it that the hook is on.
        what: The aligner or classifier; you may exchange it for another one at any time.
        gate: Which latents an aligner moves.
        outputs: Which outputs are read off aligned latents; None unless `attach` got `outputs=...`.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> model, z = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval(), torch.randn(100, 8)
        >>> attachment = elign.attach(model, "1", elign.MeanShift().fit_latents(z, z + 1))
        >>> attachment.gate = elign.ByPrediction(old_classes=2)
        >>> attachment.detach()
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Module,
        what: Aligner | LatentClassifier,
        *,
        gate: Gate | None,
        outputs: SplitOutputs | None,
        argument: int | str,
    ) -> None:
        # Wrappers for several devices have a mode of their own, which says nothing about the model inside.
        self.model = unwrapped(model)
        self.head = head
        self.what = what
        self.gate = gate
        self.outputs = outputs
        self.role: Literal["align", "split", "classify"] = (
            "classify" if isinstance(what, LatentClassifier) else "align" if outputs is None else "split"
        )
        self._argument = argument

    def __call__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *output: Any) -> Any:
        """Called by torch before the head runs and, where the output is rewritten, after it."""
        # Both: a frozen head is often left in evaluation mode while the rest of the model trains.
        if head.training or self.model.training:
            return None
        z = latent_of(args, kwargs, self._argument)
        refuse_maps(head, z)
        if self.role == "align":
            return self._call_with(self._aligned(z, head, args, kwargs), args, kwargs)
        if not output:
            copy = z.clone()
            # Kept with the copy, not here: replicas on several devices share this hook.
            setattr(copy, _AS_IT_CAME, z)
            return self._call_with(copy, args, kwargs)
        came = getattr(z, _AS_IT_CAME, z)
        # A head may hand its latents on, and whoever keeps them must not keep two. A compiler follows no deletion.
        if came is not z and not torch.compiler.is_compiling():
            delattr(z, _AS_IT_CAME)
        if self.role == "classify":
            return self._classified(output[0], came)
        return self._split(output[0], came, head, args, kwargs)

    def _aligned(self, z: Tensor, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        def opinion(latent: Tensor) -> Any:
            # A copy: a head may begin with an operation in place.
            call_args, call_kwargs = self._call_with(latent.clone(), args, kwargs)
            # `forward`, not a call: a call would run this hook again.
            return head.forward(*call_args, **call_kwargs)

        where = None if self.gate is None else self.gate(z.detach(), head=opinion, aligner=self.what)
        return self.what.align(z, where=where)  # type: ignore[operator]

    def _classified(self, output: Any, z: Tensor) -> Any:
        logits = logits_of(output)
        scores = self.what(z, logits=logits)
        if scores.shape[:-1] != logits.shape[:-1]:
            raise AttachError(
                f"the classifier gives scores {tuple(scores.shape)} where the head gives logits {tuple(logits.shape)}: "
                "attach it to the layer that reads one latent for each row of logits"
            )
        return with_logits(output, scores)

    def _split(self, output: Any, z: Tensor, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self.outputs is not None  # noqa: S101  (for the type checker: this role has them)
        call_args, call_kwargs = self._call_with(self.what.align(z), args, kwargs)  # type: ignore[operator]
        # The head that was called: a replica has weights of its own.
        return self.outputs.merge(output, head.forward(*call_args, **call_kwargs))

    def _call_with(self, latent: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return the arguments of a call of the head, with another latent."""
        if isinstance(self._argument, str):
            return args, {**kwargs, self._argument: latent}
        changed = list(args)
        changed[self._argument] = latent
        return tuple(changed), kwargs

    def register(self) -> None:
        """Put this on its head."""
        with hook_lock:
            self._last_id = self.head.register_forward_pre_hook(self, with_kwargs=True).id
            if self.role != "align":
                self._last_id = self.head.register_forward_hook(self, with_kwargs=True).id
        _notice_hooks()

    def come_last(self) -> None:
        """See the latents after everything else that is in front of the head."""
        hooks = self.head._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is self]:
            hooks[key] = hooks.pop(key)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In another process torch numbers hooks from 0 again: the next one would take the place of this one.
        self.__dict__.update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, state.get("_last_id", -1) + 1)

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


def _notice_hooks() -> None:
    """Have torch's compiler look at hooks, from now on and in what it has compiled.

    Left alone it does not: what was compiled before goes on without them, and another model of the same class is taken
    for this one. If that part of torch was never loaded, nothing was compiled, and to load it would take seconds.
    """
    if "torch._dynamo" in sys.modules and torch._dynamo.config.skip_nnmodule_hook_guards:
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        torch.compiler.reset()


def attachments_of(head: nn.Module) -> list[Attachment]:
    """Return all attachments on a head."""
    hooks = [*head._forward_pre_hooks.values(), *head._forward_hooks.values()]
    return list(dict.fromkeys(hook for hook in hooks if isinstance(hook, Attachment)))
