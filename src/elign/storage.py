"""Saving and loading of aligners, gates and readouts: one safetensors file each, never a pickle.

The file's metadata names the format, its version, the class, the class's options and a digest of all of it; its tensors
are the module's `state_dict`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elign.errors import ElignError, FileFormatError, NotFittedError, OptionError
from elign.files import write_bytes_atomic

FORMAT = "elign"
_FORMATS = (FORMAT, "eli")  # the package was called `eli` up to version 0.1.0
VERSION = 1


class Storable(nn.Module):
    """A module that learns something of a size known only from data, and that can be saved and loaded.

    Subclasses give `config()` (their constructor's options) and `_build(dim)` (make parameters and buffers for latents
    of dimension `dim`); they call `_build` when they are fitted.
    """

    how_to_fit: ClassVar[str] = "fit(...)"
    learns: ClassVar[bool] = True
    """False for classes that are ready to use as they are made."""
    rows_of: ClassVar[str] = ""
    """The tensor whose number of rows (`rows`, when `_build` is called) nothing but the tensor itself tells."""
    _classes: ClassVar[dict[str, type[Storable]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # torch stands its own subclasses in for modules while it records a graph: they are in no file.
        if cls.__module__.startswith("torch."):
            return
        there = Storable._classes.get(cls.__name__)
        # A class may be defined again (a notebook's cell is), but must not take the name that elign's own files use.
        if there is not None and there.__module__.startswith("elign.") and cls.__module__ != there.__module__:
            raise TypeError(f"elign has a {cls.__name__} already, and files name classes: choose another name")
        Storable._classes[cls.__name__] = cls

    def __init__(self) -> None:
        super().__init__()
        self.dim: int | None = None
        self.rows = 0
        # The dimension travels in the state_dict, so that a fitted state can be loaded into a fresh object.
        # Outside of inference mode, whose tensors nothing could be loaded into later.
        with torch.inference_mode(False):
            self.register_buffer("latent_dim", torch.tensor(0))

    def config(self) -> dict[str, Any]:
        """The options this object was made with, as plain values: `type(self)(**config)` makes an equal one."""
        return {}

    def _build(self, dim: int) -> None:
        self.dim = dim
        self.latent_dim = torch.tensor(dim)

    def _forget(self) -> None:
        """Back to not fitted."""
        self.dim = None
        self.latent_dim = torch.zeros_like(self.latent_dim)

    @property
    def fitted(self) -> bool:
        """Has this object learned anything yet?"""
        return self.dim is not None or not self.learns

    def require_fitted(self) -> int:
        """The latent dimension; an error if there is none yet."""
        if not self.fitted:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet: call {self.how_to_fit} first, or load one"
            )
        return self.dim or 0

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        held = state_dict.get(f"{prefix}{self.rows_of}") if self.rows_of else None
        if held is not None and held.ndim and len(held) != self.rows:
            self.rows = len(held)
            self._forget()
        stored = state_dict.get(f"{prefix}latent_dim")
        if stored is not None and int(stored) > 0 and int(stored) != self.dim:
            device = self.latent_dim.device
            with torch.inference_mode(False):
                self._build(int(stored))
                self.to(device, _precision(state_dict, prefix))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write this fitted object to one safetensors file (under a temporary name first, then renamed)."""
        self.require_fitted()
        # Copies: a part may be used twice, and a file takes no tensors that share their memory.
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.state_dict().items()}
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "class": type(self).__name__,
            "config": json.dumps(self.config(), default=_plain),
        }
        metadata["digest"] = digest(metadata, tensors)
        return write_bytes_atomic(path, safetensors.torch.save(tensors, metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Self:
        """Read an object that `save` wrote. `Aligner.load` takes any aligner, `EnergyAligner.load` only that one.

        Raises:
            FileFormatError: If the file is damaged, foreign, newer than this package, or holds another class.
            FileNotFoundError: If there is no such file.
        """
        metadata, tensors = _read(Path(path))
        with torch.inference_mode(False), _NoMoreThan(sum(tensor.numel() for tensor in tensors.values())):
            made = cls._make(Path(path), metadata)
            try:
                made.load_state_dict(tensors)
            except (ElignError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
                why = " ".join(str(error).split())  # torch uses a line for each tensor
                raise FileFormatError(f"{path}: its tensors do not fit a {type(made).__name__}: {why}") from error
            if not made.fitted:
                raise FileFormatError(f"{path}: the {type(made).__name__} in it is not fitted")
            return made.to(device).eval()

    @classmethod
    def _make(cls, path: Path, metadata: Mapping[str, str]) -> Self:
        name = metadata.get("class", "?")
        found = Storable._classes.get(name)
        if found is None:
            raise FileFormatError(
                f"{path} holds a {name!r}, which is not known here: import the module that defines it"
            )
        if not issubclass(found, cls):
            raise FileFormatError(f"{path} holds a {name}, not a {cls.__name__}: use {name}.load")
        try:
            return found(**json.loads(metadata["config"]))
        except (ElignError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise FileFormatError(f"{path}: cannot make a {name} from its stored options: {error}") from error


def _plain(option: Any) -> Any:
    """An option that is a number of numpy's or torch's, as one that can be written down."""
    if getattr(option, "ndim", None) == 0:
        return option.item()
    raise TypeError(f"a {type(option).__name__} cannot be saved as an option")


_Part = TypeVar("_Part", bound=Storable)


def described(part: Storable) -> dict[str, Any]:
    """What a part of another object is, as plain values: for that object's `config()`."""
    return {"class": type(part).__name__, "config": part.config()}


def remade(part: _Part | Mapping[str, Any], kind: type[_Part]) -> _Part:
    """A part as it is, or made again from what `described` says of it; its tensors come with the state of the whole.

    Raises:
        OptionError: If it is no such part.
    """
    if isinstance(part, Mapping):
        found = Storable._classes.get(str(part.get("class")))
        options = part.get("config")
        if found is not None and issubclass(found, kind) and isinstance(options, Mapping):
            try:
                return found(**options)
            except TypeError as error:
                raise OptionError(f"a {found.__name__} has no such options: {error}") from error
    elif isinstance(part, kind):
        return part
    raise OptionError(f"expected a {kind.__name__}, got {type(part).__name__} {str(part)[:80]!r}")


class _NoMoreThan(TorchFunctionMode):
    """Refuses to make many more numbers than a file holds: a few bytes of options must not ask for gigabytes."""

    _makers = (torch.empty, torch.empty_like, torch.zeros, torch.ones, torch.full, torch.eye, torch.rand, torch.randn)

    def __init__(self, held: int) -> None:
        super().__init__()
        # Whoever makes a module may need something beside its parameters.
        self._left = 4 * held + (1 << 20)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func in self._makers and str(options.get("device")) != "meta":
            # On this device a tensor is its shape alone.
            planned = func(*args, **{key: value for key, value in options.items() if key != "generator"} | _SHAPE_ONLY)
            self._left -= planned.numel()
            if self._left < 0:
                raise ValueError(f"that would take {tuple(planned.shape)} numbers, and the file has fewer")
        return func(*args, **options)


_SHAPE_ONLY = {"device": "meta"}


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of any safetensors file; the digest is left to the caller.

    Raises:
        FileFormatError: The file is damaged, or no safetensors file.
        FileNotFoundError: There is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        # Another process may have removed it by now: a state within a task, once the task is learned.
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file") from error
        raise FileFormatError(f"{path} is damaged or is not a safetensors file: {error}") from error


def _read(path: Path) -> tuple[Mapping[str, str], dict[str, Tensor]]:
    metadata, tensors = read_safetensors(path)
    if metadata.get("format") not in _FORMATS:
        raise FileFormatError(f"{path} is a safetensors file, but was not written by eligngn's save()")
    version = metadata.get("version", "")
    if not re.fullmatch("[0-9]{1,9}", version) or int(version) > VERSION:
        raise FileFormatError(f"{path} has format version {version!r}; this elign reads up to {VERSION}: upgrade elign")
    if metadata.get("digest") != digest(metadata, tensors):
        raise FileFormatError(f"{path} is damaged: its content does not match its digest; save it anew")
    return metadata, tensors


def digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a file's metadata (without the digest itself) and tensors: a flipped bit must not pass as a weight."""
    seen = hashlib.sha256(json.dumps({k: v for k, v in metadata.items() if k != "digest"}, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        seen.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def _precision(state_dict: Mapping[str, Any], prefix: str) -> torch.dtype | None:
    """The floating-point type that a stored state has: float64 weights must not come back as float32."""
    found = {t.dtype for key, t in state_dict.items() if key.startswith(prefix) and t.is_floating_point()}
    return found.pop() if len(found) == 1 else None
