"""What a run is, in words, from the facts in its `run.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def protocol_words(config: Mapping[str, Any]) -> str:
    """The protocol's name, or the sizes of its tasks: "half-5", "4+2"."""
    protocol = config["protocol"]
    return protocol["name"] or f"{protocol['first']}+{protocol['increment']}"


def memory_words(config: Mapping[str, Any]) -> str:
    """How many exemplars are kept."""
    memory = config["memory"]
    if memory["per_class"]:
        return f"{memory['per_class']} exemplars per class"
    return f"{memory['budget']} exemplars" if memory.get("budget") else "no exemplars"


def learner_words(config: Mapping[str, Any]) -> str:
    """The learner, with those of its options that are not the published ones."""
    # Imported here, so that a list of runs does not wait for it where there are none.
    from elign.lab.learners import LEARNERS

    learner = config["learner"]
    if learner["name"] not in LEARNERS:  # of a detector: to ask for its options, torchvision would be needed
        return str(learner["name"])
    defaults = LEARNERS[learner["name"]].defaults
    own = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in learner["options"].items()
        if value != defaults.get(key)
    ]
    return f"{learner['name']} ({', '.join(own)})" if own else str(learner["name"])


def run_words(facts: Mapping[str, Any]) -> str:
    """The whole run, but for its seed."""
    config = facts["config"]
    train = config["train"]
    held_out = ["validation images"] if config["data"].get("validation") else []
    parts = [
        f"{learner_words(config)} on {config['data']['name']}, {protocol_words(config)}",
        *held_out,
        f"{config['model']['name']}, {train['first_epochs']}/{train['epochs']} epochs",
        memory_words(config),
        *facts.get("evaluation", []),
    ]
    return ", ".join(parts)
