"""The published configurations, and how a run differs from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from elign.lab.config.schema import flatten
from elign.lab.runs.experiment import BENCHMARKS, CLASSIFICATION, DETECTION

# What the authors' commands set for a split of Table 2; the rest is in `preset=paper`.
_SPLITS: Mapping[str, Mapping[str, str]] = {
    "10+10": {"aligner.step_size": "0.01"},
    "15+5": {"model.nms": "0.3"},
    "19+1": {"aligner.hidden": "[]", "aligner.step_size": "0.0001", "model.nms": "0.3"},
}
_LABELS: Mapping[str, str] = {
    "data.name": "data",
    "model.name": "backbone",
    "model.weights": "pretrained weights",
    "epochs": "epochs, first task / others",
    "memory": "exemplars",
    "data.scenes": "scenes made for training and test",
    "data.limit": "training images of each class",
    "data.validation": "validation images of each class instead of the test images",
    "data.image_size": "side of images",
    "data.order": "seed of the class order",
    "memory.per_class": "images kept of each class",
    "evaluation.method": "rule of average precision",
}
_NONE: Mapping[str, str] = {
    "data.limit": "all",
    "data.image_size": "the usual one",
    "data.order": "none (natural order)",
}
_SKIPPED = ("seed", "data.path", "train.fast", "train.threads", "train.devices", "memory.selection", "evaluation.coco")
_STEPS = ("train.milestones", "train.gamma")


def published_words(benchmark: str, data: str, protocol: str, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what the authors set for a protocol beside `preset=paper`, except for the keys in `given`."""
    own: dict[str, str] = {}
    if benchmark == DETECTION and protocol in _SPLITS:
        # Their previous head gets the features of the current backbone.
        own = {"aligner.shared_backbone": "true", **_SPLITS[protocol]}
    elif benchmark == CLASSIFICATION and protocol.startswith("equal-"):
        # Their flag for equal tasks keeps the natural order of classes and makes the net for CIFAR one of 14 layers.
        own = {"data.order": "null"} | ({"model": "resnet14"} if data == "cifar100" else {})
    keys = {text.partition("=")[0] for text in given}
    return tuple(f"{key}={value}" for key, value in own.items() if key not in keys)


def published_aligner(learner: str, data: str, protocol: str) -> tuple[str, ...]:
    """Return the one exception among the published settings of the aligner: a linear energy."""
    exception = learner.startswith("aanet") and data == "imagenet100" and protocol in ("half-10", "half-25")
    return ("aligner.hidden=[]",) if exception else ()


def published_config(benchmark: str, learner: str, data: str, protocol: str) -> Any:
    """Return the configuration of a published run."""
    words = [f"learner={learner}", f"data={data}", f"protocol={protocol}", "preset=paper"]
    words += [*published_words(benchmark, data, protocol), *published_aligner(learner, data, protocol)]
    return BENCHMARKS[benchmark].compose(words)


def differences(
    pairs: Iterable[tuple[Any, Any]], *, varied: Collection[str] = (), labels: Mapping[str, str] = _LABELS
) -> list[str]:
    """Say each setting that differs, those with labels first, as sentences without an end.

    Args:
        pairs: A run's configuration, and the published one that it is compared with.
        varied: Settings to leave out, because they are what an experiment compares.
        labels: What settings are called; the others are called by their keys.
    """
    found: dict[str, dict[str, dict[str, None]]] = {}
    for pair in pairs:
        ours, theirs = map(_values, pair)
        both_step = ours.get("train.schedule") == theirs.get("train.schedule") == "steps"
        for key in dict.fromkeys((*ours, *theirs)):
            one, other = ours.get(key, "none"), theirs.get(key, "none")
            if one != other and key not in varied and (both_step or key not in _STEPS):
                found.setdefault(key, {}).setdefault(one, {})[other] = None
    ranks = {key: rank for rank, key in enumerate(labels)}
    ordered = sorted(found, key=lambda key: ranks.get(key, len(ranks)))
    return [f"{labels.get(key, key)}: {_instead(found[key])}" for key in ordered]


def _instead(values: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{one} instead of {' or '.join(others)}" for one, others in values.items())


def scale_note(preset: str, found: Sequence[str]) -> str:
    """Return the differences as the first note of a table."""
    if not found:
        return f"preset={preset}: the published settings, as far as they are known"
    return f"preset={preset}, not the paper's scale: {'; '.join(found)}"


def seeds_difference(seeds: int) -> list[str]:
    """Say how many seeds there are, where the paper has another number."""
    return [] if seeds == 3 else [f"{seeds} seed{'s' if seeds > 1 else ''} instead of 3 runs"]


def _values(config: Any) -> dict[str, str]:
    """Return the settings that are compared, as texts."""
    settings = {key: value for key, value in flatten(config, whole=True).items() if key not in _SKIPPED}
    settings = {key: value for key, value in settings.items() if not key.startswith(("protocol.", "learner.name"))}
    epochs = f"{settings.pop('train.first_epochs')}/{settings.pop('train.epochs')}"
    if "memory.budget" in settings:
        settings["memory"] = _exemplars(settings.pop("memory.budget"), settings.pop("memory.per_class"))
    return {"epochs": epochs} | {key: _text(key, value) for key, value in settings.items()}


def _exemplars(budget: int | None, per_class: int | None) -> str:
    if per_class:
        return f"{per_class} of each class"
    return f"{budget} in all" if budget else "none"


def _text(key: str, value: Any) -> str:
    if value is None:
        own = "the detector's own" if key.startswith("model.") and key != "model.weights" else "none"
        return _NONE.get(key, own)
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
