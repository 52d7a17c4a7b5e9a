"""Reader of pickles that hold arrays of bytes, lists and text only.

A pickle is a program, and the usual reader runs whatever it names. This one knows the few names that an array of
unsigned bytes needs and puts its own harmless objects in their place, so that not even numpy's code is reached; any
other name ends the reading. Whatever the bytes are, the outcome is plain values or a `DamagedFileError`.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from elign.lab.data.errors import DamagedFileError

_MAX_ARRAYS = 64
_MAX_DIMENSIONS = 8


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
    return {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in content.items()}


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
        if not isinstance(shape, tuple) or len(shape) > _MAX_DIMENSIONS:
            raise pickle.UnpicklingError(f"an array has no shape, or more than {_MAX_DIMENSIONS} dimensions")
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
        # A tuple of tuples of tuples can be short in the file and take for ever to hash or to write out.
        if not isinstance(code, str) or code not in {"u1", "uint8"}:
            shown = repr(code) if isinstance(code, str) else type(code).__name__
            raise pickle.UnpicklingError(f"an array has values of the type {shown}, not unsigned bytes")

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and the like, without meaning for single bytes


class _Inert:
    """Stands for numpy's ndarray, which is only ever handed to the function that makes arrays."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it sets attributes")


class _Encode(_Inert):
    """Stands for the function that newer Pythons write older pickles of bytes with.

    A pickle can hand it the same long text again and again, so all that it makes must fit into the file.
    """

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, text: str, encoding: str) -> bytes:
        if not isinstance(text, str) or not isinstance(encoding, str) or encoding not in {"latin1", "latin-1"}:
            raise pickle.UnpicklingError("it asks for another encoding than latin-1 of a text")
        self.left -= len(text)
        if self.left < 0:
            raise pickle.UnpicklingError("it makes more bytes than the file has")
        return text.encode("latin-1")


class _Reconstruct(_Inert):
    """Stands for the function that makes arrays; each may be as long as the file, so there may be few."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MAX_ARRAYS

    def __call__(self, *ignored: Any) -> ArrayRecord:
        self.left -= 1
        if self.left < 0:
            raise pickle.UnpicklingError(f"it has more than {_MAX_ARRAYS} arrays")
        return ArrayRecord()


def _with_text_keys(load: Callable[[Any], None], first: int) -> Callable[[Any], None]:
    """The same step of the reader, but keys of a dictionary must be text: some tuples take for ever to hash."""

    def checked(reader: Any) -> None:
        if not all(isinstance(key, str | bytes) for key in reader.stack[first::2]):
            raise pickle.UnpicklingError("a key of a dictionary is no text")
        load(reader)

    return checked


_LOAD = pickle._Unpickler.dispatch
# What data sets do not use: a few bytes could ask for a buffer of gigabytes, and sets hash whatever they hold.
_REFUSED = b"".join((pickle.BYTEARRAY8, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET))


# The reader written in Python, because the one in C lets a few bytes ask for a table of many gigabytes.
class _Reader(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code: load for code, load in _LOAD.items() if code not in _REFUSED},
        **{code: _with_text_keys(_LOAD[code], 0) for code in pickle.SETITEMS + pickle.DICT},
        **{code: _with_text_keys(_LOAD[code], -2) for code in pickle.SETITEM},
    }

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream, encoding="latin1")
        make = _Reconstruct()
        self._known: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): make,
            ("numpy._core.multiarray", "_reconstruct"): make,
            ("numpy", "ndarray"): _Inert(),
            ("numpy", "dtype"): _ByteType,
            ("_codecs", "encode"): _Encode(os.fstat(stream.fileno()).st_size),
        }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = self._known.get((module_name, global_name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which is not allowed")
        return known
