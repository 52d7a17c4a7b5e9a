"""What may be typed after `elign reproduce`: the choices of runs of classification, and those of detection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elign.lab.experiments.config_errors import ConfigError
from elign.lab.experiments.kinds import CLASSIFICATION, DETECTION, kind_named

LEARNERS = ("icarl", "lucir", "aanet")
PROTOCOLS = ("half-5", "half-10", "half-25", "equal-5", "equal-10", "equal-20")
OF_DETECTION = ("table2",)
"""The experiments whose runs are detectors."""


@dataclass(frozen=True)
class Vocabulary:
    """The words of a kind of run.

    Args:
        command: What makes a single run.
        learners: Names that may be given.
        data: Names that may be given.
        protocols: Names that may be given; None: any sizes, such as 15+5.
        groups: Groups of settings that are handed on to the runs.
    """

    command: str
    learners: tuple[str, ...]
    data: tuple[str, ...]
    protocols: tuple[str, ...] | None
    groups: tuple[str, ...]


def vocabulary(chosen: Sequence[str]) -> Vocabulary:
    """The words for some experiments.

    Args:
        chosen: Their names.

    Raises:
        ConfigError: They do not have their words in common.
        TorchvisionMissingError: They are about detectors, and what these need is not installed.
    """
    detectors = [name for name in chosen if name in OF_DETECTION]
    if detectors and len(chosen) > 1:
        raise ConfigError(
            f"{detectors[0]} trains detectors, whose learners, data and settings are others: give it a command of its "
            f"own, without {next(name for name in chosen if name != detectors[0])}."
        )
    kind = kind_named(DETECTION if detectors else CLASSIFICATION)
    groups = tuple(name for name in kind.tree.sections if name not in ("learner", "data", "protocol"))
    data = kind.tree.choices("data")
    if detectors:
        return Vocabulary(kind.command, kind.tree.choices("learner"), data, None, groups)
    return Vocabulary(kind.command, LEARNERS, data, PROTOCOLS, groups)
