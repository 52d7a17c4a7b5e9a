"""Heads of models, the latents that reach them (`Latents`, `Pairs`), and the logits in what they return."""

from __future__ import annotations

import copy
import difflib
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from elign.utils.errors import AttachError, LatentError, OptionError
from elign.utils.fitted import ProgressLine
from elign.utils.tensors import WHOLE_NUMBERS, check_labels, check_number, check_rows, check_whole

hook_lock = threading.Lock()
"""Held while a hook is registered: torch numbers hooks without a lock, and two of one number are one."""

# How the entries of a batch that is a mapping are usually called; Hugging Face's first.
_INPUT_NAMES = ("pixel_values", "inputs", "input", "images", "image", "img", "x", "input_values")
_LABEL_NAMES = ("labels", "label", "targets", "target", "y")


class Latents(nn.Module):
    """The latents that reach a head inside a model, as a callable from inputs to latents.

    Runs the whole model and catches what goes into the head, before any aligner that is attached there. Only calls of
    the same thread count: others may use the model meanwhile. If you call it yourself, put the model into evaluation
    mode first; everything that fits on latents does that for you. `head` is a name as in `model.named_modules()`, or
    the module itself; `argument` says which argument of the head is the latent: a position or a keyword.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from elign import Latents
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Linear(32, 10))
        >>> Latents(model, "2")(torch.randn(5, 1, 28, 28)).shape
        torch.Size([5, 32])
    """

    def __init__(self, model: nn.Module, head: str | nn.Module, *, argument: int | str = 0) -> None:
        super().__init__()
        # The replicas of DataParallel would hand in their rows in any order, from several devices; and what was
        # compiled does not notice a hook.
        self.model = unwrapped(model)
        self.argument = argument
        # Twice: a wrapper has parts, itself for one, that the model inside does not have.
        part = find_module(self.model, find_module(model, head))
        self.head_name = next(name for name, module in self.model.named_modules() if module is part)

    def forward(self, x: Any) -> Tensor:
        """Map inputs to latents `(..., D)`; several calls of the head give their rows one after another."""
        caught: list[Tensor] = []
        mine = threading.get_ident()

        # Defaults: torch notes a moment after it has added a hook that this one takes keyword arguments as well.
        def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if threading.get_ident() == mine:
                z = latent_of(args, kwargs or {}, self.argument)
                refuse_maps(module, z)
                # A copy: a head may begin with an operation in place.
                caught.append(z.clone())

        with hook_lock:
            # prepend: an aligner that is attached to this head must not be seen.
            handle = self.head.register_forward_pre_hook(catch, prepend=True, with_kwargs=True)
        try:
            self.model(x)
        finally:
            with hook_lock:
                handle.remove()
        if not caught:
            raise AttachError(f"the model never called its module {self.head_name!r}: is that the head it uses?")
        return caught[0] if len(caught) == 1 else torch.cat([z.reshape(-1, z.shape[-1]) for z in caught])

    @property
    def head(self) -> nn.Module:
        """The head itself."""
        return find_module(self.model, self.head_name)

    def logits(self, z: Tensor) -> Any:
        """Return what the head alone gives for latents, in evaluation mode, without what may be attached to it."""
        part, argument = self.head, self.argument
        if argument != 0 and not isinstance(argument, str):
            raise AttachError(f"the head gets latents alone: argument must be 0 or a keyword, not {argument!r}")
        weight = next((p for p in part.parameters() if p.is_floating_point()), None)
        # A model that sets autocast by itself hands its head latents of another type than the head's own.
        z = z.clone() if weight is None or torch.is_autocast_enabled(z.device.type) else z.to(weight.dtype, copy=True)
        with evaluating(part), torch.no_grad():
            # `forward`, not a call: a call would run what is attached.
            return part.forward(z) if argument == 0 else part.forward(**{str(argument): z})


