"""Tensors in one safetensors file with a digest, written whole or not at all. Anything in `elign.lab` may import it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from elign.lab.json_file import parse_object
from elign.utils.errors import ElignError, FileFormatError
from elign.utils.files import write_bytes_atomic
from elign.utils.fitted import digest, read_safetensors

MAKE_AGAIN = (
    "Remove this file: 'elign resume' (for an evaluation, the same 'elign evaluate') makes it again, and keeps the "
    "rest."
)


class DamagedRunError(ElignError):
    """A file of a run is damaged or does not fit the run; the message says which one and what to do."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> None:
    """Write tensors, and facts that are plain JSON values, to one file."""
    # Copies, since safetensors refuses two names for one piece of memory.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    metadata = {"facts": json.dumps(dict(facts or {}))}
    metadata["digest"] = digest(metadata, plain)
    write_bytes_atomic(path, safetensors.torch.save(plain, metadata))


def read_tensors(path: Path, *, expect: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote: the tensors and the facts.

    Args:
        path: The file.
        expect: Names that must be there.

    Raises:
        DamagedRunError: The file is damaged, foreign or lacks a name.
        FileNotFoundError: There is no such file.
    """
    try:
        metadata, tensors = read_safetensors(path)
        if metadata.get("digest") != digest(metadata, tensors):
            raise ValueError("its content does not match its digest")
        facts = parse_object(metadata.get("facts", "{}"))
    except (FileFormatError, ValueError) as error:
        raise DamagedRunError(_damaged(path, str(error).removeprefix(f"{path} is damaged or "))) from error
    missing = [name for name in expect if name not in tensors]
    if missing:
        raise DamagedRunError(_damaged(path, f"it lacks {', '.join(missing)}"))
    return tensors, facts


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged ({why}). {MAKE_AGAIN}"
