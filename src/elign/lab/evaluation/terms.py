"""What the numbers of a run are called, and what its oracles are told.

The rows of all kinds of runs have the same fields: what is called accuracy there is a detector's mean average
precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """The words of one kind of run.

    Args:
        measure: What its main number is called.
        seen: Of what it is, after a task.
        of_task: The same for one task; "of task 2" follows.
        item: What is aligned or not, one by one.
        told: What an oracle is told of each of them.
    """

    measure: str
    seen: str
    of_task: str
    item: str
    told: str


CLASSIFIED = Terms(
    measure="accuracy",
    seen="on the test images of all classes seen so far",
    of_task="test images",
    item="image",
    told="of each test image whether its class is old",
)
DETECTED = Terms(
    measure="mean average precision",
    seen="over all classes seen so far",
    of_task="classes",
    item="region",
    told="of each region whether it lies on an old object",
)


def terms_of(classifiers: Iterable[str]) -> Terms:
    """The terms of a run whose rows have these classifiers."""
    return DETECTED if "detector" in classifiers else CLASSIFIED
