"""Putting an aligner in front of any head of any model, or a readout in its place, by hooks.

Label-free, evaluation mode only.
"""

from __future__ import annotations

from typing import Any, overload

from torch import nn

from elign.aligner import Aligner
from elign.attachments import Attachment, OutputsAttachment, ReadoutAttachment
from elign.errors import AttachError
from elign.gates import Always, Gate
from elign.heads import find_module, unwrapped
from elign.hooks import HeadHook, ScoresHook, hooks_of
from elign.outputs import OldOutputs
from elign.readout import Aligned, Readout


@overload
def attach(
    model: nn.Module,
    head: str | nn.Module,
    aligner: Aligner,
    *,
    gate: Gate | None = None,
    argument: int | str = 0,
    replace: bool = False,
) -> Attachment: ...


@overload
def attach(
    model: nn.Module,
    head: str | nn.Module,
    aligner: Aligner,
    *,
    outputs: OldOutputs,
    argument: int | str = 0,
    replace: bool = False,
) -> OutputsAttachment: ...


@overload
def attach(
    model: nn.Module, head: str | nn.Module, aligner: Readout, *, argument: int | str = 0, replace: bool = False
) -> ReadoutAttachment: ...


def attach(
    model: nn.Module,
    head: str | nn.Module,
    aligner: Aligner | Readout,
    *,
    gate: Gate | None = None,
    outputs: OldOutputs | None = None,
    argument: int | str = 0,
    replace: bool = False,
) -> Attachment | OutputsAttachment | ReadoutAttachment:
    """Let a model align its latents before a head reads them, whenever it is in evaluation mode.

    A `Readout` (say, `Prototypes`) takes the place of the head's scores instead; aligned latents reach it if there is
    an aligner on the same head (which is refused for a readout that aligns by itself, as the one of `fit_blend` does).

    Nothing else changes: training is untouched, no parameter or `state_dict` entry is added, no label is seen. Works
    under `no_grad`, `inference_mode` and autocast, for heads with any kind of output (in which readouts, `OldOutputs`
    and `ByPrediction` must find logits), under `nn.DataParallel`, and in a deep copy of the model (which gets its own
    copy of the aligner). Heads behind which a readout works get a copy of the latents.

    Works for compiled models, too, if `torch.compile` is called before `attach`. The other way round, a plain model of
    the same class that is compiled and called first makes torch leave the attachment out. The first `attach` of a
    process has everything compiled anew: not while other threads run compiled models.

    Args:
        model: Any module.
        head: The head: a name as in `model.named_modules()` (say "fc" or "roi_heads.box_predictor"), or the module.
        aligner: A fitted aligner, or a readout.
        gate: Which rows are aligned; all of them (`Always`) when not given.
        outputs: Which outputs are read off aligned latents, instead of a gate: the others are read off the latents as
            they are. For heads that a softmax follows; made for detectors.
        argument: Which argument of the head is the latent: a position or a keyword.
        replace: Take the place of what on this head does not go with the new one, instead of raising.

    Returns:
        The attachment; `detach()` it, or use it in a `with` statement.

    Raises:
        AttachError: If there is no such head, if it already carries something that does not go with the new one, or if
            what is given is none that can be attached.
        NotFittedError: If the aligner or the gate has not learned anything yet.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import elign
        >>> model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval()
        >>> z = torch.randn(100, 8)
        >>> aligner = elign.MeanShift().fit_latents(z, z + 1)
        >>> x = torch.randn(3, 20)
        >>> plain = model(x)
        >>> with elign.attach(model, "1", aligner):
        ...     aligned = model(x)
        >>> bool((plain != aligned).any()), torch.equal(model(x), plain)
        (True, True)
    """
    target = find_module(model, head) if isinstance(head, str) else head
    if not any(part is target for part in model.modules()):
        raise AttachError("the given head is not a part of the given model")
    # A part may be compiled by itself; copies of the model have what is inside.
    target = unwrapped(target)
    _check(target, aligner, gate, outputs)
    made: Attachment | OutputsAttachment | ReadoutAttachment
    if isinstance(aligner, Readout):
        made = ReadoutAttachment(model, target, aligner, argument)
    elif outputs is not None:
        made = OutputsAttachment(model, target, aligner, outputs, argument)
    else:
        made = Attachment(model, target, aligner, gate if gate is not None else Always(), argument)
    _make_room(target, made, replace=replace)
    made.register()
    for hook in hooks_of(target):
        # A readout that was there first still comes after the aligner: it is the aligned latents that it reads.
        if isinstance(hook, ScoresHook):
            hook.come_last()
    return made


