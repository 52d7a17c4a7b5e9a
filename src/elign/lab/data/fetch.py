"""Where data lives on disk and how a file gets there whole."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import queue
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

import platformdirs

from elign.lab.data.errors import DataError, FetchError
from elign.utils.files import replacing

_CHUNK = 1 << 16
_log = logging.getLogger(__name__)


def data_dir(explicit: Path | str | None = None) -> Path:
    """The folder that holds the datasets.

    Args:
        explicit: The caller's choice; it wins.

    Returns:
        `explicit`, else the variable ELIGN_DATA, else the platform's cache folder of the user.
    """
    chosen = explicit or os.environ.get("ELIGN_DATA") or platformdirs.user_cache_dir("elign")
    return Path(chosen).expanduser()


def download(
    urls: Sequence[str],
    destination: Path,
    sha256: str,
    *,
    max_bytes: int,
    gunzip: bool = False,
    connect_seconds: float = 10.0,
    total_seconds: float = 600.0,
) -> str:
    """Fetch a file from the first address that delivers it whole.

    Args:
        urls: Addresses (http or https), tried in this order.
        destination: Where the file goes; it appears there only complete and verified.
        sha256: Checksum of what is written, in hexadecimal.
        max_bytes: The most that may be written.
        gunzip: Whether the addresses serve the file gzip-compressed; it is written, and verified, uncompressed.
        connect_seconds: How long an address may take until its answer begins, and between two parts of it.
        total_seconds: How long one address may take in all.

    Returns:
        The address that delivered.

    Raises:
        FetchError: None did; it holds the reason for each.
    """
    reasons: list[str] = []
    for url in urls:
        deadline = time.monotonic() + total_seconds
        try:
            with _open(url, connect_seconds) as response, replacing(destination) as handle:
                parts = _received(response, max_bytes + _CHUNK, deadline)
                _write_verified(_inflated(parts) if gunzip else parts, handle, sha256, max_bytes)
        except (OSError, http.client.HTTPException, ValueError, zlib.error, DataError) as error:
            reasons.append(f"{url}: {str(error) or type(error).__name__}")
            _log.info("no luck with %s", reasons[-1])
        else:
            return url
    raise FetchError(destination.name, reasons or ["no address is known"])


def _open(url: str, seconds: float) -> http.client.HTTPResponse:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise DataError("only http and https addresses are accepted")
    answers: queue.SimpleQueue[http.client.HTTPResponse | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(cast(http.client.HTTPResponse, _opener().open(url, timeout=seconds)))
        except Exception as error:
            answers.put(error)

    # A socket's time-out holds for each address of a host anew and not for the name lookup: where packets are dropped,
    # one host could take minutes. Only a thread that is not waited for bounds it all.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _opener() -> urllib.request.OpenerDirector:
    # Built by hand: the ready-made opener would also follow a redirect to ftp.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _received(response: http.client.HTTPResponse, limit: int, deadline: float) -> Iterator[bytes]:
    announced = response.headers.get("Content-Length")
    received = 0
    while chunk := response.read1(_CHUNK):
        received += len(chunk)
        if received > limit:
            raise DataError(f"it sends more than the {limit} bytes allowed")
        if time.monotonic() > deadline:
            raise TimeoutError("it takes too long")
        yield chunk
    if announced is not None and received != int(announced):
        raise DataError(f"the connection ended after {received} of {announced} bytes")


def _inflated(parts: Iterator[bytes]) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    for part in parts:
        rest = part
        while rest:
            if stream.eof:  # zlib hands such bytes back for ever instead of refusing them
                raise DataError("it goes on after the end of its gzip stream")
            yield stream.decompress(rest, _CHUNK)
            rest = stream.unconsumed_tail
    # All input may be taken in while a last piece, held back by the length limit, is still to come out.
    while piece := stream.decompress(b"", _CHUNK):
        yield piece
    if not stream.eof:
        raise DataError("the gzip stream is cut short")


def _write_verified(parts: Iterator[bytes], handle: IO[bytes], sha256: str, max_bytes: int) -> None:
    digest = hashlib.sha256()
    written = 0
    for part in parts:
        written += len(part)
        if written > max_bytes:
            raise DataError(f"it holds more than the {max_bytes} bytes allowed")
        digest.update(part)
        handle.write(part)
    if digest.hexdigest() != sha256:
        raise DataError(f"the checksum is {digest.hexdigest()}, not {sha256}")
