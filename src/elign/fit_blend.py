"""The label-free default in one call: fits what a `Blend` is made of and chooses it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elign.aligner import Aligner
from elign.blend import Blend, task_ends
from elign.controls import Ridge
from elign.discriminant import Discriminant
from elign.energy_aligner import EnergyAligner
from elign.errors import AttachError, LatentError, OptionError
from elign.extraction import Latents, evaluating, extract_labelled
from elign.gates import Head
from elign.head_outputs import read_logits
from elign.heads import find_module
from elign.prototypes import Prototypes
from elign.readout import Aligned, HeadScores, Readout, same_noise


class Labelled(NamedTuple):
    """Latents `(N, D)` of training data under the current model, and their classes `(N,)`."""

    z: Tensor
    labels: Tensor


def fit_blend(
    previous: nn.Module,
    current: nn.Module,
    head: str,
    new: Iterable[Any],
    exemplars: Iterable[Any] | None = None,
    *,
    known: int | Sequence[int],
    prototypes: Prototypes | None = None,
    aligner: Aligner | None = None,
    argument: int | str = 0,
    inputs: Callable[[Any], Any] | None = None,
    labels: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
) -> Blend:
    """Make a blend for a classifier that learned new classes, to be attached in place of its head.

    Needs something of the old classes: a few images (`exemplars`), or only their class means from when they were
    learned (`prototypes`). No test data, and nothing that is not there when the model is shipped::

        blend = elign.fit_blend(old_model, new_model, "fc", new_task_loader, exemplar_loader, known=50)
        elign.attach(new_model, "fc", blend)
        blend.save("blend.safetensors")

    Args:
        previous: The model before it learned the new classes.
        current: The model after.
        head: Name of the head in both, as in `model.named_modules()`. It is called with latents alone.
        new: Batches of training data of the new classes: inputs first, classes second.
        exemplars: Batches of some training data of all classes, old and new.
        known: Number of old classes, which are the head's first outputs; or, where they came in several tasks, how many
            there were after each of these: `[50, 60, 70]` (not the classes themselves).
        prototypes: Class means of the old classes in the previous model's space. They are not changed: the blend has a
            copy that was moved forward and holds the new classes as well (`blend.prototypes`: keep them for the next
            time). Offsets are chosen on the very images that make the new classes' means, so that with only a handful
            of a class they take somewhat too much off the new ones.
        aligner: What moves latents back, not fitted yet; when not given, `EnergyAligner()` with exemplars and `Ridge()`
            with prototypes.
        argument: Which argument of the head is the latent: 0 or a keyword.
        inputs: Takes the models' input out of a batch, when it is not simply the first entry.
        labels: Takes the classes out of a batch, when they are not simply the second entry.
        device: Where to run the models' inputs; by default where `current`'s parameters are.

    Raises:
        OptionError: If there is nothing of the old classes.
        LatentError: If data or prototypes do not fit the models or each other.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import elign
        >>> before, after = (nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval() for _ in range(2))
        >>> new = [(torch.randn(64, 20), torch.arange(64) % 2 + 2)]            # classes 2 and 3 are new
        >>> exemplars = [(torch.randn(40, 20), torch.arange(40) % 4)]
        >>> blend = elign.fit_blend(before, after, "1", new, exemplars, known=2)
        >>> with elign.attach(after, "1", blend):
        ...     scores = after(torch.randn(3, 20))
        >>> scores.shape
        torch.Size([3, 4])
    """
    if not isinstance(head, str):
        raise OptionError('give the name of the head, "fc" say: it is looked for in both models')
    if exemplars is not None and prototypes is not None:
        raise OptionError("give exemplars or prototypes: where there are exemplars, prototypes add nothing")
    if exemplars is None and prototypes is None:
        raise OptionError(
            "a blend needs something of the old classes: some images of all classes (exemplars=...), or their class "
            "means from before (prototypes=...); with neither, attach an aligner with a gate, say elign.ByPrediction"
        )
    if prototypes is not None and type(prototypes) is not Prototypes:
        raise OptionError(
            f"prototypes must be elign.Prototypes, which can be moved forward (such as blend.prototypes), "
            f"got a {type(prototypes).__name__}"
        )
    old = task_ends(known)[-1]
    before, after = (Latents(model, head, argument=argument) for model in (previous, current))
    read_head = _reader(after)
    read = partial(extract_labelled, inputs=inputs, labels=labels, device=device)
    # One pass: a loader that augments or shuffles gives other images each time.
    (z_prev, z_cur), classes = read([before, after], new)
    if bool((classes < old).any()):
        raise LatentError(f"there is class {int(classes.min())} among the new data, but {old} old classes")
    # Whoever gives too few old classes has none of the next ones here.
    _check_all_there(torch.bincount(classes)[old:], int(classes.max()) + 1 - old, "new sample", first=old)
    if prototypes is not None:
        if prototypes.require_fitted() != z_cur.shape[1]:
            raise LatentError(f"the prototypes have dimension {prototypes.dim}, the latents {z_cur.shape[1]}")
        _check_all_there(prototypes.counts[:old], old, "prototype")
        back = (aligner if aligner is not None else Ridge()).fit_latents(z_prev, z_cur)
        forward = Ridge().fit_latents(z_prev, z_cur, direction="forward")
        return blend_prototypes(back, forward, read_head, prototypes, Labelled(z_cur, classes), known=known)
    assert exemplars is not None  # noqa: S101  (for the type checker: see above)
    (z,), kept = read([after], exemplars)
    _check_all_there(torch.bincount(kept), int(classes.max()) + 1, "exemplar (of old and new classes)")
    back = (aligner if aligner is not None else EnergyAligner()).fit_latents(z_prev, z_cur)
    return blend_exemplars(back, read_head, Labelled(z, kept), known=known)


def blend_exemplars(aligner: Aligner, head: Head, exemplars: Labelled, *, known: int | Sequence[int]) -> Blend:
    """The head, and a discriminant of the exemplars after alignment, chosen on the exemplars.

    Why these, and what else was tried: docs/label-free.md.

    Args:
        aligner: From the current space to the previous one, fitted.
        head: Latents to what the current head returns.
        exemplars: Of all classes.
        known: As in `Blend`.
    """
    logits = read_logits(head, exemplars.z)
    moved = aligner.align(exemplars.z, generator=same_noise(exemplars.z))
    aligned = Aligned(aligner, Discriminant().fit(moved, exemplars.labels, classes=logits.shape[1]))
    return _chosen([HeadScores(), aligned], exemplars, logits, known=known)


def blend_prototypes(
    aligner: Aligner,
    forward: Aligner,
    head: Head,
    prototypes: Prototypes,
    new: Labelled,
    *,
    known: int | Sequence[int],
    seed: int = 0,
) -> Blend:
    """The head, prototypes that come to the latents and prototypes that the latents come to; without exemplars.

    Chosen on data of the new classes and stand-ins for the old ones.

    Args:
        aligner: From the current space to the previous one, fitted.
        forward: From the previous space to the current one, fitted.
        head: Latents to what the current head returns.
        prototypes: Of the old classes, in the previous space; they are not changed.
        new: Of the new classes.
        known: As in `Blend`.
        seed: Of the stand-ins.
    """
    outputs = read_logits(head, new.z[:1]).shape[1]
    moved = copy.deepcopy(prototypes).move(forward).add(*new, classes=outputs)
    back = aligner.align(new.z, generator=same_noise(new.z))
    there = copy.deepcopy(prototypes).add(back, new.labels, classes=outputs)
    made, classes = moved.stand_ins(*new, seed=seed)
    chosen_on = Labelled(torch.cat([made, new.z]), torch.cat([classes, new.labels]))
    parts = [HeadScores(), moved, Aligned(aligner, there)]
    return _chosen(parts, chosen_on, read_logits(head, chosen_on.z), known=known)


def _check_all_there(counts: Tensor, classes: int, what: str, *, first: int = 0) -> None:
    """Raise if some class would never be predicted; `counts` begin with class `first`."""
    there = counts.tolist() + [0] * (classes - len(counts))
    if 0 in there:
        missing = first + there.index(0)
        raise LatentError(f"there is no {what} of class {missing}: a class without any would never be predicted")


def _chosen(parts: Sequence[Readout], samples: Labelled, logits: Tensor, *, known: int | Sequence[int]) -> Blend:
    # Equal weights: the model was trained on what they would be chosen on, and its head would get them all.
    return Blend(parts, known=known, caution=math.inf).choose(*samples, logits=logits)


def _reader(latents: Latents) -> Head:
    """The head alone, as it is in evaluation mode, without what may be attached to it."""
    part, argument = find_module(latents.model, latents.head_name), latents.argument
    if argument != 0 and not isinstance(argument, str):
        raise AttachError(
            f"a blend calls the head with latents alone: argument must be 0 or a keyword, not {argument!r}"
        )

    weight = next((p for p in part.parameters() if p.is_floating_point()), None)

    def read(z: Tensor) -> Any:
        # A model that sets autocast by itself hands its head latents of another type than the head's own.
        z = z.clone() if weight is None or torch.is_autocast_enabled(z.device.type) else z.to(weight.dtype, copy=True)
        with evaluating(part):
            # `forward`, not a call: a call would run what is attached.
            return part.forward(z) if argument == 0 else part.forward(**{str(argument): z})

    return read
