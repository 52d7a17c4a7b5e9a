"""A run in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elign.lab.registry import LEARNERS


def protocol_text(config: Mapping[str, Any]) -> str:
    """The protocol's name, or the sizes of its tasks: "half-5", "4+2"."""
    protocol = config["protocol"]
    return protocol["name"] or f"{protocol['first']}+{protocol['increment']}"


def memory_text(config: Mapping[str, Any]) -> str:
    """How many exemplars are kept."""
    memory = config["memory"]
    if memory["per_class"]:
        return f"{memory['per_class']} exemplars per class"
    return f"{memory['budget']} exemplars" if memory.get("budget") else "no exemplars"


def learner_text(config: Mapping[str, Any]) -> str:
    """The learner, with those of its options that are not the published ones."""
    learner = config["learner"]
    if learner["name"] not in LEARNERS:  # of a detector: to ask for its options, torchvision would be needed
        return str(learner["name"])
    defaults = LEARNERS[learner["name"]].settings()
    own = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in learner["options"].items()
        if value != defaults.get(key)
    ]
    return f"{learner['name']} ({', '.join(own)})" if own else str(learner["name"])


def run_text(metadata: Mapping[str, Any]) -> str:
    """The whole run, but for its seed."""
    config = metadata["config"]
    train = config["train"]
    held_out = ["validation images"] if config["data"].get("validation") else []
    parts = [
        f"{learner_text(config)} on {config['data']['name']}, {protocol_text(config)}",
        *held_out,
        f"{config['model']['name']}, {train['first_epochs']}/{train['epochs']} epochs",
        memory_text(config),
        *metadata.get("evaluation", []),
    ]
    return ", ".join(parts)
