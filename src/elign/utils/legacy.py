"""Files of version 0.1, when the package was called `eli`: the same tensors under other names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]


def modernise(metadata: Mapping[str, str], tensors: Tensors) -> tuple[dict[str, str], Tensors]:
    """Translate the class, the options and the tensors of a file of version 0.1 into today's."""
    described = {"class": metadata["class"], "config": json.loads(metadata["config"])}
    part, moved = _part(described, tensors, "")
    return {**metadata, "class": part["class"], "config": json.dumps(part["config"])}, moved


def _part(described: Mapping[str, Any], tensors: Tensors, prefix: str) -> tuple[Config, Tensors]:
    """Translate one object and everything inside of it; `prefix` is where its tensors are."""
    name, config = described["class"], dict(described["config"])
    own = {key: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    translate = _TRANSLATIONS.get(name)
    if translate is None:
        return {"class": name, "config": config}, own
    new_name, config, own = translate(config, own, prefix)
    return {"class": new_name, "config": config}, own


def _by_prediction(config: Config, own: Tensors, prefix: str) -> tuple[str, Config, Tensors]:
    return "ByPrediction", {"old_classes": config["known"], "soft": config["soft"]}, own


def _discriminant(config: Config, own: Tensors, prefix: str) -> tuple[str, Config, Tensors]:
    tensors = {key.removeprefix(prefix): tensor for key, tensor in own.items()}
    precision, means = tensors.pop("precision"), tensors["means"]
    # Any W with W W' = precision whitens.
    tensors["whitening"] = torch.linalg.cholesky(precision.double()).to(precision.dtype)[None]
    tensors |= {"center": torch.zeros_like(means[0]), "biases": -tensors["biases"], "fitted_rows": tensors["counts"]}
    tensors["own_shares"] = torch.zeros_like(tensors["biases"])
    tensors["chosen_shrinkage"] = torch.tensor(config["shrinkage"], dtype=means.dtype)
    options = {"shared": 1.0, "shrinkage": config["shrinkage"], "normalize": True}
    return "Gaussian", options, _renamed(tensors, "", prefix)


def _nearest_mean(config: Config, own: Tensors, prefix: str) -> tuple[str, Config, Tensors]:
    return "NearestMean", {**config, "normalize": True}, {**own, f"{prefix}fitted_rows": own[f"{prefix}counts"]}


def _prototypes(config: Config, own: Tensors, prefix: str) -> tuple[str, Config, Tensors]:
    # Prototypes were never scored as if a latent had been left out.
    none = torch.zeros_like(own[f"{prefix}counts"])
    return "NearestMean", {**config, "normalize": False}, {**own, f"{prefix}fitted_rows": none}


def _ridge(config: Config, own: Tensors, prefix: str) -> tuple[str, Config, Tensors]:
    penalty = torch.tensor(config["penalty"], dtype=own[f"{prefix}matrix"].dtype)
    return "Ridge", config, {**own, f"{prefix}chosen_penalty": penalty}


def _aligned(config: Config, own: Tensors, prefix: str) -> tuple[str, Config, Tensors]:
    aligner, aligner_tensors = _part(config["aligner"], own, f"{prefix}aligner.")
    classifier, found = _part(config["readout"], own, f"{prefix}readout.")
    inside = _renamed(found, f"{prefix}readout.", f"{prefix}classifier.")
    rest = {key: tensor for key, tensor in own.items() if "." not in key.removeprefix(prefix)}
    return "Aligned", {"aligner": aligner, "classifier": classifier}, {**rest, **aligner_tensors, **inside}


def _voting(config: Config, own: Tensors, prefix: str) -> tuple[str, Config, Tensors]:
    estimators = []
    moved = {key: tensor for key, tensor in own.items() if "." not in key.removeprefix(prefix)}
    for number, described in enumerate(config["parts"]):
        old = f"{prefix}parts.{number}."
        part, found = _part(described, own, old)
        estimators.append(part)
        moved |= _renamed(found, old, f"{prefix}estimators.{number}.")
    options = {"estimators": estimators, "task_boundaries": config["known"], "steps": config["steps"]}
    return "Voting", {**options, "standard_errors": config["caution"]}, moved


def _renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {new + key.removeprefix(old): tensor for key, tensor in tensors.items()}


def _same(name: str) -> Callable[[Config, Tensors, str], tuple[str, Config, Tensors]]:
    """Make a translation that changes the name of the class alone."""
    return lambda config, own, prefix: (name, config, own)


_TRANSLATIONS: dict[str, Callable[[Config, Tensors, str], tuple[str, Config, Tensors]]] = {
    "ByPrediction": _by_prediction,
    "Dose": _same("FixedStrength"),
    "HeadScores": _same("HeadLogits"),
    "Prototypes": _prototypes,
    "NearestMean": _nearest_mean,
    "Ridge": _ridge,
    "Discriminant": _discriminant,
    "Aligned": _aligned,
    "Blend": _voting,
}
