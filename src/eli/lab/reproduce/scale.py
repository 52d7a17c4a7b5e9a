"""In what the planned runs differ from the published ones, in words. Imported by the plans.

The published settings are those of `preset=paper`: a difference is found by comparing configurations, so that none is
left out because nobody thought of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from eli.lab.experiments.run_config import RunConfig, compose, describe
from eli.lab.reproduce.base_runs import BaseRun, Evaluation, published_aligner, published_settings

_WORDS: Mapping[str, str] = {
    "data": "data",
    "model": "backbone",
    "epochs": "epochs, first task / others",
    "memory": "exemplars",
    "data.limit": "training images of a class",
    "data.image_size": "side of images",
    "data.order": "seed of the class order",
}
_SKIPPED = ("accelerator", "devices", "threads", "checkpoint_minutes", "eval_batch_size", "precision", "layout")


def differences(pairs: Iterable[tuple[Evaluation, str]], *, seeds: int, varied: Collection[str] = ()) -> list[str]:
    """Every difference of scale from the paper.

    Args:
        pairs: What is read, each with the data set of the printed number that it stands beside.
        seeds: How many seeds.
        varied: Settings of the aligner that the experiment varies itself.

    Returns:
        Sentences without an end, the most telling first.
    """
    found: dict[str, dict[tuple[str, str], None]] = {}
    for reading, data in dict.fromkeys(pairs):
        config = replace(reading.run.config, aligner=reading.aligner)
        ours, theirs = _facts(config, varied), _facts(_published(reading.run, data), varied)
        if ours["train.schedule"] != theirs["train.schedule"]:
            # Milestones are of the other schedule: that it is another one says it all.
            ours = {key: value for key, value in ours.items() if key in theirs}
            theirs = {key: value for key, value in theirs.items() if key in ours}
        for key in dict.fromkeys((*ours, *theirs)):
            one, other = ours.get(key, "none"), theirs.get(key, "none")
            if one != other:
                found.setdefault(key, {})[one, other] = None
    sentences = [_sentence(key, values) for key, values in found.items()]
    if seeds != 3:
        sentences.append(f"{seeds} seed{'s' if seeds > 1 else ''} instead of 3 runs")
    return sentences


def scale_note(preset: str, found: Collection[str]) -> str:
    """The differences as the first note of a table."""
    if not found:
        return f"preset={preset}: the published settings, as far as they are known"
    return f"preset={preset}, not the paper's scale: {'; '.join(found)}"


def _sentence(key: str, values: Iterable[tuple[str, str]]) -> str:
    pairs = list(values)
    theirs: Callable[[str], list[str]] = lambda own: [other for one, other in pairs if one == own]  # noqa: E731
    parts = [f"{own} instead of {' or '.join(theirs(own))}" for own in dict.fromkeys(one for one, _ in pairs)]
    return f"{_WORDS.get(key, key)}: {', '.join(parts)}"


def _published(run: BaseRun, data: str) -> RunConfig:
    settings = [f"learner={run.learner}", f"data={data}", f"protocol={run.protocol}", "preset=paper"]
    settings += published_settings(data, run.protocol, "paper", ())
    return compose([*settings, *published_aligner(run.learner, data, run.protocol)])


def _facts(config: RunConfig, varied: Collection[str]) -> dict[str, str]:
    plain = describe(config)
    train, memory, data = plain["train"], plain["memory"], plain["data"]
    facts = {
        "data": data["name"],
        "model": plain["model"]["name"],
        "epochs": f"{train.pop('first_epochs')}/{train.pop('epochs')}",
        "memory": _exemplars(memory),
        **{f"data.{name}": _text(data[name], name) for name in ("limit", "image_size", "order")},
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
    usual = {"limit": "all", "image_size": "the usual one", "order": "none (natural order)"}
    return usual[name] if value is None else str(value)
