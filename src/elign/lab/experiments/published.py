"""What the published runs are, and in what a run differs from them, in words.

The published settings are those of `preset=paper` with what the authors' commands change. A difference is found by
comparing configurations, so that none is left out because nobody thought of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from elign.lab.experiments.differences import say_differences
from elign.lab.experiments.run_config import RunConfig, compose, describe

_WORDS: Mapping[str, str] = {
    "data": "data",
    "model": "backbone",
    "epochs": "epochs, first task / others",
    "memory": "exemplars",
    "data.limit": "training images of a class",
    "data.validation": "validation images of a class instead of the test images",
    "data.image_size": "side of images",
    "data.order": "seed of the class order",
}
_SKIPPED = ("accelerator", "devices", "threads", "checkpoint_minutes", "eval_batch_size", "precision", "layout")


def published_config(learner: str, data: str, protocol: str) -> RunConfig:
    """The configuration of a published run.

    Args:
        learner: As typed; `aanet-implicit` is a setting of `aanet`.
        data: Its data set.
        protocol: How classes come in tasks.
    """
    settings = [f"learner={learner}", f"data={data}", f"protocol={protocol}", "preset=paper"]
    settings += published_settings(data, protocol, "paper", ())
    return compose([*settings, *published_aligner(learner, data, protocol)])


def published_settings(data: str, protocol: str, preset: str, given: Sequence[str]) -> tuple[str, ...]:
    """What the authors' code does differently for equal tasks, at the published scale; what the user says wins."""
    if preset != "paper" or not protocol.startswith("equal-"):
        return ()
    keys = {text.partition("=")[0] for text in given}
    # Their flag for equal tasks leaves classes in their natural order, and makes the net for CIFAR one of 14 layers.
    own = {"data.order": "null"} | ({"model": "resnet14"} if data == "cifar100" else {})
    return tuple(f"{key}={value}" for key, value in own.items() if key not in keys)


def published_aligner(learner: str, data: str, protocol: str) -> tuple[str, ...]:
    """The one exception among the published settings of the aligner, a linear energy."""
    exception = learner.startswith("aanet") and data == "imagenet100" and protocol in ("half-10", "half-25")
    return ("aligner.hidden=[]",) if exception else ()


def differences(pairs: Iterable[tuple[RunConfig, RunConfig]], *, varied: Collection[str] = ()) -> list[str]:
    """Every difference of scale.

    Args:
        pairs: A run's configuration, and the published one that it stands beside.
        varied: Settings of the aligner that are left out, because they are what is compared.

    Returns:
        Sentences without an end, the most telling first.
    """
    return say_differences((_compared(own, published, varied) for own, published in pairs), _WORDS)


def _compared(own: RunConfig, published: RunConfig, varied: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    ours, theirs = _facts(own, varied), _facts(published, varied)
    if ours["train.schedule"] != theirs["train.schedule"]:
        # Milestones are of the other schedule: that it is another one says it all.
        ours = {key: value for key, value in ours.items() if key in theirs}
        theirs = {key: value for key, value in theirs.items() if key in ours}
    return ours, theirs


def _facts(config: RunConfig, varied: Collection[str]) -> dict[str, str]:
    plain = describe(config)
    train, memory, data = plain["train"], plain["memory"], plain["data"]
    facts = {
        "data": data["name"],
        "model": plain["model"]["name"],
        "epochs": f"{train.pop('first_epochs')}/{train.pop('epochs')}",
        "memory": _exemplars(memory),
        **{f"data.{name}": _text(data[name], name) for name in ("limit", "validation", "image_size", "order")},
    }
    for group in ("train", "learner", "aligner"):
        values: dict[str, Any] = plain[group]
        values = values | values.pop("options", {})
        for name, value in values.items():
            key = f"{group}.{name}"
            if name not in (*_SKIPPED, "name") and key not in varied:
                facts[key] = str(value)
    if facts["train.schedule"] != "steps":
        # They have a meaning for steps only.
        del facts["train.milestones"], facts["train.gamma"]
    return facts


def _exemplars(memory: Mapping[str, Any]) -> str:
    if memory["per_class"]:
        return f"{memory['per_class']} of each class"
    return f"{memory['budget']} in all" if memory["budget"] else "none"


def _text(value: Any, name: str) -> str:
    usual = {"limit": "all", "validation": "none", "image_size": "the usual one", "order": "none (natural order)"}
    return usual[name] if value is None else str(value)
