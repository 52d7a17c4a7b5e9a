"""Models by name or file, their weights, their head, and how their pictures are prepared."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from elign.lab.data.base import IMAGENET_MEAN, IMAGENET_STD, Normalise
from elign.lab.data.pictures import centre_crop, cut_strip
from elign.lab.environment import MissingExtraError, import_torchvision
from elign.utils.errors import AttachError, ElignError, FileFormatError, LatentError, OptionError
from elign.utils.extraction import Latents, evaluating, find_module, logits_of
from elign.utils.fitted import read_safetensors

LIBRARIES = ("torchvision", "timm", "transformers")
SPECS = "torchvision:NAME, timm:NAME, transformers:FOLDER or path/to/file.py:function"
_WRAPPINGS = ("state_dict", "model_state_dict", "model", "net", "module")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
_SIZE, _RESIZE = 224, 256 / 224


class ModelSpecError(ElignError, ValueError):
    """A model that cannot be built, or whose head cannot be found."""


class WeightsError(ElignError, ValueError):
    """A file of weights that cannot be read, or does not fit the model."""


Transform = Callable[[Image.Image], Tensor]


@dataclass(frozen=True)
class PlainTransform:
    """Scales the short side, cuts out the central square, and normalises with these means and deviations."""

    size: int = _SIZE
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the input (3, size, size)."""
        return Normalise(self.mean, self.std)(centre_crop(image, self.size)[None])[0]


@dataclass(frozen=True)
class LibraryTransform:
    """A transform of torchvision or timm, on a picture that is no line."""

    apply: Callable[[Image.Image], Tensor]

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the input."""
        return self.apply(cut_strip(image))


@dataclass(frozen=True)
class ProcessorTransform:
    """The image processor of a transformers model."""

    processor: Any

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the input."""
        pixels: Tensor = self.processor(images=cut_strip(image), return_tensors="pt")["pixel_values"][0]
        return pixels


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model with its weights, ready for latents.

    Args:
        latents: The model, read at its head.
        outputs: Number of outputs of the head.
        dim: Dimension of the latents.
        key: SHA-256 of the weights, the source of the model and the name of its head.
        weights: SHA-256 of the file of weights.
        transform: How a picture becomes an input.
        prepared: The transform in words.
    """

    latents: Latents
    outputs: int
    dim: int
    key: str
    weights: str
    transform: Transform
    prepared: str

    @property
    def head(self) -> str:
        """The head's name."""
        return str(self.latents.head_name)

    @property
    def origin(self) -> dict[str, str]:
        """What statistics under this model depend on, for their file."""
        return {"weights": self.weights, "pictures": self.prepared}

    @property
    def linear(self) -> nn.Linear | None:
        """The head, if it is a linear layer."""
        return self.latents.head if isinstance(self.latents.head, nn.Linear) else None


def load_checkpoint(spec: str, weights: Path, *, head: str | None = None, input_size: int | None = None) -> Checkpoint:
    """Build a model with as many outputs as its weights have, and load them.

    Args:
        spec: See `SPECS`. A function of a Python file is run: it is the user's own code.
        weights: A safetensors file, or a checkpoint of torch that holds tensors only.
        head: Name of the head; found where it is the last linear layer.
        input_size: Side of the input, instead of that of the model's own configuration.

    Raises:
        ModelSpecError: If there is no such model, or no head.
        WeightsError: If the weights do not fit.
    """
    kind, name, build = _builder(spec)
    state, model = read_weights(weights), build(None)
    transform, prepared, size = _transform(kind, name, model, input_size)
    probe = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    if head:
        # Before the weights: those of another head do not fit, which would hide the mistake.
        _part(model, head)
        _check_head(Latents(model, head), probe)
    found = head or _last_linear(model, probe)
    state = _unprefixed(state, model)
    model = _resized(model, build, found, state, weights)
    _load(model, state, weights)
    source = Path(name.rpartition(":")[0]).read_bytes() if kind == "file" else b""
    with weights.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    latents = Latents(model.eval(), found)
    z, outputs = _check_head(latents, probe)
    # What the file of a function imports, the configuration of a library's model and its version decide latents, too.
    seen = (1000 * z / z.abs().max().clamp(min=1e-30)).round().int().tolist()
    key = hashlib.sha256(source + f"\n{spec}\n{found}\n{digest}\n{seen}".encode()).hexdigest()
    return Checkpoint(latents, outputs, z.shape[1], key, digest, transform, prepared)


