"""Class-incremental learners of detectors, by name. They know nothing of aligners, optimisers, images or files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from elign.lab.detection.learners.faster_ilod import FasterIlod
from elign.lab.detection.learners.finetune import FineTune, Joint
from elign.lab.detection.learners.ilod import Ilod
from elign.lab.detection.learners.iod import Iod
from elign.lab.detection.learners.learner import DetectionLearner, Fetch, Stage, Targets
from elign.lab.detection.learners.ore import Ore
from elign.lab.detection.learners.unknown import UnknownByEnergy, free_energy
from elign.lab.detection.models.detector import Detector
from elign.utils.errors import OptionError

__all__ = [
    "LEARNERS",
    "DetectionLearner",
    "Fetch",
    "Stage",
    "Targets",
    "UnknownByEnergy",
    "free_energy",
    "make_detection_learner",
]

LEARNERS: dict[str, type[DetectionLearner]] = {
    learner.name: learner for learner in (FineTune, Joint, Ilod, FasterIlod, Ore, Iod)
}


def make_detection_learner(
    name: str, make_model: Callable[[], Detector], options: Mapping[str, Any] | None = None
) -> DetectionLearner:
    """A learner that has learned nothing yet.

    Args:
        name: One of `LEARNERS`.
        make_model: Makes a freshly drawn detector without classes.
        options: The learner's own numbers; those not given have their published values.

    Raises:
        OptionError: No learner has this name, or it does not take these options.

    Example:
        >>> from elign.lab.detection.models import make_detector, settings_of
        >>> learner = make_detection_learner("iod", lambda: make_detector("tiny-c4", settings=settings_of("tiny-c4")))
        >>> learner.grow(2)
        >>> learner.grow(1)
        >>> learner.known, learner.classes, [stage.name for stage in learner.stages(1)]
        (2, 3, ['learn', 'fine-tune'])
    """
    if name not in LEARNERS:
        near = difflib.get_close_matches(name.lower(), LEARNERS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"There is no detection learner {name!r}.{hint} Choose from: {', '.join(LEARNERS)}.")
    return LEARNERS[name](make_model, options=options)
