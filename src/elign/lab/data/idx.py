"""Reader of IDX files, the format of MNIST and its relatives.

An IDX file is two zero bytes, one byte for the type (8: unsigned byte), one for the number of dimensions, each
dimension as a big-endian 32-bit integer, then the values. Files come from anywhere, so nothing is believed before it is
checked: whatever the bytes are, the outcome is a tensor or a `DamagedFileError`.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from elign.lab.data.errors import DamagedFileError

MAX_VALUES = 1 << 30
"""A file that declares more values than this is taken for damaged: twenty times the largest file of MNIST."""

_CHUNK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 8
_DIMENSIONS = (1, 3)


@dataclass(frozen=True)
class IdxFile:
    """What is known of one IDX file beforehand.

    Args:
        name: Its file name, without .gz.
        shape: The dimensions it must declare.
        sha256: Checksum of the public file's uncompressed content, in hexadecimal.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def size(self) -> int:
        """Length of the uncompressed file in bytes."""
        return 4 + 4 * len(self.shape) + math.prod(self.shape)

    def is_public(self, content: bytes | bytearray) -> bool:
        """Whether `content` is the public file, byte for byte."""
        return hashlib.sha256(content).hexdigest() == self.sha256


def read_idx(path: Path) -> Tensor:
    """Read an IDX file, plain or gzip-compressed (told by its content, not its name).

    Args:
        path: The file.

    Returns:
        Its values as a `uint8` tensor of the shape that the file declares.

    Raises:
        DamagedFileError: The file cannot be read as IDX.
    """
    content = read_content(path)
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).reshape(shape)


def read_content(path: Path) -> bytearray:
    """The uncompressed bytes of an IDX file, header included, once they are known to be well formed.

    No more is read or inflated than the header declares, plus one read buffer: a small file that unpacks to a huge one
    costs nothing.

    Raises:
        DamagedFileError: The file cannot be read as IDX.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            if not zipped:
                return _read_declared(raw, path)
            with gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
                return _read_declared(unzipped, path)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFileError(path, f"it cannot be read ({error})") from error


def _read_declared(stream: IO[bytes] | gzip.GzipFile, path: Path) -> bytearray:
    content = bytearray(stream.read(4))
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DamagedFileError(path, f"it does not start like an IDX file (found {bytes(content).hex() or 'nothing'})")
    kind, dimensions = content[2], content[3]
    if kind != _UNSIGNED_BYTE or dimensions not in _DIMENSIONS:
        raise DamagedFileError(
            path, f"its values must be unsigned bytes in 1 or 3 dimensions (found type {kind}, {dimensions} dimensions)"
        )
    header = stream.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise DamagedFileError(path, "it ends within its header")
    content += header
    declared = _declared_values(struct.unpack(f">{dimensions}I", header), path)
    _read_values(stream, content, declared, path)
    return content


def _declared_values(shape: tuple[int, ...], path: Path) -> int:
    values = math.prod(shape)
    if not 0 < values <= MAX_VALUES:
        size = " x ".join(map(str, shape))
        raise DamagedFileError(path, f"it declares {size} values, which is not between 1 and {MAX_VALUES}")
    return values


def _read_values(stream: IO[bytes] | gzip.GzipFile, content: bytearray, declared: int, path: Path) -> None:
    # Chunks, because a single read(declared) would allocate whatever a damaged header asks for. One byte more than
    # declared is asked for: it shows trailing bytes, and it makes gzip reach, and check, the checksum at its end.
    end = len(content) + declared
    while len(content) <= end and (chunk := stream.read(min(_CHUNK, end + 1 - len(content)))):
        content += chunk
    if len(content) < end:
        raise DamagedFileError(path, f"it is cut short: {end} bytes declared, {len(content)} found")
    if len(content) > end:
        raise DamagedFileError(path, f"it goes on after the {end} bytes that it declares")
