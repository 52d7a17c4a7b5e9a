"""What the tests of the data share: IDX bytes, a dataset of a few images, a web server on this machine."""

import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from elign.lab.data.idx import IdxFile
from elign.lab.data.mnist import IdxSpec


def encode(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


@pytest.fixture(scope="session")
def encode_idx() -> Callable[[np.ndarray], bytes]:
    return encode


@pytest.fixture(scope="session")
def tiny_contents() -> dict[str, bytes]:
    """The four files of a dataset with 6 + 3 images of 4 x 4 and 3 classes."""
    rng = np.random.default_rng(0)
    arrays = {
        "train-images": rng.integers(0, 256, (6, 4, 4)),
        "train-labels": np.array([0, 1, 2, 0, 1, 2]),
        "test-images": rng.integers(0, 256, (3, 4, 4)),
        "test-labels": np.array([2, 1, 0]),
    }
    return {name: encode(values) for name, values in arrays.items()}


@pytest.fixture(scope="session")
def tiny_spec(tiny_contents) -> IdxSpec:
    shapes = ((6, 4, 4), (6,), (3, 4, 4), (3,))
    files = tuple(
        IdxFile(name, shape, hashlib.sha256(content).hexdigest())
        for (name, content), shape in zip(tiny_contents.items(), shapes, strict=True)
    )
    return IdxSpec(name="tiny", classes=("a", "b", "c"), folders=("tiny", "Tiny/raw"), files=files, sources=())


class Site:
    """A web server on this machine; a page is its content or a function that answers the request itself."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                page = site.pages.get(self.path)
                if page is None:
                    self.send_error(404)
                elif callable(page):
                    page(self)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(page)))
                    self.end_headers()
                    self.wfile.write(page)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def site(monkeypatch) -> Iterator[Site]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()
