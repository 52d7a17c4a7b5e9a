"""Putting an aligner in front of any head of any model, by a forward pre-hook. Label-free, evaluation mode only."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn

from eli.aligner import Aligner
from eli.errors import AttachError
from eli.gates import Always, Gate
from eli.heads import find_module, latent_of

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_Call = tuple[tuple[Any, ...], dict[str, Any]]


class Attachment:
    """An aligner and its gate in front of a head; what `attach` returns. Also a context manager.

    It is the hook itself: it travels with `copy.deepcopy` of the model, and `nn.DataParallel`'s replicas share it.

    Attributes:
        model: The model it was attached to.
        head: The part of it that the aligner sits on.
        aligner: The aligner; may be exchanged for another one at any time.
        gate: The gate; likewise.

    Example:
        >>> import torch, eli
        >>> from torch import nn
        >>> model, z = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval(), torch.randn(100, 8)
        >>> attachment = eli.attach(model, "1", eli.MeanShift().fit_latents(z, z + 1))
        >>> attachment.gate = eli.ByPrediction(known=2)
        >>> attachment.detach()
    """

    def __init__(self, model: nn.Module, head: nn.Module, aligner: Aligner, gate: Gate, argument: int | str) -> None:
        # Wrappers for several devices have a mode of their own, which says nothing about the model inside.
        self.model: nn.Module = model.module if isinstance(model, _WRAPPERS) else model
        self.head = head
        self.aligner = aligner
        self.gate = gate
        self._argument = argument

    def __call__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """Called by torch before the head runs."""
        # Both: a frozen head is often left in evaluation mode while the rest of the model trains.
        if head.training or self.model.training:
            return None

        def with_latent(latent: Tensor) -> _Call:
            if isinstance(self._argument, str):
                return args, {**kwargs, self._argument: latent}
            changed = list(args)
            changed[self._argument] = latent
            return tuple(changed), kwargs

        def opinion(latent: Tensor) -> Any:
            # A copy: a head may begin with an operation in place.
            call_args, call_kwargs = with_latent(latent.clone())
            # `forward`, not a call: a call would run this hook again.
            return head.forward(*call_args, **call_kwargs)

        z = latent_of(args, kwargs, self._argument)
        where = self.gate(z.detach(), head=opinion, aligner=self.aligner)
        return with_latent(self.aligner.align(z, where=where))

    def detach(self) -> None:
        """Take the aligner off; the model is as it was before. Does nothing the second time."""
        for key, hook in list(self.head._forward_pre_hooks.items()):
            if hook is self:
                del self.head._forward_pre_hooks[key]
                self.head._forward_pre_hooks_with_kwargs.pop(key, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


def attach(
    model: nn.Module,
    head: str | nn.Module,
    aligner: Aligner,
    *,
    gate: Gate | None = None,
    argument: int | str = 0,
    replace: bool = False,
) -> Attachment:
    """Let a model align its latents before a head reads them, whenever it is in evaluation mode.

    Nothing else changes: training is untouched, no parameter or `state_dict` entry is added, no label is seen. Works
    under `no_grad`, `inference_mode` and autocast, for heads with any kind of output, under `nn.DataParallel`, and in
    a deep copy of the model (which gets its own copy of the aligner).

    Args:
        model: Any module.
        head: The head: a name as in `model.named_modules()` (say "fc" or "roi_heads.box_predictor"), or the module.
        aligner: A fitted aligner.
        gate: Which rows are aligned; all of them (`Always`) when not given.
        argument: Which argument of the head is the latent: a position or a keyword.
        replace: Take the place of an aligner that is already attached to this head, instead of raising.

    Returns:
        The `Attachment`: `detach()` it, or use it in a `with` statement.

    Raises:
        AttachError: If there is no such head, or if it already carries an aligner.
        NotFittedError: If the aligner or the gate has not learned anything yet.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import eli
        >>> model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval()
        >>> z = torch.randn(100, 8)
        >>> aligner = eli.MeanShift().fit_latents(z, z + 1)
        >>> x = torch.randn(3, 20)
        >>> plain = model(x)
        >>> with eli.attach(model, "1", aligner):
        ...     aligned = model(x)
        >>> bool((plain != aligned).any()), torch.equal(model(x), plain)
        (True, True)
    """
    target = find_module(model, head) if isinstance(head, str) else head
    if not any(part is target for part in model.modules()):
        raise AttachError("the given head is not a part of the given model")
    gate = gate if gate is not None else Always()
    aligner.require_fitted()
    gate.require_fitted()
    if aligner.direction == "forward":
        raise AttachError(
            "this aligner was fitted forward, from the previous model's latents to the current one's: it moves "
            'Prototypes; fit one with direction="backward" to attach it'
        )
    if isinstance(target, nn.Linear) and aligner.dim not in (None, target.in_features):
        raise AttachError(f"this head reads latents of dimension {target.in_features}, the aligner's is {aligner.dim}")
    there = _attachments(target)
    if there and not replace:
        raise AttachError(
            "this head already carries an aligner: detach() that one first, or attach with replace=True "
            "(two would align twice)"
        )
    for attachment in there:
        attachment.detach()
    made = Attachment(model, target, aligner, gate, argument)
    target.register_forward_pre_hook(made, with_kwargs=True)
    return made


def detach(model: nn.Module) -> int:
    """Take all aligners off a model, and off its parts.

    Returns:
        How many there were.

    Example:
        >>> import torch, eli
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4))
        >>> aligner = eli.Identity().fit_latents(torch.zeros(1, 8), torch.zeros(1, 8))
        >>> _ = eli.attach(model, "1", aligner)
        >>> eli.detach(model), eli.detach(model)
        (1, 0)
    """
    found = [attachment for part in model.modules() for attachment in _attachments(part)]
    for attachment in found:
        attachment.detach()
    return len(found)


def _attachments(head: nn.Module) -> list[Attachment]:
    return [hook for hook in head._forward_pre_hooks.values() if isinstance(hook, Attachment)]
