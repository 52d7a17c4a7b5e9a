"""Attach an aligner in front of any head of any model, or a classifier in its place; in evaluation mode only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from elign.aligners.base import Aligner
from elign.classifiers.base import LatentClassifier
from elign.gates import Always, Gate
from elign.utils import extraction
from elign.utils.errors import AttachError, LatentError, OptionError
from elign.utils.extraction import logits_of, with_logits
from elign.utils.tensors import compute_dtype, whole_number

_UNMOVED = "_elign_unmoved"  # an attribute of the copy of the latents that a head gets
_BOX = 4  # numbers of a box, which detectors' heads give for each output
_LEAST = 1e-30  # the least probability, so that its logarithm is a number


@dataclass(frozen=True)
class SplitOutputs:
    """Which outputs of a head are read off aligned latents, and how the two outputs become one.

    For heads whose logits a softmax follows. An old class gets its probability for the aligned latent, every other one
    that for the unaligned latent, and background the smaller of the two. The result is the logarithm of these
    probabilities, which need not sum to 1. Your own hooks on that head see the unaligned latents only.

    Args:
        columns: Places of the old classes among the head's outputs: `range(50)`, or `range(1, 51)` for a detector whose
            first output is the background.
        background: Place of the background; None if there is none.

    Example:
        >>> import torch, elign
        >>> unaligned, aligned = torch.tensor([[0.0, 0.0, 3.0]]), torch.tensor([[4.0, 0.0, 0.0]])
        >>> elign.SplitOutputs(range(2)).merge(unaligned, aligned).exp().round(decimals=2)
        tensor([[0.9600, 0.0200, 0.9100]])
    """

    columns: Sequence[int]
    background: int | None = None

    def __post_init__(self) -> None:
        # Plain numbers: an iterator could be gone through only once.
        columns = _places(self.columns)
        if not columns or len(set(columns)) < len(columns):
            raise OptionError(f"columns must be different whole numbers >= 0, one at least, got {self.columns!r}")
        object.__setattr__(self, "columns", columns)
        if self.background is not None:
            background = _places([self.background])
            if not background or background[0] in columns:
                raise OptionError(
                    f"background must be the place of an output that is not an old class, got {self.background!r}"
                )
            object.__setattr__(self, "background", background[0])

    def merge(self, unaligned: Any, aligned: Any) -> Any:
        """Merge what a head returns for latents and for the same latents aligned; in the form of the first.

        Beside the logits, a tensor with four numbers for each output, a detector's boxes, is split in the same way;
        everything else is that of the unaligned latents.

        Raises:
            OptionError: The head has no such output.
            LatentError: The head gives different numbers of logits for the two.
        """
        here, there = logits_of(unaligned), logits_of(aligned)
        if here.shape != there.shape:
            raise LatentError(f"the head gives logits of shapes {tuple(here.shape)} and {tuple(there.shape)}")
        count = here.shape[-1]
        if max([*self.columns, self.background or 0]) >= count:
            raise OptionError(f"this head has {count} outputs, and SplitOutputs names others: {self}")
        old = torch.zeros(count, dtype=torch.bool, device=here.device)
        old[list(self.columns)] = True
        boxes = old.repeat_interleave(_BOX)

        def split(mine: Any, theirs: Any) -> Any:
            has_boxes = isinstance(mine, Tensor) and mine.shape[-1:] == boxes.shape
            return torch.where(boxes, theirs, mine) if has_boxes else mine

        merged = with_logits(unaligned, self._scores(here, there, old))
        if isinstance(merged, Mapping):
            entries = {name: split(value, aligned[name]) for name, value in merged.items()}
            return extraction.with_entries(merged, entries)
        if isinstance(merged, tuple | list):
            parts = [split(mine, theirs) for mine, theirs in zip(merged, aligned, strict=True)]
            return extraction.same_type(merged, parts)
        return merged

    def _scores(self, here: Tensor, there: Tensor, old: Tensor) -> Tensor:
        dtype = compute_dtype(here)
        # A head in half precision may give infinity, of which a softmax is NaN.
        most = torch.finfo(dtype).max
        mine, theirs = (logits.to(dtype).clamp(max=most).softmax(dim=-1) for logits in (here, there))
        merged = torch.where(old, theirs, mine)
        if self.background is not None:
            place = torch.arange(len(old), device=old.device) == self.background
            merged = torch.where(place, torch.minimum(mine, theirs), merged)
        return merged.clamp(min=_LEAST).log().to(here.dtype)


def _places(given: Iterable[Any]) -> tuple[int, ...]:
    """Return places among outputs as plain numbers; nothing if one of them is not a whole number >= 0."""
    try:
        places = tuple(map(whole_number, given))
    except TypeError:
        return ()
    return places if all(place >= 0 for place in places) else ()


class Attachment:
    """What `attach` puts on a head and returns; also a context manager. Works in evaluation mode only.

    It is the hook itself: it travels with `copy.deepcopy` of the model, and `nn.DataParallel`'s replicas share it. An
    aligner with a gate changes what the head gets. A classifier, and an aligner with `SplitOutputs`, rewrite what the
    head returns: torch calls the hook before the head, to keep the latents unchanged, and after it.

    You may exchange `what` (the aligner or classifier) and `gate` at any time.

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
        self.model = extraction.unwrapped(model)
        self.head, self.what, self.gate, self.outputs = head, what, gate, outputs
        self.role: Literal["align", "split", "classify"] = (
            "classify" if isinstance(what, LatentClassifier) else "align" if outputs is None else "split"
        )
        self._argument = argument

    def __call__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *output: Any) -> Any:
        """Called by torch before the head runs and, where the output is rewritten, after it."""
        # Both: a frozen head is often left in evaluation mode while the rest of the model trains.
        if head.training or self.model.training:
            return None
        z = extraction.latent_of(args, kwargs, self._argument)
        extraction.refuse_maps(head, z)

        def with_latent(latent: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if isinstance(self._argument, str):
                return args, {**kwargs, self._argument: latent}
            changed = list(args)
            changed[self._argument] = latent
            return tuple(changed), kwargs

        def ask(latent: Tensor) -> Any:
            # A copy: a head may begin with an operation in place.
            call_args, call_kwargs = with_latent(latent.clone())
            # `forward`, not a call: a call would run this hook again. Of `head`: a replica has weights of its own.
            return head.forward(*call_args, **call_kwargs)

        what: Any = self.what
        if self.role == "align":
            where = None if self.gate is None else self.gate(z.detach(), head=ask, aligner=what)
            return with_latent(what.align(z, where=where))
        if not output:
            copy = z.clone()
            # Kept with the copy, not here: replicas on several devices share this hook.
            setattr(copy, _UNMOVED, z)
            return with_latent(copy)
        unmoved = getattr(z, _UNMOVED, z)
        # A head may return its latents: the caller must not keep two. A compiler cannot follow the deletion.
        if unmoved is not z and not torch.compiler.is_compiling():
            delattr(z, _UNMOVED)
        if self.outputs is not None:
            return self.outputs.merge(output[0], ask(what.align(unmoved)))
        logits = logits_of(output[0])
        scores = what(unmoved, logits=logits)
        if scores.shape[:-1] != logits.shape[:-1]:
            raise AttachError(
                f"the classifier gives scores {tuple(scores.shape)} where the head gives logits {tuple(logits.shape)}: "
                "attach it to the layer that reads one latent for each row of logits"
            )
        return with_logits(output[0], scores)

    def register(self) -> None:
        """Put this on its head."""
        with extraction.hook_lock:
            self._last_id = self.head.register_forward_pre_hook(self, with_kwargs=True).id
            if self.role != "align":
                self._last_id = self.head.register_forward_hook(self, with_kwargs=True).id
        hooks = self.head._forward_pre_hooks
        # A classifier that was there first still comes after the aligner: it gets the aligned latents.
        for key in [key for key, hook in hooks.items() if isinstance(hook, Attachment) and hook.role != "align"]:
            hooks[key] = hooks.pop(key)
        _notice_hooks()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In another process torch numbers hooks from 0 again: the next one would take the place of this one.
        self.__dict__.update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, state.get("_last_id", -1) + 1)

    def detach(self) -> None:
        """Take this off; the model is as it was before. Does nothing the second time."""
        head = self.head
        for hooks, with_kwargs in (
            (head._forward_pre_hooks, head._forward_pre_hooks_with_kwargs),
            (head._forward_hooks, head._forward_hooks_with_kwargs),
        ):
            for key in [key for key, hook in hooks.items() if hook is self]:
                del hooks[key]
                with_kwargs.pop(key, None)
                _notice_hooks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


