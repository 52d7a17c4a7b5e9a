"""Which readings a report puts forward, and how each one looks in every figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from elign.lab.evaluation.catalogue import DEFAULT, READINGS
from elign.lab.report.runs import Experiment

ORACLE = "eli/oracle"
MASK = "oracle-mask"
PREVIOUS = "previous-model"
MARK = "†"

ORACLE_CONTROLS = tuple(name for name, entry in READINGS.items() if entry.group == "controls, oracle")
FREE_ELI = tuple(name for name, entry in READINGS.items() if "eli" in name.split("/") and entry.label_free)
"""Every label-free use of ELI: aligned samples, and prototypes that are moved forward."""
FREE_CONTROLS = tuple(
    name for name, entry in READINGS.items() if entry.group == "controls, label-free" and name not in FREE_ELI
)

GROUP_COLOURS = {
    "base": "before",
    "ELI": "accent",
    "default, label-free": "class-7",
    "ELI, label-free gates": "previous",
    "controls, oracle": "class-4",
    "controls, label-free": "control",
    "bounds, oracle": "class-1",
}
"""The colour of each group of the catalogue; a group that is new there is grey until it gets one."""

ALIGNER_COLOURS = {
    "base": "before",
    "eli": "accent",
    "mean-shift": "class-1",
    "ridge": "previous",
    "random-shift": "class-4",
    "untrained": "control",
}


@dataclass(frozen=True)
class Line:
    """A reading as a line of a figure: its name, what it stands for there, and its look."""

    reading: str
    role: str
    colour: str
    dash: str

    @property
    def label(self) -> str:
        """For a legend."""
        named = marked(self.reading)
        return f"{named} ({self.role})" if self.role else named


def marked(reading: str) -> str:
    """The name, with a mark where the reading uses test labels."""
    return reading if READINGS[reading].label_free else f"{reading} {MARK}"


def note(experiments: Iterable[Experiment]) -> str:
    """What the mark means: what readings that have it are told."""
    told = " or ".join(dict.fromkeys(each.terms.told for each in experiments))
    return f"{MARK} uses test labels: it knows {told}."


def best(experiment: Experiment, readings: Iterable[str]) -> str | None:
    """The one with the highest mean of the average over tasks; None if no run has any of them."""
    means = {name: statistics.fmean(values) for name in readings if (values := experiment.values(name)) is not None}
    return max(means, key=lambda name: means[name]) if means else None


def lines(experiment: Experiment) -> list[Line]:
    """The few readings that are followed task by task, those that the experiment has."""
    free, control = best(experiment, FREE_ELI), best(experiment, FREE_CONTROLS)
    chosen = [
        Line("base", "", "before", "solid"),
        Line(ORACLE, "", "accent", "solid"),
        Line(DEFAULT, "label-free default", "class-7", "solid"),
        *([Line(free, "best label-free ELI", "previous", "solid")] if free else []),
        *([Line(control, "best label-free control", "control", "dash")] if control else []),
        Line(MASK, "", "class-1", "dash"),
        Line(PREVIOUS, "", "class-4", "dot"),
    ]
    present = experiment.summaries()
    return [line for line in chosen if line.reading in present]
