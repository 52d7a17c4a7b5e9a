"""Files of version 0.1, when the package was called `eli`: the same tensors under other names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]

_NAMES = {"Dose": "FixedStrength", "HeadScores": "HeadLogits", "Prototypes": "NearestMean"}


def modernise(metadata: Mapping[str, str], tensors: Tensors) -> tuple[dict[str, str], Tensors]:
    """Translate the class, the options and the tensors of a file of version 0.1 into today's."""
    name, config, tensors = _translate(metadata["class"], dict(json.loads(metadata["config"])), tensors)
    return {**metadata, "class": name, "config": json.dumps(config)}, tensors


def _translate(name: str, config: Config, tensors: Tensors) -> tuple[str, Config, Tensors]:
    """Translate one object and everything inside of it."""
    match name:
        case "ByPrediction":
            config = {"old_classes": config["known"], "soft": config["soft"]}
        case "Prototypes":
            config["normalize"] = False
            # Prototypes were never scored as if a latent had been left out.
            tensors["fitted_rows"] = torch.zeros_like(tensors["counts"])
        case "NearestMean":
            config["normalize"] = True
            tensors["fitted_rows"] = tensors["counts"]
        case "Ridge":
            tensors["chosen_penalty"] = torch.tensor(config["penalty"], dtype=tensors["matrix"].dtype)
        case "Discriminant":
            return "Gaussian", *_gaussian(config, tensors)
        case "Aligned":
            return "Aligned", *_aligned(config, tensors)
        case "Blend":
            return "Voting", *_voting(config, tensors)
    return _NAMES.get(name, name), config, tensors


def _gaussian(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    precision, means = tensors.pop("precision"), tensors["means"]
    # Any W with W W' = precision whitens.
    tensors["whitening"] = torch.linalg.cholesky(precision.double()).to(precision.dtype)[None]
    tensors |= {"center": torch.zeros_like(means[0]), "biases": -tensors["biases"], "fitted_rows": tensors["counts"]}
    tensors["own_shares"] = torch.zeros_like(tensors["biases"])
    tensors["chosen_shrinkage"] = torch.tensor(config["shrinkage"], dtype=means.dtype)
    return {"shared": 1.0, "shrinkage": config["shrinkage"], "normalize": True}, tensors


def _aligned(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    aligner, moved = _part(config["aligner"], tensors, "aligner.", "aligner.")
    classifier, more = _part(config["readout"], tensors, "readout.", "classifier.")
    return {"aligner": aligner, "classifier": classifier}, _own(tensors) | moved | more


def _voting(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    estimators, moved = [], _own(tensors)
    for number, described in enumerate(config["parts"]):
        part, more = _part(described, tensors, f"parts.{number}.", f"estimators.{number}.")
        estimators.append(part)
        moved |= more
    options = {"estimators": estimators, "task_boundaries": config["known"], "steps": config["steps"]}
    return {**options, "standard_errors": config["caution"]}, moved


def _own(tensors: Tensors) -> Tensors:
    return {key: tensor for key, tensor in tensors.items() if "." not in key}


def _part(described: Mapping[str, Any], tensors: Tensors, old: str, new: str) -> tuple[Config, Tensors]:
    """Translate a part whose tensors have names that begin with `old`; they get names that begin with `new`."""
    inside = {key.removeprefix(old): tensor for key, tensor in tensors.items() if key.startswith(old)}
    name, config, inside = _translate(described["class"], dict(described["config"]), inside)
    return {"class": name, "config": config}, {new + key: tensor for key, tensor in inside.items()}
