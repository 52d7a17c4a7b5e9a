"""The kinds of runs, by the name in `run.json`.

Each is made when it is asked for: a list of runs need not wait for the libraries that a training needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elign.lab.experiments.run_folder import RunError

if TYPE_CHECKING:
    from elign.lab.experiments.kind import Kind

CLASSIFICATION, DETECTION = "classification", "detection"


def kind_named(name: str) -> Kind:
    """A kind of run.

    Raises:
        RunError: There is no such kind: a newer elign made the run.
    """
    if name == CLASSIFICATION:
        from elign.lab.experiments import classification

        return classification.KIND
    if name == DETECTION:
        from elign.lab.detection.experiments import detection

        return detection.KIND
    raise RunError(f"there is no kind of run {name!r} in this elign: upgrade it")


def kind_of(facts: Mapping[str, Any]) -> Kind:
    """The kind of a run, from the facts in its `run.json`."""
    return kind_named(str(facts.get("kind", CLASSIFICATION)))
