"""One JSON object in a file with a digest, written whole or not at all. Anything in `elign.lab` may import it.

A flipped bit of a text is often a text again, a number another number: only a digest tells. Files without one, of older
versions, are read as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elign.utils.files import write_text_atomic

_DIGEST = "digest"


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain JSON values by their names."""
    write_text_atomic(path, json.dumps({**content, _DIGEST: digest_of(content)}, indent=1) + "\n")


def read_object(path: Path) -> tuple[dict[str, Any], bool]:
    """What `write_object` wrote, and whether a digest vouches for it.

    Raises:
        ValueError: The file is damaged or is something else; the message says how, and leaves the file to the caller.
        FileNotFoundError: There is no such file.
    """
    content = parse_object(path.read_bytes())
    sealed = _DIGEST in content
    if sealed and content.pop(_DIGEST) != digest_of(content):
        raise ValueError("its content does not match its digest")
    return content, sealed


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in a text from anywhere.

    Raises:
        ValueError: It is none; the message says how.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no object")
    return content


def digest_of(content: Mapping[str, Any], rest: str = "") -> str:
    """SHA-256 of plain JSON values, in whatever order their names come, and of a text that follows them."""
    # By way of a text: a tuple is a list once it was read again, and the name 1 is "1".
    plain = json.loads(json.dumps(content))
    return hashlib.sha256((json.dumps(plain, sort_keys=True) + rest).encode()).hexdigest()
