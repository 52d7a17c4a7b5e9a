"""Fitted objects and their files: one safetensors file for each object, never a pickle.

The metadata of a file are the format, its version, the class, its options and a digest of all of it; its tensors are
the `state_dict`. A file is data from outside: sizes, types and values are checked before use.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elign.utils.errors import ElignError, FileFormatError, LatentError, NotFittedError, OptionError
from elign.utils.files import write_bytes_atomic
from elign.utils.legacy import modernise

FORMAT = "elign"
VERSION = 2
_RANGES = {"latent_dim": (0.0, float(1 << 20))}
_MOST_OPTIONS = 1 << 20  # characters; a Voting of a hundred estimators has a few thousand
# What classes raise, those of others too, when options or tensors of a file make no sense.
_NONSENSE = (ElignError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

Ranges = Mapping[str, tuple[float, float]]
"""The smallest and the largest number that a tensor may hold, by its name."""
Shapes = Mapping[str, str]
"""Shapes of tensors, by their names: `D` for the latent dimension, `R` for `rows`, "" for a single number."""
Progress = Callable[[int, int, float], None]
"""Called now and then during a fit, with (iterations done, iterations in all, current loss)."""


class ProgressLine:
    """A line on the terminal that says how far `what` is, once it has taken a second; nothing elsewhere."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._start = self._last = time.monotonic()
        self._shown = False

    def __call__(self, done: int, of: int | None, loss: float | None = None) -> None:
        """Show how much is done and, if it is known how much there is, the time left."""
        seconds = time.monotonic() - self._start
        self.show(f"{done} of {of}, {seconds / done * (of - done):.0f} s left" if of and done else f"{done}")

    def show(self, text: str) -> None:
        """Show what is going on."""
        now = time.monotonic()
        if now - self._start < 1 or now - self._last < 0.1 or sys.stderr is None or not sys.stderr.isatty():
            return
        self._last, self._shown = now, True
        print(f"\r{self.what}: {text}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


_Class = TypeVar("_Class", bound="type[FittedModule]")
_Part = TypeVar("_Part", bound="FittedModule")
_registry: dict[str, type[FittedModule]] = {}


def register(cls: _Class) -> _Class:
    """Make a class known to files: objects of it can be saved, and `load` finds it by its name.

    Example:
        >>> import elign
        >>> @elign.register
        ... class Still(elign.Aligner):
        ...     def _learn(self, z_prev, z_cur, progress):
        ...         pass
        ...     def _move(self, rows, generator):
        ...         return rows.clone()
        >>> elign.registered("Still") is Still
        True
    """
    there = _registry.get(cls.__name__)
    # A class may be defined again (a cell of a notebook is), but not under a name that the files of elign use.
    if there is not None and there.__module__.startswith("elign.") and cls.__module__ != there.__module__:
        raise TypeError(f"elign has a {cls.__name__} already, and files name classes: choose another name")
    _registry[cls.__name__] = cls
    return cls


def registered(name: str) -> type[FittedModule] | None:
    """Return the class that files call `name`, or None.

    Example:
        >>> import elign
        >>> elign.registered("Ridge") is elign.Ridge, elign.registered("Nothing")
        (True, None)
    """
    if name not in _registry:
        # Classes register when their modules are imported, which `import elign` puts off.
        vars(importlib.import_module("elign"))["_import_all"]()
    return _registry.get(name)


class FittedModule(nn.Module):
    """A module that learns something of a size known only from data, and that can be saved and loaded.

    Subclasses store each argument of `__init__` as an attribute of the same name. They name their tensors in `shapes`,
    or make parameters and buffers for latents of dimension `dim` in `_build(dim)`, which a fit calls.

    Example:
        >>> import torch, tempfile, elign
        >>> shift = elign.MeanShift().fit_latents(torch.zeros(4, 3), torch.ones(4, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loaded = elign.FittedModule.load(shift.save(f"{folder}/shift.safetensors"))
        >>> type(loaded).__name__, loaded.shift.tolist()
        ('MeanShift', [-1.0, -1.0, -1.0])
    """

    how_to_fit: ClassVar[str] = "fit(...)"
    learns: ClassVar[bool] = True
    """False for classes that are ready to use without a fit."""
    rows_of: ClassVar[str] = ""
    """The tensor whose number of rows (`rows`, when `_build` is called) nothing but the tensor itself tells."""
    shapes: ClassVar[Shapes] = {}
    """Of the tensors that `_build` makes."""
    infinite: ClassVar[tuple[str, ...]] = ()
    """Tensors that may hold infinite numbers."""
    ranges: ClassVar[Ranges] = {}
    """Of tensors, where a file must not hold any other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.dim: int | None = None
        self.rows = 0
        # The dimension travels in the state_dict, so that a fitted state can be loaded into a fresh object.
        # Outside of inference mode, whose tensors nothing could be loaded into later.
        with torch.inference_mode(False):
            self.register_buffer("latent_dim", torch.tensor(0, device="cpu"))

    def config(self) -> dict[str, Any]:
        """Return the options this object was made with as plain values: `type(self)(**config)` makes an equal one."""
        # torch shows its recorder a module that stands in two places as one of another class.
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: _plain(getattr(self, name)) for name in names}

    def extra_repr(self) -> str:
        """Show options and whether the object is fitted."""
        try:
            plain = {name: value for name, value in self.config().items() if not isinstance(value, dict | list)}
            options = [f"{name}={value!r}" for name, value in plain.items()]
        except OptionError:
            options = []
        if self.learns:
            options.append(f"dim={self.dim}" if self.fitted else "not fitted")
        return ", ".join(options)

    def traceable(self) -> nn.Module:
        """Return a form that torch can record for an export: no check of values, no branch on data."""
        return self

    def _build(self, dim: int) -> None:
        self.dim = dim
        self.latent_dim = torch.tensor(dim, device="cpu")
        for name, shape in self._shapes(dim).items():
            self.register_buffer(name, torch.zeros(shape))

    def _shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return the sizes of the floating-point tensors; a class whose sizes depend on options adds its own."""
        return {name: tuple(dim if axis == "D" else self.rows for axis in axes) for name, axes in self.shapes.items()}

    def _forget(self) -> None:
        """Go back to not fitted."""
        self.dim = None
        self.latent_dim = torch.zeros_like(self.latent_dim)

    def _set(self, dim: int, **tensors: Tensor) -> None:
        """Become fitted: build for `dim`, then take over these tensors."""
        with torch.inference_mode(False):
            self._build(dim)
            for name, tensor in tensors.items():
                # A copy: tensors that were made under inference mode could never be changed again. Contiguous, as
                # it comes from a file: products round alike then.
                setattr(self, name, tensor.detach().clone(memory_format=torch.contiguous_format))

    def _check_state(self) -> None:
        """Raise if tensors that came from a file make no sense together; their shapes, types and `ranges` do."""

    @property
    def fitted(self) -> bool:
        """Whether this object has learned anything yet."""
        return self.dim is not None or not self.learns

    def require_fitted(self) -> int:
        """Return the latent dimension; raise if there is none yet."""
        if not self.fitted:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet: call {self.how_to_fit} first, or load one"
            )
        return self.dim or 0

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        held = state_dict.get(f"{prefix}{self.rows_of}") if self.rows_of else None
        if held is not None and held.ndim and not held.numel():
            raise LatentError(f"{prefix}{self.rows_of} is empty: shape {tuple(held.shape)}")
        if held is not None and held.ndim and len(held) != self.rows:
            self.rows = len(held)
            self._forget()
        stored = state_dict.get(f"{prefix}latent_dim")
        if stored is not None and int(stored) > 0 and int(stored) != self.dim:
            device = self.latent_dim.device
            types = {t.dtype for key, t in state_dict.items() if key.startswith(prefix) and t.is_floating_point()}
            with torch.inference_mode(False):
                self._build(int(stored))
                # float64 weights must not come back as float32.
                self.to(device, types.pop() if len(types) == 1 else None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write this fitted object to one safetensors file (under a temporary name first, then renamed)."""
        self.require_fitted()
        name = type(self).__name__
        if registered(name) is not type(self):
            raise OptionError(f"files do not know the class {name}: decorate it with @elign.register")
        # Copies: a part may be used twice, and a file takes no tensors that share their memory.
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.state_dict().items()}
        metadata = {"format": FORMAT, "version": str(VERSION), "class": name, "config": json.dumps(self.config())}
        metadata["digest"] = digest(metadata, tensors)
        return write_bytes_atomic(path, safetensors.torch.save(tensors, metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Self:
        """Read an object that `save` wrote. `Aligner.load` takes any aligner, `EnergyAligner.load` only that one.

        Raises:
            FileFormatError: If the file is damaged, foreign, newer than this package, or holds another class.
            FileNotFoundError: If there is no such file.
        """
        path = Path(path)
        metadata, tensors = _read(path)
        with torch.inference_mode(False), _NoMoreThan(sum(tensor.numel() for tensor in tensors.values())):
            made = cls._make(path, metadata)
            try:
                _check_finite(tensors)
                made.load_state_dict(tensors)
                _check_loaded(made, tensors)
            except _NONSENSE as error:
                why = " ".join(str(error).split())[:1000]  # torch uses a line for each tensor
                raise FileFormatError(f"{path}: its tensors do not fit a {type(made).__name__}: {why}") from error
            return made.to(device).eval()

    @classmethod
    def _make(cls, path: Path, metadata: Mapping[str, str]) -> Self:
        name = metadata.get("class", "?")
        found = registered(name)
        if found is None:
            raise FileFormatError(
                f"{path} holds a {name!r}, which is not known here: import the module that defines it"
            )
        if not issubclass(found, cls):
            raise FileFormatError(f"{path} holds a {name}, not a {cls.__name__}: use {name}.load")
        try:
            made = from_config({"class": name, "config": json.loads(metadata["config"])}, cls)
            made.config()  # raises if there are no files of such an object
            return made
        except _NONSENSE as error:
            raise FileFormatError(f"{path}: cannot make a {name} from its stored options: {error}") from error


def to_config(part: FittedModule) -> dict[str, Any]:
    """Describe a part of another object as plain values, for the `config()` of that object."""
    return {"class": type(part).__name__, "config": part.config()}


def from_config(part: _Part | Mapping[str, Any], kind: type[_Part]) -> _Part:
    """Return a part, or make one from what `to_config` says of it; its tensors come with the state of the whole."""
    if isinstance(part, kind):
        return part
    found, options = None, None
    if isinstance(part, Mapping):
        found, options = registered(str(part.get("class"))), part.get("config")
    if found is None or not issubclass(found, kind) or not isinstance(options, Mapping):
        raise OptionError(f"expected a {kind.__name__}, got {type(part).__name__} {str(part)[:80]!r}")
    for name, parameter in inspect.signature(found.__init__).parameters.items():
        # Any text would pass for True.
        if parameter.annotation in (bool, "bool") and not isinstance(options.get(name, False), bool):
            raise OptionError(f"{name} must be true or false, got {str(options[name])[:80]!r}")
    try:
        return found(**options)
    except TypeError as error:
        raise OptionError(f"a {found.__name__} has no such options: {error}") from error


def _plain(option: Any) -> Any:
    """Return an option as a value that can be written down; a number of numpy or torch becomes a plain one."""
    if isinstance(option, FittedModule):
        return to_config(option)
    if isinstance(option, tuple | list | nn.ModuleList):
        return [_plain(item) for item in option]
    if getattr(option, "ndim", None) == 0:
        return option.item()
    if option is None or isinstance(option, bool | int | float | str):
        return option
    raise OptionError(f"an option of type {type(option).__name__} cannot be saved")


class _NoMoreThan(TorchFunctionMode):
    """Refuses to make many more numbers than a file holds: a few bytes of options must not ask for gigabytes."""

    _makers: ClassVar[set[Callable[..., Tensor]]] = {
        *(torch.empty, torch.zeros, torch.ones, torch.full, torch.eye, torch.rand, torch.randn, torch.arange),
        *(torch.empty_like, torch.zeros_like, torch.ones_like),
    }

    def __init__(self, held: int) -> None:
        super().__init__()
        # Whoever makes a module may need something beside its parameters.
        self._left = 4 * held + (1 << 20)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func in self._makers and str(options.get("device")) != "meta":
            # On this device a tensor is its shape alone; random numbers do not exist there.
            shaping = {name: value for name, value in options.items() if name != "generator"}
            planned = func(*args, **{**shaping, "device": "meta"})
            self._left -= planned.numel()
            if self._left < 0:
                raise ValueError(f"that would take {tuple(planned.shape)} numbers, and the file has fewer")
        return func(*args, **options)


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read metadata and tensors of any safetensors file; the digest is left to the caller."""
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
    # The package was called `eli` up to version 0.1.
    if metadata.get("format") not in (FORMAT, "eli"):
        raise FileFormatError(f"{path} is a safetensors file, but was not written by elign's save()")
    version = metadata.get("version", "")
    if not re.fullmatch("[0-9]{1,9}", version) or int(version) > VERSION:
        raise FileFormatError(f"{path} has format version {version!r}; this elign reads up to {VERSION}: upgrade elign")
    if metadata.get("digest") != digest(metadata, tensors):
        raise FileFormatError(f"{path} is damaged: its content does not match its digest; save it again")
    if len(metadata.get("config", "")) > _MOST_OPTIONS:
        raise FileFormatError(f"{path} has {len(metadata['config'])} characters of options, more than any object needs")
    if int(version) == 1:
        try:
            return modernise(metadata, tensors)
        except _NONSENSE as error:
            raise FileFormatError(f"{path} is not what version 0.1 wrote: {error}") from error
    return metadata, tensors


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    infinite = {name for cls in _registry.values() for name in cls.infinite}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        if bool(tensor.isnan().any()) or name.rpartition(".")[2] not in infinite:
            raise LatentError(f"{name} holds NaN or infinite numbers")


def _check_loaded(made: FittedModule, tensors: Mapping[str, Tensor]) -> None:
    """Raise if an object is not what it should be after it has got the tensors of a file."""
    if not made.fitted:
        raise NotFittedError("it is not fitted")
    state = made.state_dict()
    for name, tensor in state.items():
        # A file from before there were two directions has one tensor less.
        if name not in tensors:
            continue
        # Of one kind (truth values, whole, floating-point or complex numbers), however many bits they have.
        types = tensors[name].dtype, tensor.dtype
        if not (torch.can_cast(*types) and torch.can_cast(*types[::-1])):
            raise LatentError(f"{name} is {tensors[name].dtype}, expected {tensor.dtype}")
        # torch takes one number in brackets for a number.
        if tensors[name].shape != tensor.shape:
            raise LatentError(f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}")
    # Again: numbers may have become infinite in a smaller type.
    _check_finite(state)
    for prefix, part in made.named_modules():
        if isinstance(part, FittedModule):
            for name, (least, most) in (_RANGES | dict(part.ranges)).items():
                held = part._buffers.get(name)
                if held is not None and not bool(((held >= least) & (held <= most)).all()):
                    raise LatentError(f"{prefix}{'.' if prefix else ''}{name} must be in [{least:g}, {most:g}]")
            part._check_state()


def digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of metadata (but the digest itself) and tensors: a flipped bit must not pass as a weight."""
    seen = hashlib.sha256(json.dumps({k: v for k, v in metadata.items() if k != "digest"}, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        seen.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()
