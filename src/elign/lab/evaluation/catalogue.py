"""All readings with their group and one line of explanation, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A reading as it is shown.

    Args:
        group: The heading it stands under.
        text: What it is.
        label_free: False if it knows which test samples are old.
    """

    group: str
    text: str
    label_free: bool = True


_BASE, _ELI, _GATES = "base", "ELI", "ELI, label-free gates"
_DEFAULT = "default, label-free"
_ORACLE, _FREE, _UPPER = "controls, oracle", "controls, label-free", "bounds, oracle"

DEFAULT = "blend"
"""The reading to use: the best that needs no test label, as far as development runs tell (docs/label-free.md)."""

READINGS: Mapping[str, Entry] = {
    "base": Entry(_BASE, "nothing is aligned"),
    "eli/oracle": Entry(_ELI, "truly old samples are aligned, as in the paper", label_free=False),
    "eli/all": Entry(_ELI, "every sample is aligned"),
    "eli/dose": Entry(_ELI, "every sample is aligned by the same share, chosen on training data"),
    "eli/by-prediction": Entry(_GATES, "what the head takes for an old class is aligned"),
    "eli/by-prediction-soft": Entry(_GATES, "each sample as far as the head gives probability to old classes"),
    "eli/by-energy": Entry(_GATES, "samples of low energy are aligned"),
    "eli/by-probe": Entry(_GATES, "what a probe on exemplars and new data takes for old is aligned"),
    "eli/old-classes": Entry(_GATES, "of detectors: scores of old classes after alignment, all others as they are"),
    DEFAULT: Entry(_DEFAULT, "head, and a discriminant after alignment (without exemplars: prototypes), with offsets"),
    "mean-shift/oracle": Entry(_ORACLE, "one constant shift of truly old samples", label_free=False),
    "ridge/oracle": Entry(_ORACLE, "a linear map of truly old samples", label_free=False),
    "random-shift/oracle": Entry(_ORACLE, "as long as ELI's moves, in a random direction", label_free=False),
    "untrained/oracle": Entry(_ORACLE, "ELI with the energy model it starts from", label_free=False),
    "mean-shift/all": Entry(_FREE, "one constant shift of every sample"),
    "ridge/all": Entry(_FREE, "a linear map of every sample"),
    "ridge/old-classes": Entry(_FREE, "of detectors: scores of old classes after a linear map, all others as they are"),
    "bias-offset": Entry(_FREE, "one number off the new classes' logits, chosen on exemplars"),
    "forward/none": Entry(_FREE, "nearest class mean of the time when the class was learned"),
    "forward/mean-shift": Entry(_FREE, "the same, moved forward after each task by one shift"),
    "forward/ridge": Entry(_FREE, "the same, moved forward by a linear map"),
    "forward/eli": Entry(_FREE, "the same, moved forward by ELI with the models exchanged"),
    "forward/local-shift": Entry(_FREE, "the same, each moved as new images near it moved"),
    "oracle-mask": Entry(_UPPER, "base; truly old samples choose among old classes", label_free=False),
    "oracle-mask-both": Entry(_UPPER, "base; old among old classes, new among new ones", label_free=False),
    "previous-model": Entry(_UPPER, "truly old samples go to the previous model", label_free=False),
}
