import gzip
import hashlib
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import platformdirs
import pytest

from elign.lab.data.errors import FetchError
from elign.lab.data.fetch import data_dir, download

CONTENT = bytes(range(256)) * 1000
# A gzip header, then deflate blocks without content, none of them marked as the last: it inflates to nothing.
EMPTY_BLOCKS = gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_data_dir_prefers_the_caller_then_the_variable_then_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("ELIGN_DATA", str(tmp_path / "variable"))
    assert data_dir(tmp_path / "mine") == tmp_path / "mine"
    assert data_dir(str(tmp_path / "mine")) == tmp_path / "mine"
    assert data_dir(None) == tmp_path / "variable"
    monkeypatch.setenv("ELIGN_DATA", "")
    assert data_dir() == Path(platformdirs.user_cache_dir("elign"))
    assert data_dir("~/data") == Path.home() / "data"


def test_a_good_file_arrives_whole_and_alone(site, tmp_path):
    site.pages["/file"] = CONTENT
    target = tmp_path / "new" / "folder" / "file"
    used = download([f"{site.url}/file"], target, SHA256, max_bytes=len(CONTENT))
    assert used == f"{site.url}/file"
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["file"]


def test_gzip_is_unpacked_on_the_way(site, tmp_path):
    site.pages["/file.gz"] = gzip.compress(CONTENT)
    download([f"{site.url}/file.gz"], tmp_path / "file", SHA256, max_bytes=len(CONTENT), gunzip=True)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_the_second_address_is_used_when_the_first_fails(site, tmp_path):
    site.pages["/file"] = CONTENT
    used = download([f"{site.url}/gone", f"{site.url}/file"], tmp_path / "file", SHA256, max_bytes=len(CONTENT))
    assert used == f"{site.url}/file"
    assert site.asked == ["/gone", "/file"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def half_of_what_is_announced(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    handler.wfile.write(CONTENT[: len(CONTENT) // 2])


def to_ftp(handler):
    handler.send_response(302)
    handler.send_header("Location", "ftp://127.0.0.1/file")
    handler.end_headers()


@pytest.mark.parametrize(
    ("page", "options", "reason"),
    [
        (None, {}, "404"),
        (CONTENT[:-1] + b"!", {}, "checksum"),
        (half_of_what_is_announced, {}, "ended after 128000 of 256000 bytes"),
        (CONTENT + bytes(1), {}, "more than the 256000 bytes"),
        (CONTENT * 2, {}, "more than the"),
        (b"no gzip", {"gunzip": True}, "incorrect header"),
        (gzip.compress(CONTENT)[:-9], {"gunzip": True}, "cut short"),
        (gzip.compress(bytes(1 << 26)), {"gunzip": True}, "more than the 256000 bytes"),
        (gzip.compress(CONTENT) + b"!", {"gunzip": True}, "goes on after"),
        (gzip.compress(CONTENT) + bytes(1 << 20), {"gunzip": True}, "goes on after"),
        (EMPTY_BLOCKS, {"gunzip": True}, "sends more than the"),
        (to_ftp, {}, "unknown url type"),
    ],
    ids=[
        "404",
        "checksum",
        "truncated",
        "one byte more",
        "twice",
        "no gzip",
        "gzip cut",
        "gzip bomb",
        "gzip and 1",
        "gzip tail",
        "no end",
        "to ftp",
    ],
)
def test_a_bad_answer_is_named_and_leaves_nothing(site, tmp_path, page, options, reason):
    if page is not None:
        site.pages["/file"] = page
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FetchError, match=reason) as caught:
        download([f"{site.url}/file"], tmp_path / "file", SHA256, max_bytes=len(CONTENT), **options)
    assert len(caught.value.reasons) == 1
    assert f"{site.url}/file" in caught.value.reasons[0]
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/file", "file:///file", "data:,x", "plain", "http://", "http://[x/y"])
def test_only_web_addresses_are_accepted(tmp_path, url):
    with pytest.raises(FetchError):
        download([url], tmp_path / "file", SHA256, max_bytes=9)
    assert names(tmp_path) == []


def test_no_address_at_all_is_an_error(tmp_path):
    with pytest.raises(FetchError, match="no address"):
        download([], tmp_path / "file", SHA256, max_bytes=9)


def test_a_refused_connection_fails_at_once(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(FetchError):
        download([f"http://127.0.0.1:{port}/file"], tmp_path / "file", SHA256, max_bytes=9)
    assert time.monotonic() - start < 5


def test_a_silent_server_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(FetchError, match=r"no answer within 0\.3 s|timed out"):
            download([url], tmp_path / "file", SHA256, max_bytes=9, connect_seconds=0.3)


def test_a_name_lookup_that_hangs_is_given_up(tmp_path, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: over.wait(30) and [])
    start = time.monotonic()
    with pytest.raises(FetchError, match="no answer within"):
        download(["http://nowhere.invalid/file"], tmp_path / "file", SHA256, max_bytes=9, connect_seconds=0.3)
    assert time.monotonic() - start < 5
    over.set()


def test_a_dripping_server_is_given_up(site, tmp_path):
    over = threading.Event()

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        while not over.wait(0.05):
            handler.wfile.write(b"x")

    site.pages["/file"] = drip
    try:
        with pytest.raises(FetchError, match="too long"):
            download([f"{site.url}/file"], tmp_path / "file", SHA256, max_bytes=10**6, total_seconds=0.4)
    finally:
        over.set()
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a signal cannot be sent to one thread on Windows")
def test_an_interrupt_leaves_no_partial_file(site, tmp_path):
    over = threading.Event()
    seen: list[list[str]] = []

    def stall(handler):
        half_of_what_is_announced(handler)
        handler.wfile.flush()
        end = time.monotonic() + 5
        while time.monotonic() < end and not any(path.stat().st_size for path in tmp_path.iterdir()):
            time.sleep(0.01)
        seen.append(names(tmp_path))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        over.wait(10)

    site.pages["/file"] = stall
    # A process that a shell put into the background ignores interrupts, and so would this test.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            download([f"{site.url}/file"], tmp_path / "file", SHA256, max_bytes=len(CONTENT))
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)
    assert seen[0][0].endswith(".part")  # it was under way
    assert names(tmp_path) == []
