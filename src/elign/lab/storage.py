"""JSON objects and tensors in files with a digest, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from elign.utils.errors import ElignError, FileFormatError
from elign.utils.files import write_bytes_atomic, write_text_atomic
from elign.utils.fitted import digest, read_safetensors

MAKE_AGAIN = (
    "Remove this file: 'elign resume' (for an evaluation, the same 'elign evaluate') makes it again, and keeps the "
    "rest."
)
_DIGEST = "digest"


class DamagedRunError(ElignError):
    """A file of a run is damaged or does not fit the run; the message says which one and what to do."""


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain JSON values by their names, with their digest."""
    write_text_atomic(path, json.dumps({**content, _DIGEST: digest_of(content)}, indent=1) + "\n")


def read_object(path: Path) -> dict[str, Any]:
    """Read what `write_object` wrote; a file of the first versions has no digest.

    Raises:
        ValueError: The file is damaged or is something else; the message leaves it to the caller to name the file.
        FileNotFoundError: There is no such file.
    """
    content = parse_object(path.read_bytes())
    if _DIGEST in content and content.pop(_DIGEST) != digest_of(content):
        raise ValueError("its content does not match its digest")
    return content


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object from an untrusted text; raise `ValueError` if it is not one."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no object")
    return content


class OpenModel(BaseModel):
    """A form of JSON objects that have at least these fields: those that the code relies on."""

    # Said again, since pydantic does not understand its own annotation while documentation is made of this module.
    __pydantic_extra__: dict[str, Any]
    model_config = ConfigDict(strict=True, extra="allow")


_Model = TypeVar("_Model")


def check_values(model: type[_Model], values: Mapping[str, Any]) -> _Model:
    """Make a pydantic model, or a dataclass, of values from a file; raise `ValueError`, which names the first field."""
    try:
        found: _Model = _adapter(model).validate_python(values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        given = "" if first["type"] == "missing" else f", not {repr(first['input'])[:100]}"
        raise ValueError(f"{place}: {first['msg']}{given}") from None
    return found


_adapter = cache(TypeAdapter)


def digest_of(content: Mapping[str, Any], rest: str = "") -> str:
    """Return the SHA-256 of plain JSON values, whatever their order, and of a text that follows them."""
    # By way of a text: a tuple is read back as a list, and the name 1 as "1".
    plain = json.loads(json.dumps(content))
    return hashlib.sha256((json.dumps(plain, sort_keys=True) + rest).encode()).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors, and metadata that are plain JSON values, to one file."""
    # Copies, since safetensors refuses two names for one piece of memory.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    header = {"metadata": json.dumps(dict(metadata or {}))}
    header[_DIGEST] = digest(header, plain)
    write_bytes_atomic(path, safetensors.torch.save(plain, header))


def read_tensors(path: Path, *, expect: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors, `expect` among them, and the metadata that `write_tensors` wrote.

    Raises:
        DamagedRunError: The file is damaged, foreign or lacks a name.
        FileNotFoundError: There is no such file.
    """
    try:
        header, tensors = read_safetensors(path)
        if header.get(_DIGEST) != digest(header, tensors):
            raise ValueError("its content does not match its digest")
        # "facts": the name in version 0.1.
        metadata = parse_object(header.get("metadata", header.get("facts", "{}")))
        missing = [name for name in expect if name not in tensors]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
    except (FileFormatError, ValueError) as error:
        why = str(error).removeprefix(f"{path} is damaged or ")
        raise DamagedRunError(f"{path} is damaged ({why}). {MAKE_AGAIN}") from error
    return tensors, metadata
