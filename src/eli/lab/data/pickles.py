"""Reader of pickles that hold arrays of bytes, lists and text only. Imported by the datasets in `eli.lab.data` only.

A pickle is a program, and the usual reader runs whatever it names. This one knows the few names that an array of
unsigned bytes needs and puts its own harmless objects in their place, so that not even numpy's code is reached; any
other name ends the reading. Whatever the bytes are, the outcome is plain values or a `DamagedFileError`.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from eli.lab.data.errors import DamagedFileError


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of Python 2 or 3 without running anything that it names.

    Args:
        path: The file.

    Returns:
        The dictionary with its keys as text; text of Python 2 is decoded as Latin-1. A value may be an `ArrayRecord`.

    Raises:
        DamagedFileError: The file cannot be read, holds something else, or asks for more than arrays of bytes.
    """
    try:
        with path.open("rb") as stream:
            content = _Reader(stream).load()
    except Exception as error:  # damaged bytes can make the reader fail in any way at all
        raise DamagedFileError(
            path, f"it cannot be read as a pickle of arrays ({str(error) or type(error).__name__})"
        ) from error
    if not isinstance(content, dict):
        raise DamagedFileError(path, f"it holds a {type(content).__name__}, not a dictionary")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class ArrayRecord:
    """What a pickle tells of an array of unsigned bytes, before anything is done with it."""

    shape: tuple[int, ...] = (0,)
    column_major = False
    raw = b""

    def __init__(self, *ignored: Any) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, kind, column_major, raw = state[-4:]
        if not isinstance(kind, _ByteType):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        content = raw.encode("latin-1") if isinstance(raw, str) else raw
        sizes = tuple(int(size) for size in shape)
        if not isinstance(content, bytes) or min(sizes, default=0) < 0 or math.prod(sizes) != len(content):
            raise pickle.UnpicklingError(f"an array of {sizes} does not have as many bytes")
        self.shape, self.column_major, self.raw = sizes, bool(column_major), content

    def array(self) -> npt.NDArray[np.uint8]:
        """The array itself, which cannot be written to."""
        return np.frombuffer(self.raw, dtype=np.uint8).reshape(self.shape, order="F" if self.column_major else "C")


# A pickle can also set attributes of what it has been given, which __setstate__ prevents: each stand-in has one.


class _ByteType:
    """Stands for numpy's dtype; there is only one."""

    def __init__(self, code: str, *ignored: Any) -> None:
        if code not in {"u1", "uint8"}:
            raise pickle.UnpicklingError(f"an array has values of the type {code!r}, not unsigned bytes")

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and the like, without meaning for single bytes


class _Inert:
    """Stands for numpy's ndarray, which is only ever handed to the function that makes arrays."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it sets attributes")


class _Encode(_Inert):
    """Stands for the function that newer Pythons write older pickles of bytes with."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in {"latin1", "latin-1"}:
            raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
        return text.encode("latin-1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): ArrayRecord,
    ("numpy._core.multiarray", "_reconstruct"): ArrayRecord,
    ("numpy", "ndarray"): _Inert(),
    ("numpy", "dtype"): _ByteType,
    ("_codecs", "encode"): _Encode(),
}


# The reader written in Python, because the one in C lets a few bytes ask for a table of many gigabytes.
class _Reader(pickle._Unpickler):
    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream, encoding="latin1")

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = _KNOWN.get((module_name, global_name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which is not allowed")
        return known
