"""What the fuzz tests share: ways to damage a file, and what a reader of such a file may do.

ELIGN_FUZZ_EXAMPLES raises the number of examples of each test; they are then different ones on every run.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from elign import ElignError
from elign.lab.data.base import DataError
from elign.utils.fitted import digest

NAMED = (ElignError, DataError)
"""What a reader may raise."""

EXAMPLES = int(os.environ.get("ELIGN_FUZZ_EXAMPLES", "0"))
SECONDS, MEGABYTES = 30, 256
# Lengths and shapes that a header may claim: nothing, too much for a signed or unsigned number, too much for memory.
_ABSURD = (b"\0" * 8, b"\xff" * 4, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f", b"\0\0\0\x40\0\0\0\0")
_TEXT = (b"-1", b"1e999", b"NaN", b"9" * 30, b"9" * 5000, b'"', b"null", b"[" * 3000, b"\\ud800", b"\r\n", b"\xc3\x28")


def fuzz(examples: int = 40) -> settings:
    """The settings of a fuzz test; `examples` unless ELIGN_FUZZ_EXAMPLES asks for more."""
    return settings(
        max_examples=max(EXAMPLES, examples),
        derandomize=not EXAMPLES,
        deadline=None,
        # Each example overwrites the files of the one before.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@st.composite
def damaged(draw: st.DrawFn, whole: Sequence[bytes], *, text: bool = False) -> bytes:
    """Arbitrary bytes, or one of the `whole` files with a piece cut off, changed, doubled, or made absurd."""
    content = draw(st.sampled_from(whole))
    kind = draw(st.sampled_from(("any", "cut", "flip", "change", "drop", "double", "absurd")))
    if kind == "any":
        return draw(st.binary(max_size=300))
    place = draw(st.integers(0, max(0, len(content) - 1)))
    end = min(len(content), place + draw(st.integers(1, 64)))
    if kind == "cut":
        return content[:place]
    if kind == "flip":
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw(st.integers(0, 7))
        return bytes(flipped)
    middle = {
        "change": lambda: draw(st.binary(min_size=end - place, max_size=end - place)),
        "drop": lambda: b"",
        "double": lambda: content[place:end] * draw(st.sampled_from((2, 100))),
        "absurd": lambda: draw(st.sampled_from(_TEXT if text else _ABSURD)),
    }[kind]()
    return content[:place] + middle + content[end:]


def signed(path: Path, metadata: dict[str, str], tensors: dict[str, Tensor]) -> Path:
    """A file whose digest is right, whatever is in it: what somebody with bad intentions would send."""
    path.write_bytes(safetensors.torch.save(tensors, metadata | {"digest": digest(metadata, tensors)}))
    return path


def answer(read: Callable[[], Any], *, names: Path | None = None, says: str = "", megabytes: int = MEGABYTES) -> Any:
    """What a reader gives, None where it refuses; anything but a named error in one short line fails the test.

    Args:
        read: Reads a file.
        names: The file that an error must name.
        says: What else an error must say.
        megabytes: How much more memory than ever before it may need.
    """
    with bounded(megabytes=megabytes):
        try:
            return read()
        except NAMED as error:
            said = str(error)
    assert "\n" not in said
    assert len(said) < 6000
    assert names is None or names.name in said
    assert says in said
    return None


@contextmanager
def bounded(seconds: int = SECONDS, megabytes: int = MEGABYTES) -> Iterator[None]:
    """Fails if what happens inside takes too long, or if the process needs much more memory than ever before."""
    alarmed = threading.current_thread() is threading.main_thread()
    if alarmed:
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(seconds)
    most = _megabytes()
    try:
        yield
    finally:
        if alarmed:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    assert _megabytes() - most < megabytes, "it took too much memory"


def _too_long(*_: object) -> None:
    # Not an Exception: readers that take every exception for damage must not take this one.
    raise HangError("it takes too long")


class HangError(BaseException):
    """Something did not come to an end."""


def _megabytes() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20) if sys.platform == "darwin" else most / 1024
