"""Reader of tar archives that takes out members by name.

Nothing is unpacked to where an archive says: its members come back as bytes, and the caller decides where they go.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self, cast

from elign.lab.data.errors import DamagedFileError

MAX_ARCHIVE_BYTES = 1 << 29
"""An archive that unpacks to more than this is taken for damaged: three times CIFAR-100."""

_CHUNK = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def read_members(archive: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    """Read some members of a gzip-compressed tar archive, once all of it is known to be whole.

    Args:
        archive: The archive.
        limits: The names of the members, each with the most bytes that it may have.

    Returns:
        The content of each member that is there and is a plain file; links are passed over.

    Raises:
        DamagedFileError: The archive is cut short, is no archive, or holds too much.
    """
    try:
        with gzip.open(archive, "rb") as unzipped:
            stream = _Counted(unzipped, archive)
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", tarinfo=_Member) as tar:
                found = _wanted(tar, archive, limits)
            # The checksum comes last in a gzip stream, after all that tar cares for: only reading on checks it.
            while stream.read(_CHUNK):
                pass
    # Broken headers make tarfile fail in ways of their own, a long row of them by recursion.
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError, LookupError, RecursionError) as error:
        raise DamagedFileError(archive, f"it cannot be unpacked ({error})") from error
    return found


class _Counted:
    """A stream that ends with an error once more has come out of it than an archive may hold."""

    def __init__(self, stream: gzip.GzipFile, archive: Path) -> None:
        self._stream, self._archive = stream, archive
        self._seen = 0

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._seen = _bounded(self._archive, self._seen + len(content))
        return content


class _Member(tarfile.TarInfo):
    """A header whose size can be believed before tarfile acts on it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        made = super().frombuf(buf, encoding, errors)
        # Names that are too long for a header come in a member of their own, which tarfile reads into memory at once.
        if made.size < 0 or (made.type in _HEADERS and made.size > _MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header says that it has {made.size} bytes")
        return made


def _wanted(tar: tarfile.TarFile, archive: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    passed = 0
    for member in tar:
        if member.size < 0:  # an extended header may have said so
            raise DamagedFileError(archive, f"its {member.name!r} has {member.size} bytes")
        # Passing over a member inflates it as well, so the sum bounds what a hostile archive can cost.
        passed = _bounded(archive, passed + member.size)
        if member.name not in limits or not member.isfile():
            continue
        if member.size > limits[member.name]:
            raise DamagedFileError(archive, f"its {member.name} has {member.size} bytes, above {limits[member.name]}")
        stream = tar.extractfile(member)
        found[member.name] = stream.read() if stream else b""
    return found


def _bounded(archive: Path, size: int) -> int:
    if size > MAX_ARCHIVE_BYTES:
        raise DamagedFileError(archive, f"it unpacks to more than {MAX_ARCHIVE_BYTES} bytes")
    return size
