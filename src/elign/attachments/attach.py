"""Attach an aligner in front of any head of any model, or a classifier in its place; in evaluation mode only."""

from __future__ import annotations

from typing import Any

from torch import nn

from elign.aligners.base import Aligner
from elign.attachments.hooks import Attachment, attachments_of
from elign.attachments.split_outputs import SplitOutputs
from elign.classifiers.base import LatentClassifier
from elign.gates.base import Always, Gate
from elign.utils.errors import AttachError
from elign.utils.heads import find_module, unwrapped


def attach(
    model: nn.Module,
    head: str | nn.Module,
    what: Aligner | LatentClassifier,
    *,
    gate: Gate | None = None,
    outputs: SplitOutputs | None = None,
    argument: int | str = 0,
    replace: bool = False,
) -> Attachment:
    """Let a model align its latents before a head reads them, whenever it is in evaluation mode.

    A `LatentClassifier` (a `Repair` is one) takes the place of the head's scores instead. It gets aligned latents if
    there is an aligner on the same head; this is refused for a classifier that aligns by itself.

    Nothing else changes: training is untouched, no parameter or `state_dict` entry is added, no label is seen. Works
    under `no_grad`, `inference_mode` and autocast, for heads with any kind of output (in which classifiers,
    `SplitOutputs` and `ByPrediction` must find logits), under `nn.DataParallel`, and in a deep copy of the model (which
    gets its own copy of the aligner). Heads behind which a classifier works get a copy of the latents.

    Works for compiled models, too, if `torch.compile` is called before `attach`. The other way round, a plain model of
    the same class that is compiled and called first makes torch leave the attachment out. The first `attach` of a
    process has everything compiled again: not while other threads run compiled models.

    Args:
        model: Any module.
        head: The head: a name as in `model.named_modules()` ("fc", "roi_heads.box_predictor"), or the module.
        what: A fitted aligner, a classifier, or a `Repair`.
        gate: Which rows are aligned; all of them (`Always`) when not given.
        outputs: Which outputs are read off aligned latents, instead of a gate; the others are read off the unaligned
            ones. For heads that a softmax follows; made for detectors.
        argument: Which argument of the head is the latent: a position or a keyword.
        replace: Replace attachments that conflict with this one, instead of raising.

    Returns:
        The attachment; `detach()` it, or use it in a `with` statement.

    Raises:
        AttachError: If there is no such head, if it carries an attachment that conflicts with the new one, or if
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
    _check(target, what, gate, outputs)
    if isinstance(what, Aligner) and outputs is None and gate is None:
        gate = Always()
    made = Attachment(model, target, what, gate=gate, outputs=outputs, argument=argument)
    _make_room(target, made, replace=replace)
    made.register()
    for attachment in attachments_of(target):
        # A classifier that was there first still comes after the aligner: it gets the aligned latents.
        if attachment.role != "align":
            attachment.come_last()
    return made


def detach(model: nn.Module) -> int:
    """Take all attachments off a model, and off its parts.

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
    found = [attachment for part in model.modules() for attachment in attachments_of(part)]
    for attachment in found:
        attachment.detach()
    return len(found)


def _check(head: nn.Module, what: Any, gate: Any, outputs: Any) -> None:
    """Raise if these cannot be attached, together and to this head."""
    if not isinstance(what, Aligner | LatentClassifier):
        raise AttachError(f"a Repair, a LatentClassifier or an Aligner can be attached, not a {type(what).__name__}")
    if not isinstance(gate, Gate | None):
        raise AttachError(f"gate must be a Gate, such as ByPrediction(old_classes=50), got a {type(gate).__name__}")
    if not isinstance(outputs, SplitOutputs | None):
        raise AttachError(
            f"outputs must be SplitOutputs, such as SplitOutputs(range(50)), got a {type(outputs).__name__}"
        )
    what.require_fitted()
    classifies = isinstance(what, LatentClassifier)
    dim = what.takes if classifies else what.dim
    if isinstance(head, nn.Linear) and dim not in (None, head.in_features):
        name = "classifier" if classifies else "aligner"
        raise AttachError(f"this head reads latents of dimension {head.in_features}, the {name}'s is {dim}")
    if classifies and not (gate is None and outputs is None):
        raise AttachError("a gate or outputs choose what is aligned; a classifier has no use for either")
    if any(part.direction == "forward" for part in what.modules() if isinstance(part, Aligner)):
        raise AttachError(
            "this aligner was fitted forward, from the previous model's latents to the current one's: it moves "
            'ClassStatistics; fit one with direction="backward" to attach it'
        )
    if gate is not None and outputs is not None:
        raise AttachError("give a gate, which chooses latents, or outputs, not both")
    if gate is not None:
        gate.require_fitted()


def _make_room(head: nn.Module, new: Attachment, *, replace: bool) -> None:
    """Take off what conflicts with the new one, or raise if there is such a thing."""
    in_the_way = [there for there in attachments_of(head) if not _go_together(new, there)]
    if in_the_way and not replace:
        names = " and ".join(type(there.what).__name__ for there in in_the_way)
        raise AttachError(
            f"this head already carries something that moves latents or rewrites scores ({names}): detach() it first, "
            "or attach with replace=True (two would work one after the other)"
        )
    for there in in_the_way:
        there.detach()


def _go_together(one: Attachment, other: Attachment) -> bool:
    """Allow an aligner in front of a head and a classifier behind it, if the classifier does not align by itself."""
    classifiers = [each.what for each in (one, other) if isinstance(each.what, LatentClassifier)]
    roles = sorted((one.role, other.role))
    return roles == ["align", "classify"] and not classifiers[0].aligners
