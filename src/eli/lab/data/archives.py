"""Reader of tar archives that takes out members by name. Imported by the datasets in `eli.lab.data` only.

Nothing is unpacked to where an archive says: its members come back as bytes, and the caller decides where they go.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from eli.lab.data.errors import DamagedFileError

MAX_ARCHIVE_BYTES = 1 << 29
"""An archive that unpacks to more than this is taken for damaged: three times CIFAR-100."""

_CHUNK = 1 << 20


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
        with gzip.open(archive, "rb") as stream:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                found = _wanted(tar, archive, limits)
            # The checksum comes last in a gzip stream, after all that tar cares for: only reading on checks it.
            rest = 0
            while chunk := stream.read(_CHUNK):
                rest = _bounded(archive, rest + len(chunk))
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DamagedFileError(archive, f"it cannot be unpacked ({error})") from error
    return found


def _wanted(tar: tarfile.TarFile, archive: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    passed = 0
    for member in tar:
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