def _builder(spec: str) -> tuple[str, str, Callable[[int | None], nn.Module]]:
    """Return the kind of a model, its name, and what builds it with a number of outputs (None: its own)."""
    kind, _, name = spec.partition(":")
    if kind in LIBRARIES and name:
        return kind, name, lambda outputs: _from_library(kind, name)
    path, _, function = spec.rpartition(":")
    if not path.endswith(".py") or not function.isidentifier():
        raise ModelSpecError(f"--model {spec!r} names no model: give {SPECS}")
    make = _function(Path(path), function)
    takes = "num_classes" in inspect.signature(make).parameters
    needs = takes and inspect.signature(make).parameters["num_classes"].default is inspect.Parameter.empty

    def build(outputs: int | None) -> nn.Module:
        given = {"num_classes": outputs or 2} if takes and (outputs or needs) else {}
        try:
            model = make(**given)
        except Exception as error:
            raise ModelSpecError(f"{spec} raised {type(error).__name__}: {error}") from error
        if not isinstance(model, nn.Module):
            raise ModelSpecError(f"{spec} returned a {type(model).__name__}: it must return the model")
        return model

    return "file", spec, build


def _function(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise ModelSpecError(f"{path}: no such file; --model takes {SPECS}")
    spec = importlib.util.spec_from_file_location(f"elign_model_{path.stem}", path)
    assert spec is not None  # noqa: S101  (its name ends in .py)
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    # The file may import its neighbours, as it does when it is run; its function may do so later.
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelSpecError(f"{path} raised {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ModelSpecError(f"{path} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def _import(name: str) -> Any:
    """Import a library of models; torchvision first, which the others import, since its operators may not load."""
    try:
        torchvision = import_torchvision()
        return torchvision if name == "torchvision" else importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise MissingExtraError(f"a model of {name} needs {missing}: pip install {missing}") from error


def _from_library(kind: str, name: str) -> nn.Module:
    library = _import(kind)
    try:
        if kind == "torchvision":
            model = library.models.get_model(name, weights=None)
        elif kind == "timm":
            model = library.create_model(name, pretrained=False)
        else:
            config = library.AutoConfig.from_pretrained(name)
            model = library.AutoModelForImageClassification.from_config(config)
    except Exception as error:
        names = (
            library.list_models() if kind == "timm" else library.models.list_models() if kind != "transformers" else ()
        )
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ModelSpecError(f"{kind} cannot build {name!r} ({' '.join(str(error).split())[:200]}){hint}") from error
    assert isinstance(model, nn.Module)  # noqa: S101  (that is what these functions return)
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict: safetensors, or a checkpoint of torch without any object but tensors."""
    if not path.is_file():
        raise WeightsError(f"{path}: no such file of weights")
    if path.suffix == ".safetensors":
        try:
            return read_safetensors(path)[1]
        except FileFormatError as error:
            raise WeightsError(str(error)) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of damaged files; the error below says it better
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what reads damaged bytes may raise nearly anything
        raise WeightsError(
            f"{path} is no checkpoint of tensors alone, and others are never unpickled: save it with "
            "torch.save(model.state_dict(), FILE) or as safetensors"
        ) from error
    for name in (None, *_WRAPPINGS):
        held = found if name is None else found.get(name) if isinstance(found, Mapping) else None
        if isinstance(held, Mapping) and held and all(isinstance(value, Tensor) for value in held.values()):
            return {str(key): value for key, value in held.items()}
    raise WeightsError(f"{path} holds no state dict: neither itself nor under {', '.join(_WRAPPINGS)}")


def _unprefixed(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Strip what wrappers put before the names."""
    known = set(model.state_dict())
    for _ in _PREFIXES:
        for prefix in _PREFIXES:
            if all(name.startswith(prefix) for name in state) and not known & set(state):
                state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _resized(
    model: nn.Module, build: Callable[[int | None], nn.Module], head: str, state: Mapping[str, Tensor], path: Path
) -> nn.Module:
    """Return the model with as many outputs as its weights have."""
    part, weight = _part(model, head), state.get(f"{head}.weight")
    if weight is None or not isinstance(part, nn.Linear) or weight.ndim != 2 or len(weight) == part.out_features:
        return model
    if weight.shape[1] != part.in_features:
        raise WeightsError(
            f"{path} has a head for latents of {weight.shape[1]} numbers, the model's latents have {part.in_features}: "
            "these are weights of another model"
        )
    model = build(len(weight))
    part = _part(model, head)
    if isinstance(part, nn.Linear) and part.out_features != len(weight):
        parent, _, name = head.rpartition(".")
        bias = f"{head}.bias" in state
        setattr(model.get_submodule(parent), name, nn.Linear(part.in_features, len(weight), bias=bias))
    return model


def _load(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    # Counters of batches: old files do not have them, and nothing in evaluation mode reads them.
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    problems = {
        "missing": missing,
        "not in the model": [name for name in state if name not in own],
        "of another shape": [name for name in state if name in own and state[name].shape != own[name].shape],
    }
    told = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in problems.items()
        if names
    ]
    if told:
        raise WeightsError(f"{path} does not fit the model: tensors {'; '.join(told)}")
    model.load_state_dict(dict(state), strict=False)


def _part(model: nn.Module, head: str) -> nn.Module:
    try:
        return find_module(model, head)
    except AttachError as error:
        raise ModelSpecError(f"--head: {error}") from error


def _run(model: nn.Module, probe: Tensor) -> Tensor:
    try:
        with evaluating(model), torch.no_grad():
            return logits_of(model(probe))
    except (RuntimeError, ValueError, TypeError, AssertionError, OptionError) as error:
        why = " ".join(str(error).split())[:200]
        raise ModelSpecError(
            f"the model cannot classify pictures of {tuple(probe.shape[1:])} ({why}); --input-size says another size"
        ) from error


def _last_linear(model: nn.Module, probe: Tensor) -> str:
    """Return the name of the linear layer that gives the model's outputs."""
    calls: list[tuple[str, Any]] = []
    hooks = [
        part.register_forward_hook(lambda _, args, output, name=name: calls.append((name, output)))
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        logits = _run(model, probe)
    finally:
        for hook in hooks:
            hook.remove()
    if not calls or calls[-1][1].shape != logits.shape or not torch.equal(calls[-1][1], logits):
        layers = ", ".join(dict.fromkeys(name for name, _ in calls[-3:])) or "none"
        raise ModelSpecError(
            f"the model does not end with a linear layer (it has: {layers}): name its head with --head"
        )
    return calls[-1][0]


def _check_head(latents: Latents, probe: Tensor) -> tuple[Tensor, int]:
    """Return the latents of inputs and the number of outputs; raise if this is not the head."""
    name = latents.head_name
    logits = _run(latents.model, probe)
    try:
        with evaluating(latents.model), torch.no_grad():
            z = latents(probe)
            given = logits_of(latents.logits(z))
    except (AttachError, LatentError, OptionError, RuntimeError, TypeError) as error:
        raise ModelSpecError(f"{name!r} is not the head of the model: {error}") from error
    if z.ndim != 2 or given.shape != logits.shape or not torch.allclose(given, logits, rtol=1e-3, atol=1e-4):
        raise ModelSpecError(
            f"{name!r} is not the head of the model: what it returns is not what the model returns; --head must "
            "name the layer that turns latents into logits"
        )
    return z, logits.shape[1]


def _transform(kind: str, name: str, model: nn.Module, size: int | None) -> tuple[Transform, str, int]:
    """Return how pictures are prepared, by the library's configuration or plainly; the same in words; the side."""
    if kind == "torchvision":
        preset = _torchvision_preset(name)
        if preset is not None:
            if size:
                preset.crop_size, preset.resize_size = [size], [round(size * _RESIZE)]
            return LibraryTransform(preset), f"torchvision: {' '.join(repr(preset).split())}", preset.crop_size[0]
    if kind == "timm":
        data = importlib.import_module("timm.data")
        config = data.resolve_data_config({"input_size": (3, size, size)} if size else {}, model=model)
        made = data.create_transform(**config, is_training=False)
        return (
            LibraryTransform(made),
            f"timm: {json.dumps(config, sort_keys=True, default=str)}",
            config["input_size"][-1],
        )
    if kind == "transformers":
        return _processor(name, model, size)
    plain = PlainTransform(size or _SIZE)
    return plain, repr(plain), plain.size


def _torchvision_preset(name: str) -> Any:
    try:
        return _import("torchvision").models.get_model_weights(name).DEFAULT.transforms()
    except (ValueError, AttributeError):
        return None


def _processor(name: str, model: nn.Module, size: int | None) -> tuple[Transform, str, int]:
    try:
        processor = _import("transformers").AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError, ImportError):
        plain = PlainTransform(size or int(getattr(model.config, "image_size", _SIZE)))
        return plain, repr(plain), plain.size
    mean, std = tuple(processor.image_mean or IMAGENET_MEAN), tuple(processor.image_std or IMAGENET_STD)
    if size:
        plain = PlainTransform(size, mean, std)
        return plain, repr(plain), size
    made = ProcessorTransform(processor)
    side = made(Image.new("RGB", (64, 64))).shape[-1]
    return made, f"transformers: {json.dumps(processor.to_dict(), sort_keys=True, default=str)}", side
