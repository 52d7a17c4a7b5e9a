"""Write files so that a crash at any moment leaves the old file or the new one, never half of one."""

from __future__ import annotations

import glob
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_STALE_SECONDS = 24 * 3600.0


@contextmanager
def replacing(destination: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a handle on a temporary file beside `destination`, which takes its name when the block ends well.

    Anything else that ends the block, a keyboard interrupt included, removes the temporary file. The folder is made
    where needed.
    """
    target = Path(destination)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A killed process cannot clean up. A day's grace leaves the files of a process that is still at work alone.
    for stale in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with suppress(OSError):
            if time.time() - stale.stat().st_mtime > _STALE_SECONDS:
                stale.unlink()
    # Not tempfile: its files are readable by their owner only, and results are often shared.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # A full disk shows while writing, when the system does not say of which file any more.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(target)
        raise


def write_bytes_atomic(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write `data` as the whole content of `path`."""
    with replacing(path) as handle:
        handle.write(data)
    return Path(path)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> Path:
    """Write `text`, in UTF-8, as the whole content of `path`."""
    return write_bytes_atomic(path, text.encode())
