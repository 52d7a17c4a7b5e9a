"""What the paper prints (`paper_results.json`), its published configurations, and how a run differs from them.

Printed accuracies are in percent. Names are those of the bench (`icarl`, `cifar100`, `half-5`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from elign.lab.config.schema import flatten
from elign.lab.runs.experiment import BENCHMARKS, CLASSIFICATION, DETECTION

_LEARNERS = {"icarl": "iCaRL", "lucir": "LUCIR", "aanet": "AANet"}
_DETECTORS = {
    "joint": "All 20",
    "finetune": "Std Training",
    "ilod": "Shmelkov et al.",
    "faster-ilod": "Faster ILOD",
    "ore": "ORE",
    "iod": "iOD",
    "iod+eli": "iOD + ELI",
}
_DATA = {"cifar100": "cifar100", "imagenet100": "imagenet_subset"}


@dataclass(frozen=True)
class Printed:
    """A printed pair of accuracies; None where the paper prints none.

    Args:
        base: Without alignment.
        aligned: With it.
        gain: As printed where the paper prints gains, else the difference.
    """

    base: float | None = None
    aligned: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class PrintedPrecision:
    """Printed mean average precisions of a detector: of the first task's classes, the second's, and all."""

    old: float | None = None
    new: float | None = None
    all: float | None = None


NOTHING = Printed()
NO_PRECISION = PrintedPrecision()


@cache
def numbers() -> Any:
    """Return the content of the file."""
    return json.loads(resources.files(__package__).joinpath("paper_results.json").read_text(encoding="utf-8"))


def printed_cell(table: str, learner: str, data: str, protocol: str, choice: str = "") -> Printed:
    """Return a cell of `table1`, `imagenet1k`, `implicit`, or of an ablation (its key, and its row without spaces).

    Example:
        >>> printed_cell("table1", "icarl", "cifar100", "half-5")
        Printed(base=56.97, aligned=63.68, gain=6.71)
    """
    name = _LEARNERS.get(learner, "")
    column = f"{_DATA.get(data, '')}_{protocol.replace('half', 'b50').replace('-', '_')}"
    if table == "imagenet1k":
        return Printed(gain=numbers()["fig_imagenet1k"]["average_gain"].get(name))
    if table == "implicit":
        kind, _, count = protocol.partition("-")
        gains = numbers()["fig_implicit_regulariser"]["gain_over_AANet_without_ER"]
        return Printed(gain=gains.get(count) if (kind, data) == ("half", "imagenet100") else None)
    main = numbers()["table1_class_incremental"]
    base = main["rows"].get(name, {}).get(column)
    if table == "table1":
        gain = main["printed_gains"].get(f"{name}+ELI", {}).get(column)
        return NOTHING if base is None else Printed(base, main["rows"][f"{name}+ELI"][column], gain)
    rows = {row.replace(" ", ""): cells for row, cells in numbers()[table]["rows"].items()}
    if table == "table6_logit_aligner":
        return _pair(base, rows.get(f"{name}+LogitAligner", {}).get(column))
    # The other ablations are of iCaRL.
    return _pair(base, rows.get(choice, {}).get(column)) if learner == "icarl" else NOTHING


def printed_toy(latent_dim: int) -> Printed:
    """Return the accuracy on task 1 after task 2 of the two-task experiment on MNIST."""
    found = numbers()["toy_mnist"]["paper"].get(str(latent_dim))
    return NOTHING if found is None else _pair(found["task1_after_task2"], found["task1_with_ELI"])


def printed_precision(learner: str, protocol: str) -> PrintedPrecision:
    """Return a row of Table 2, detection on VOC 2007 after the second task; `first` is the detector before it.

    Example:
        >>> printed_precision("iod", "15+5")
        PrintedPrecision(old=71.73, new=55.9, all=67.8)
    """
    rows = numbers()["table2_incremental_detection"]["settings"].get(protocol, {})
    if learner == "first":
        # The mean of the printed precisions: the table's own means of these rows are over other numbers of classes.
        found = rows.get(f"First {protocol.partition('+')[0]}")
        return NO_PRECISION if found is None else PrintedPrecision(old=found["mean_old"])
    found = rows.get(_DETECTORS.get(learner, ""))
    return (
        NO_PRECISION if found is None else PrintedPrecision(found["mean_old"], found["mean_new"], found["mAP_printed"])
    )


def printed_precision_gain(protocol: str) -> float | None:
    """Return the printed gain of ELI over iOD in mean average precision of all classes."""
    gain: float | None = numbers()["table2_printed_gains"].get(protocol)
    return gain


def _pair(base: float | None, aligned: float | None) -> Printed:
    return NOTHING if base is None or aligned is None else Printed(base, aligned, round(aligned - base, 2))


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


def differences(pairs: Iterable[tuple[Any, Any]], *, varied: Collection[str] = ()) -> list[str]:
    """Say each setting that differs, those of `_LABELS` first, as sentences without an end.

    Args:
        pairs: A run's configuration, and the published one that it is compared with.
        varied: Settings to leave out, because they are what an experiment compares.
    """
    found: dict[str, dict[str, dict[str, None]]] = {}
    for pair in pairs:
        ours, theirs = map(_values, pair)
        both_step = ours.get("train.schedule") == theirs.get("train.schedule") == "steps"
        for key in dict.fromkeys((*ours, *theirs)):
            one, other = ours.get(key, "none"), theirs.get(key, "none")
            if one != other and key not in varied and (both_step or key not in _STEPS):
                found.setdefault(key, {}).setdefault(one, {})[other] = None
    said = {}
    for key in (*(key for key in _LABELS if key in found), *found):
        texts = (f"{one} instead of {' or '.join(others)}" for one, others in found[key].items())
        said[key] = f"{_LABELS.get(key, key)}: {', '.join(texts)}"
    return list(said.values())


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
        budget, per_class = settings.pop("memory.budget"), settings.pop("memory.per_class")
        in_all = f"{budget} in all" if budget else "none"
        settings["memory"] = f"{per_class} of each class" if per_class else in_all
    return {"epochs": epochs} | {key: _text(key, value) for key, value in settings.items()}


def _text(key: str, value: Any) -> str:
    if value is None:
        own = "the detector's own" if key.startswith("model.") and key != "model.weights" else "none"
        return _NONE.get(key, own)
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
