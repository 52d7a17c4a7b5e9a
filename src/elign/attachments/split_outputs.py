"""Read some outputs of a head off aligned latents, the others off the unaligned ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elign.utils.errors import LatentError, OptionError
from elign.utils.extraction import logits_of, same_type, with_entries, with_logits
from elign.utils.tensors import compute_dtype, whole_number

_BOX = 4  # numbers of a box, which detectors' heads give for each output
_LEAST = 1e-30  # the least probability, so that its logarithm is a number


@dataclass(frozen=True)
class SplitOutputs:
    """Which outputs of a head are read off aligned latents, and how the two outputs become one.

    For heads whose logits a softmax follows. Both outputs are turned into probabilities: an old class has that of the
    aligned latent, every other one that of the unaligned latent, and background the smaller of its two. The result is
    their logarithm, so that a softmax, an argmax or a detector's non-maximum suppression may follow as with any logits.
    The probabilities need not sum to 1: a softmax that follows normalises them. The head's `forward` alone gives the
    output of the aligned latents: your own hooks on that head see the unaligned ones only.

    Args:
        columns: Places of the old classes among the head's outputs: `range(50)`, or `range(1, 51)` for a detector whose
            first output is the background.
        background: Place of the background; None if there is none.

    Example:
        >>> import torch
        >>> from elign import SplitOutputs
        >>> as_it_is, aligned = torch.tensor([[0.0, 0.0, 3.0]]), torch.tensor([[4.0, 0.0, 0.0]])
        >>> SplitOutputs(range(2)).merge(as_it_is, aligned).exp().round(decimals=2)
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

    def merge(self, as_it_is: Any, aligned: Any) -> Any:
        """Merge what a head returns for latents and for the same latents aligned; in the form of the first.

        Beside the logits, a tensor with four numbers for each output, a detector's boxes, is split in the same way;
        everything else is that of the unaligned latents.

        Raises:
            OptionError: The head has no such output.
            LatentError: The head gives different numbers of logits for the two.
        """
        here, there = logits_of(as_it_is), logits_of(aligned)
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

        merged = with_logits(as_it_is, self._scores(here, there, old))
        if isinstance(merged, Mapping):
            return with_entries(merged, {name: split(value, aligned[name]) for name, value in merged.items()})
        if isinstance(merged, tuple | list):
            parts = [split(mine, theirs) for mine, theirs in zip(merged, aligned, strict=True)]
            return same_type(merged, parts)
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
