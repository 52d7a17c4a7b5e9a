"""Weights of a pretrained classification network for a detector's backbone and box head.

A file is read as numbers only, never as a pickle that could run code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torchvision.models import get_model_weights

from elign.lab.detection.models.errors import WeightsError

TORCHVISION = "torchvision"
"""What to give instead of a file for torchvision's own download."""


def load_weights(net: nn.Module, name: str, weights: Path | str) -> None:
    """Give a torchvision ResNet pretrained weights; those of its classifier (`fc`) are not needed.

    Args:
        net: The network.
        name: Its name in torchvision, "resnet50" say.
        weights: A file with its state dict (safetensors, or what `torch.save` writes; also under the key "state_dict"
            or "model"), or "torchvision".

    Raises:
        WeightsError: There is no such file, or it does not hold the weights of this network.
    """
    state = _downloaded(name) if weights == TORCHVISION else _read(Path(weights))
    state = {key.removeprefix("module."): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if not key.startswith("fc.")}
    try:
        missing, unexpected = net.load_state_dict(state, strict=False)
    except RuntimeError as error:
        # Torch lists every tensor of a wrong shape; the first one says enough.
        first = str(error).splitlines()[1:2] or [str(error)]
        raise WeightsError(f"{weights} does not hold the weights of a {name}: {first[0].strip()}") from error
    missing = [key for key in missing if not key.startswith("fc.")]
    if missing or unexpected:
        raise WeightsError(
            f"{weights} does not hold the weights of torchvision's {name}: it lacks {len(missing)} tensors "
            f"{missing[:2]} and has {len(unexpected)} of other names {unexpected[:2]}. Give a state dict of "
            f"torchvision.models.{name}, or weights={TORCHVISION!r} to download one."
        )


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"There is no file of weights {path}. Name one, or {TORCHVISION!r} to download them.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes can make the reader fail in any way at all
        raise WeightsError(
            f"{path} cannot be read as weights ({type(error).__name__}). It must be a safetensors file or a state dict "
            "written by torch.save, with nothing but tensors in it."
        ) from error
    return _tensors(content, path)


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise WeightsError(f"{path} holds no state dict, that is, names with a tensor each.")
    return content


def _downloaded(name: str) -> dict[str, Tensor]:
    # The first published weights: closest to those that the literature on incremental detection began with.
    wanted = get_model_weights(name)["IMAGENET1K_V1"]
    try:
        state: dict[str, Tensor] = wanted.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise WeightsError(
            f"The weights of {name} could not be downloaded from {wanted.url} ({error}). Fetch that file by other "
            "means and give its path as weights."
        ) from error
    return state