class Pairs(NamedTuple):
    """Latents of the same inputs under the previous and the current model, and their classes.

    Extract them once and try several settings on them, as in `Repair().fit_latents(*pairs, head=new_model.fc)`; a fit
    from models would run both models each time.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> old, new = (nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)) for _ in range(2))
        >>> pairs = elign.Pairs.from_models(old, new, "1", [(torch.randn(5, 8), torch.tensor([0, 1, 0, 1, 0]))])
        >>> pairs.z_prev.shape, pairs.z_cur.shape, pairs.labels.tolist()
        (torch.Size([5, 4]), torch.Size([5, 4]), [0, 1, 0, 1, 0])
    """

    z_prev: Tensor
    z_cur: Tensor
    labels: Tensor

    @classmethod
    def from_models(
        cls,
        previous: nn.Module,
        current: nn.Module,
        head: str,
        data: Iterable[Any],
        *,
        argument: int | str = 0,
        inputs: Callable[[Any], Any] | None = None,
        labels: Callable[[Any], Any] | None = None,
        device: torch.device | str | None = None,
    ) -> Pairs:
        """Run both models on labelled data; the arguments are those of `Repair.fit`."""
        models = [Latents(model, head, argument=argument) for model in (previous, current)]
        (z_prev, z_cur), classes = extract_labelled(models, data, inputs=inputs, labels=labels, device=device)
        return cls(z_prev, z_cur, classes)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside of what `nn.DataParallel`, `DistributedDataParallel` or `torch.compile` made of it."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def find_module(model: nn.Module, head: str | nn.Module) -> nn.Module:
    """Return a part of `model` by its dotted name, and check that a module is a part of it.

    Names are those of `model.named_modules()`, or of the model inside of a wrapper; an error names the nearest ones.
    """
    inside: dict[str, nn.Module] = dict(unwrapped(model).named_modules())
    parts: dict[str, nn.Module] = {**inside, **dict(model.named_modules())}
    if not isinstance(head, str):
        if not any(part is head for part in parts.values()):
            raise AttachError("the given head is not a part of the given model")
        return head
    if head in parts:
        return parts[head]
    below = [part for part in inside if part.endswith(f".{head}")]
    near = below[:3] or difflib.get_close_matches(head, parts, n=3) or [part for part in parts if part][-3:]
    if not near:
        raise AttachError(f"the model has no module {head!r}: it has no parts at all")
    raise AttachError(f"the model has no module {head!r}; did you mean one of {', '.join(map(repr, near))}?")


def latent_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], argument: int | str) -> Tensor:
    """Return the latent among the arguments that a head was called with."""
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
        raise AttachError(f"this head gets {_maps(z)}")


def _maps(z: Tensor) -> str:
    return (
        f"feature maps {tuple(z.shape)}, not latents (N, D) or (N, tokens, D): name the layer that reads them once "
        "they are flat (inside a head that flattens them itself, its linear layer)"
    )


def logits_of(output: Any) -> Tensor:
    """Return the logits in what a head returns: see `ByPrediction`."""
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
    """Return a head's logits for latents, without gradients."""
    with torch.no_grad():
        return logits_of(head(z))


def with_logits(output: Any, logits: Tensor) -> Any:
    """Return what a head returned with other logits."""
    if isinstance(output, Mapping):
        return with_entries(output, {"logits" if "logits" in output else next(iter(output)): logits})
    return same_type(output, [logits, *output[1:]]) if isinstance(output, tuple | list) else logits


def same_type(output: Any, parts: Sequence[Any]) -> Any:
    """Return these parts as a tuple, named tuple or list like `output`."""
    return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)