def detach(model: nn.Module) -> int:
    """Take all aligners and readouts off a model, and off its parts.

    Returns:
        How many there were.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4))
        >>> aligner = elign.Identity().fit_latents(torch.zeros(1, 8), torch.zeros(1, 8))
        >>> _ = elign.attach(model, "1", aligner)
        >>> elign.detach(model), elign.detach(model)
        (1, 0)
    """
    found = [attachment for part in model.modules() for attachment in hooks_of(part)]
    for attachment in found:
        attachment.detach()
    return len(found)


def _check(head: nn.Module, aligner: Any, gate: Any, outputs: Any) -> None:
    """Raise if these are no parts that can be attached, together and to this head."""
    if not isinstance(aligner, Aligner | Readout):
        raise AttachError(f"an Aligner or a Readout can be attached, not a {type(aligner).__name__}")
    if not isinstance(gate, Gate | None):
        raise AttachError(f"gate must be a Gate, such as ByPrediction(known=50), got a {type(gate).__name__}")
    if not isinstance(outputs, OldOutputs | None):
        raise AttachError(f"outputs must be OldOutputs, such as OldOutputs(range(50)), got a {type(outputs).__name__}")
    aligner.require_fitted()
    dim = aligner.takes if isinstance(aligner, Readout) else aligner.dim
    if isinstance(head, nn.Linear) and dim not in (None, head.in_features):
        what = "readout" if isinstance(aligner, Readout) else "aligner"
        raise AttachError(f"this head reads latents of dimension {head.in_features}, the {what}'s is {dim}")
    if isinstance(aligner, Readout) and not (gate is None and outputs is None):
        raise AttachError("a gate or outputs choose what is aligned; a readout has no use for either")
    if any(part.direction == "forward" for part in _aligners(aligner)):
        raise AttachError(
            "this aligner was fitted forward, from the previous model's latents to the current one's: it moves "
            'Prototypes; fit one with direction="backward" to attach it'
        )
    if gate is not None and outputs is not None:
        raise AttachError("give a gate, which chooses latents, or outputs, not both")
    if gate is not None:
        gate.require_fitted()


def _aligners(given: Aligner | Readout) -> list[Aligner]:
    """The aligners that will move latents."""
    if isinstance(given, Aligner):
        return [given]
    return [part.aligner for part in given.modules() if isinstance(part, Aligned)]


def _make_room(head: nn.Module, new: HeadHook, *, replace: bool) -> None:
    """Take off what the new one cannot stand beside, or raise where there is such a thing."""
    in_the_way = [hook for hook in hooks_of(head) if not _go_together(new, hook)]
    if in_the_way and not replace:
        names = " and ".join(type(hook).__name__ for hook in in_the_way)
        raise AttachError(
            f"this head already carries something that moves latents or rewrites scores ({names}): detach() it first, "
            "or attach with replace=True (two would work one after the other)"
        )
    for hook in in_the_way:
        hook.detach()


def _go_together(one: HeadHook, other: HeadHook) -> bool:
    """An aligner in front of a head and a readout behind it do, if the readout does not align by itself."""
    readouts = [hook.readout for hook in (one, other) if isinstance(hook, ReadoutAttachment)]
    aligners = [hook for hook in (one, other) if isinstance(hook, Attachment)]
    return len(readouts) == len(aligners) == 1 and not _aligners(readouts[0])
