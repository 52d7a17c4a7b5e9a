"""What the published runs of Table 2 are, and in what detection runs differ from them, in words.

Detectors are asked for when they are needed: this module needs no torchvision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elign.lab.experiments.differences import say_differences
from elign.lab.experiments.kinds import DETECTION, kind_named
from elign.lab.experiments.run_config import flatten
from elign.lab.report import paper

STAND_INS: Mapping[str, str] = {"5+5": "10+10", "8+2": "15+5", "9+1": "19+1"}
"""Splits of ten classes for the splits of twenty, by their position in the table."""

# One aligner and one threshold for each split; the rest is in `preset=paper`.
_PUBLISHED: Mapping[str, Mapping[str, str]] = {
    "10+10": {"aligner.step_size": "0.01"},
    "15+5": {"model.nms": "0.3"},
    "19+1": {"aligner.hidden": "[]", "aligner.step_size": "0.0001", "model.nms": "0.3"},
}
_WORDS: Mapping[str, str] = {
    "data.name": "data",
    "model.name": "backbone",
    "model.weights": "pretrained weights",
    "epochs": "epochs, first task / others",
    "data.scenes": "scenes made for training and test",
    "data.image_size": "longest side of images",
    "data.limit": "training images that each class draws",
    "memory.per_class": "images kept of each class",
    "evaluation.method": "rule of average precision",
}
_SKIPPED = ("seed", "data.path", "train.precision", "train.layout", "train.devices", "evaluation.coco")
_STEPS = ("train.milestones", "train.gamma")


def printed_protocol(protocol: str) -> str | None:
    """The printed split that stands beside one of ours: itself, or the one that it is a stand-in for.

    Example:
        >>> printed_protocol("8+2"), printed_protocol("19+1"), printed_protocol("7+3")
        ('15+5', '19+1', None)
    """
    name = STAND_INS.get(protocol, protocol)
    return name if name in paper.table2_protocols() else None


def published_settings(protocol: str, given: Sequence[str]) -> tuple[str, ...]:
    """What the authors' commands set for a split of Table 2, but for what the user sets.

    Args:
        protocol: A split; for others than those of the paper nothing is set.
        given: What the user sets, as `key=value`.
    """
    own = _PUBLISHED.get(protocol)
    if own is None:
        return ()
    keys = {text.partition("=")[0] for text in given}
    # Their previous head reads the current backbone's features.
    settings = {"aligner.shared_backbone": "true", **own}
    return tuple(f"{key}={value}" for key, value in settings.items() if key not in keys)


def published_config(learner: str, protocol: str) -> Any:
    """The configuration of a published run.

    Args:
        learner: Its learner.
        protocol: A split of Table 2.
    """
    settings = (f"learner={learner}", "data=voc2007", f"protocol={protocol}", "preset=paper")
    return kind_named(DETECTION).compose([*settings, *published_settings(protocol, ())])


def differences(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """Every difference of scale.

    Args:
        pairs: A run's configuration, and the published one that it stands beside.

    Returns:
        Sentences without an end, the most telling first.
    """
    return say_differences((_compared(own, published) for own, published in pairs), _WORDS)


def _compared(own: Any, published: Any) -> tuple[dict[str, str], dict[str, str]]:
    ours, theirs = _facts(own), _facts(published)
    if ours["train.schedule"] != theirs["train.schedule"]:
        # What only steps have is no difference beside that they are none.
        ours, theirs = (_without(facts, _STEPS) for facts in (ours, theirs))
    return ours, theirs


def _facts(config: Any) -> dict[str, str]:
    settings = _without(flatten(config), _SKIPPED)
    epochs = f"{settings.pop('train.first_epochs')}/{settings.pop('train.epochs')}"
    facts = {key: _text(key, value) for key, value in settings.items() if not key.startswith("protocol.")}
    return facts | {"epochs": epochs}


def _without(settings: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}


def _text(key: str, value: Any) -> str:
    if value is None:
        usual = "the detector's own" if key.startswith("model.") and key != "model.weights" else "none"
        return {"data.image_size": "as they are", "data.limit": "all"}.get(key, usual)
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