def _notice_hooks() -> None:
    """Have torch's compiler look at hooks, from now on and in what it has compiled.

    By default it does not: compiled code runs on without them, and another model of the same class is taken for this
    one. If that part of torch was never loaded, nothing was compiled, and to load it would take seconds.
    """
    if "torch._dynamo" in sys.modules and torch._dynamo.config.skip_nnmodule_hook_guards:
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        torch.compiler.reset()


def attachments_of(model: nn.Module) -> list[Attachment]:
    """Return all attachments on a model and its parts."""
    hooks = [
        hook for part in model.modules() for hook in (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    ]
    return list(dict.fromkeys(hook for hook in hooks if isinstance(hook, Attachment)))


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

    Training is untouched, no parameter or `state_dict` entry is added. Works under `no_grad`, `inference_mode`,
    autocast and `nn.DataParallel`, in a deep copy of the model, and for heads with any kind of output, in which
    classifiers, `SplitOutputs` and `ByPrediction` must find logits.

    Works for compiled models if `torch.compile` is called before `attach`. The other way round, a plain model of the
    same class that is compiled and called first makes torch leave the attachment out. The first `attach` of a process
    has everything compiled again: not while other threads run compiled models.

    Args:
        model: Any module.
        head: The head: a name as in `model.named_modules()` ("fc", "roi_heads.box_predictor"), or the module.
        what: A fitted aligner, a classifier, or a `Repair`.
        gate: Which rows are aligned; all of them (`Always`) when not given.
        outputs: Which outputs are read off aligned latents, instead of a gate; see `SplitOutputs`.
        argument: Which argument of the head is the latent: a position or a keyword.
        replace: Replace attachments that conflict with this one, instead of raising.

    Returns:
        The attachment; `detach()` it, or use it in a `with` statement.

    Raises:
        AttachError: If there is no such head, if it carries a conflicting attachment, or if `what` cannot be attached.
        NotFittedError: If the aligner or the gate has not learned anything yet.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval()
        >>> x, z = torch.randn(3, 20), torch.randn(100, 8)
        >>> aligner = elign.MeanShift().fit_latents(z, z + 1)
        >>> plain = model(x)
        >>> with elign.attach(model, "1", aligner):
        ...     aligned = model(x)
        >>> bool((plain != aligned).any()), torch.equal(model(x), plain)
        (True, True)
    """
    # A part may be compiled by itself; copies of the model have what is inside.
    target = extraction.unwrapped(extraction.find_module(model, head))
    _check(target, what, gate, outputs)
    if isinstance(what, Aligner) and outputs is None and gate is None:
        gate = Always()
    made = Attachment(model, target, what, gate=gate, outputs=outputs, argument=argument)
    conflicts = [there for there in attachments_of(target) if there.head is target and not _go_together(made, there)]
    if conflicts and not replace:
        names = " and ".join(type(there.what).__name__ for there in conflicts)
        raise AttachError(
            f"this head already carries something that moves latents or rewrites scores ({names}): detach() it first, "
            "or attach with replace=True (two would work one after the other)"
        )
    for there in conflicts:
        there.detach()
    made.register()
    return made


def detach(model: nn.Module) -> int:
    """Take all attachments off a model and its parts; return how many there were.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4))
        >>> aligner = elign.Identity().fit_latents(torch.zeros(1, 8), torch.zeros(1, 8))
        >>> _ = elign.attach(model, "1", aligner)
        >>> elign.detach(model), elign.detach(model)
        (1, 0)
    """
    found = attachments_of(model)
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


def _go_together(one: Attachment, other: Attachment) -> bool:
    """Allow an aligner in front of a head and a classifier behind it, if the classifier does not align by itself."""
    classifiers = [each.what for each in (one, other) if isinstance(each.what, LatentClassifier)]
    return sorted((one.role, other.role)) == ["align", "classify"] and not classifiers[0].aligners