def with_entries(output: Mapping[str, Any], entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mapping that a head returned with other entries, of the same type where that can be changed."""
    if not isinstance(output, MutableMapping):
        return {**output, **entries}
    changed = copy.copy(output)
    for key, value in entries.items():
        changed[key] = value
    return changed


def extract_pairs(
    previous: Callable[[Any], Tensor],
    current: Callable[[Any], Tensor],
    data: Iterable[Any],
    *,
    passes: int = 1,
    mixup: float | None = None,
    inputs: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return latents of the same inputs under both models, each `(N, D)`; the arguments are those of `Aligner.fit`."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for z_prev, z_cur in extract_batches(
        (previous, current), data, passes=passes, mixup=mixup, inputs=inputs, device=device, seed=seed
    ):
        z_prev, z_cur = _rows(z_prev, "previous"), _rows(z_cur, "current")
        if z_prev.shape != z_cur.shape:
            raise LatentError(
                f"previous gave latents {tuple(z_prev.shape)} and current {tuple(z_cur.shape)} for the same batch"
            )
        pairs.append((z_prev, z_cur))
    z_prev, z_cur = (torch.cat(side) for side in zip(*pairs, strict=True))
    return z_prev, z_cur


def extract_batches(
    models: Sequence[Callable[[Any], Any]],
    data: Iterable[Any],
    *,
    passes: int,
    mixup: float | None,
    inputs: Callable[[Any], Any] | None,
    device: torch.device | str | None,
    seed: int,
) -> Generator[list[Any], None, None]:
    """Yield what each model makes of the input of each batch, pass after pass; see `Aligner.fit`."""
    passes = check_whole(passes, "passes", least=1)
    blend = None if mixup is None else _mixup(check_number(mixup, "mixup", positive=True), seed)
    for number in range(passes):
        empty = True
        for _, made in _latents(models, data, inputs=inputs, device=device, change=blend):
            empty = False
            yield made
        if empty:
            again = " (a generator can be read only once: pass a DataLoader or a list)" if number else ""
            raise LatentError(f"data gave no batch in pass {number + 1} of {passes}{again}")


def extract_labelled(
    models: Sequence[Callable[[Any], Tensor]],
    data: Iterable[Any],
    *,
    inputs: Callable[[Any], Any] | None = None,
    labels: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Return latents `(N, D)` of the same inputs under each model, and their classes `(N,)`."""
    found: list[list[Tensor]] = []
    for batch, given in _latents(models, data, inputs=inputs, device=device, change=None):
        latents = [_rows(z, "the model") for z in given]
        classes = _classes((labels or _label_entry)(batch)).to(latents[-1].device)
        tokens = given[-1].shape[1] if given[-1].ndim == 3 else 1
        if tokens > 1 and len(given[-1]) == len(classes):
            raise LatentError(
                f"there are {tokens} latents for each input: the head gets all tokens of an input. Name the layer "
                'inside of it that reads one latent for each, such as "head.fc"'
            )
        lengths = [len(z) for z in latents]
        if lengths != [len(classes)] * len(models):
            raise LatentError(
                f"a batch has {lengths} latents but {len(classes)} classes: one whole number for each latent is "
                "needed (not one-hot rows); say with labels=... where they are"
            )
        found.append([*latents, classes])
    if not found:
        raise LatentError("data gave no batch: there is nothing to learn from")
    *latents, classes = (torch.cat(side) for side in zip(*found, strict=True))
    check_rows(latents[-1], "latents")
    check_labels(classes, len(classes))
    return latents, classes


def _latents(
    models: Sequence[Callable[[Any], Tensor]],
    data: Iterable[Any],
    *,
    inputs: Callable[[Any], Any] | None,
    device: torch.device | str | None,
    change: Callable[[Any], Any] | None,
) -> Iterator[tuple[Any, list[Tensor]]]:
    """Yield each batch with what each model makes of its input, in evaluation mode and without gradients."""
    if isinstance(data, Dataset):
        raise LatentError(
            f"data must give batches, and a Dataset ({type(data).__name__}) gives single samples: wrap it in a "
            "DataLoader(dataset, batch_size=128)"
        )
    if not isinstance(data, Iterable):
        raise LatentError(f"data must give batches (a DataLoader or a list of batches), got {type(data).__name__}")
    if device is None and isinstance(models[-1], nn.Module):
        device = next((parameter.device for parameter in models[-1].parameters()), None)
    try:
        batches = len(data)  # type: ignore[arg-type]
    except TypeError:
        batches = None
    # Not inference mode: whatever models or data sets keep of these tensors must still be of use in later training.
    with evaluating(*models), torch.no_grad(), ProgressLine("latents, batch") as line:
        for number, batch in enumerate(data, start=1):
            x = _to_device((inputs or _input_entry)(batch), device)
            x = change(x) if change else x
            yield batch, [model(x) for model in models]
            line(number, batches)


def _mixup(alpha: float, seed: int) -> Callable[[Any], Tensor]:
    """Return a function that blends a batch of images with its own permutation, one coefficient per batch."""
    rng = np.random.default_rng(seed)

    def blend(x: Any) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise LatentError("mixup needs inputs that are floating-point tensors; use inputs=... to convert them")
        share = float(rng.beta(alpha, alpha))
        order = torch.from_numpy(rng.permutation(len(x))).to(x.device)
        return share * x[order] + (1 - share) * x

    return blend


def _input_entry(batch: Any) -> Any:
    if not isinstance(batch, Mapping | tuple | list):
        return batch
    if not batch:
        raise LatentError(f"data gave an empty {type(batch).__name__} as a batch: there is no input in it")
    if not isinstance(batch, Mapping):
        return batch[0]
    named = [batch[name] for name in _INPUT_NAMES if name in batch]
    others = [value for name, value in batch.items() if name not in _LABEL_NAMES]
    return (named or others or list(batch.values()))[0]


def _label_entry(batch: Any) -> Any:
    named = [batch[name] for name in _LABEL_NAMES if name in batch] if isinstance(batch, Mapping) else []
    if named:
        return named[0]
    entries = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(entries, tuple | list) or len(entries) < 2:
        raise LatentError(
            "a batch must hold inputs and classes, in this order; use inputs=... and labels=... to say where"
        )
    return entries[1]


def _classes(given: Any) -> Tensor:
    try:
        classes = torch.as_tensor(given).reshape(-1)
        why = "" if classes.dtype in WHOLE_NUMBERS else str(classes.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        why = f"{type(given).__name__} ({error})"
    if why:
        raise LatentError(f"classes must be whole numbers, got {why}: say with labels=... where they are")
    return classes.long()


def _rows(z: Any, which: str) -> Tensor:
    if not isinstance(z, Tensor) or z.ndim < 2:
        shape = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise LatentError(
            f"{which} must return latents (N, D), got {shape}: see elign.Latents to read them off a model; data must "
            "give batches (a DataLoader, not a Dataset)"
        )
    if z.ndim > 3:
        raise LatentError(f"{which} returns {_maps(z)}, or flatten all but the last dimension yourself")
    return z.reshape(-1, z.shape[-1])


def _to_device(x: Any, device: torch.device | str | None) -> Any:
    if device is None:
        return x
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, tuple | list):
        return same_type(x, [_to_device(part, device) for part in x])
    if isinstance(x, Mapping):
        return {key: _to_device(part, device) for key, part in x.items()}
    return x


# Parts in evaluation mode for our sake: how often, and the mode to go back to. Several threads may evaluate one model,
# and the first that is done must not switch it back under the others.
_held: dict[nn.Module, tuple[int, bool]] = {}
_held_lock = threading.Lock()


@contextmanager
def evaluating(*models: Callable[[Any], Any]) -> Iterator[None]:
    """Keep models in evaluation mode; afterwards each of their parts is in the mode it was."""
    # A method of a model, such as `model.features`, stands for that model.
    owners = (model if isinstance(model, nn.Module) else getattr(model, "__self__", None) for model in models)
    parts = {part for owner in owners if isinstance(owner, nn.Module) for part in owner.modules()}
    with _held_lock:
        for part in parts:
            times, mode = _held.get(part, (0, part.training))
            _held[part] = times + 1, mode
            part.training = False
    try:
        yield
    finally:
        with _held_lock:
            for part in parts:
                times, mode = _held.pop(part)
                if times > 1:
                    _held[part] = times - 1, mode
                else:
                    part.training = mode
