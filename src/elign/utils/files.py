"""Write files so that a crash at any moment leaves the old file or the new one, never half of one."""

from __future__ import annotations

import glob
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

_STALE_SECONDS = 24 * 3600.0


def write_bytes_atomic(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write `data` as the whole content of `path`: into a temporary file beside it, which then takes its name.

    An error, a keyboard interrupt included, removes the temporary file. The folder is made where needed.
    """
    target = Path(path)
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
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # A full disk shows while writing, when the system does not say of which file any more.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(target)
        raise
    return target


def write_text_atomic(path: str | os.PathLike[str], text: str) -> Path:
    """Write `text`, in UTF-8, as the whole content of `path`."""
    return write_bytes_atomic(path, text.encode())
