"""MNIST's idx files: found, read, damaged, and downloaded by torchvision."""

import gzip
import hashlib
import struct
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.data.base import DamagedFileError, DatasetNotFoundError
from elign.lab.data.mnist import FashionMnist, Mnist, read_idx
from elign.lab.environment import import_torchvision

SHAPE = (5, 4, 4)


def encode(values) -> bytes:
    values = np.asarray(values, np.uint8)
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


IMAGES = encode(np.arange(80).reshape(SHAPE))
WHOLE = (IMAGES, gzip.compress(IMAGES, mtime=0))


class Tiny(Mnist):
    """Six and three images of 4 x 4."""

    rows: ClassVar = {"train": 6, "t10k": 3}
    side = 4


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (6, 4, 4)), [0, 1, 2, 0, 1, 9], rng.integers(0, 256, (3, 4, 4)), [2, 1, 0]]
    return {name: encode(values) for name, values in zip(Tiny("mnist").files, arrays, strict=True)}


def put(folder, contents, ending=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_on_disk_are_read(tmp_path, contents, folder, ending):
    put(tmp_path / folder, contents, ending)
    source = Tiny("mnist")
    assert source.find(tmp_path) == tmp_path / folder
    data = source.load(tmp_path)
    assert data.train_images.shape == (6, 1, 4, 4)
    assert data.train_images.numpy().tobytes() == contents["train-images-idx3-ubyte"][16:]
    assert data.train_labels.dtype == torch.int64
    assert data.test_labels.tolist() == [2, 1, 0]


def test_a_label_without_a_class_is_named(tmp_path, contents):
    put(tmp_path / "mnist", contents | {"t10k-labels-idx1-ubyte": encode([0, 1, 10])})
    with pytest.raises(DamagedFileError, match="label 10, above 9") as caught:
        Tiny("mnist").load(tmp_path)
    assert caught.value.path == tmp_path / "mnist" / "t10k-labels-idx1-ubyte"


def test_the_real_shapes():
    for source in (Mnist("mnist"), FashionMnist("fashion-mnist")):
        assert list(source.files.values()) == [(60000, 28, 28), (60000,), (10000, 28, 28), (10000,)]
        assert len(source.class_names) == source.class_count == 10


def read(folder, content: bytes, shape=SHAPE) -> torch.Tensor:
    path = folder / "file"
    path.write_bytes(content)
    return read_idx(path, shape)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not start like"),
        (b"GIF8" + IMAGES[4:], "does not start like"),
        (encode(np.zeros((5, 4, 5))), "does not start like an idx file of 5 x 4 x 4"),
        (encode(np.zeros((5, 16))), "does not start like"),
        (IMAGES[:2] + b"\x0d" + IMAGES[3:], "does not start like"),
        (IMAGES[:-1], "cut short"),
        (IMAGES + b"!", "too long"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_each_kind_of_damage_is_named(tmp_path, content, problem, zipped):
    with pytest.raises(DamagedFileError, match=problem) as caught:
        read(tmp_path, gzip.compress(content) if zipped else content)
    assert caught.value.path == tmp_path / "file"


def test_gzip_must_be_whole(tmp_path):
    zipped = bytearray(gzip.compress(IMAGES))
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read(tmp_path, bytes(zipped[:-4]))
    zipped[-8] ^= 1  # in gzip's checksum
    with pytest.raises(DamagedFileError, match="CRC"):
        read(tmp_path, bytes(zipped))


def test_a_gzip_bomb_is_not_inflated(tmp_path):
    squeeze = zlib.compressobj(wbits=31)
    parts = [squeeze.compress(IMAGES), *(squeeze.compress(bytes(1 << 20)) for _ in range(100)), squeeze.flush()]
    with bounded(megabytes=16), pytest.raises(DamagedFileError, match="bytes"):
        read(tmp_path, b"".join(parts))


@fuzz(150)
@given(content=damaged(WHOLE), more=st.binary(max_size=3))
def test_fuzz_damaged_files_give_the_shape_or_are_named(tmp_path, content, more):
    path = tmp_path / "file"
    path.write_bytes(content + more)
    values = answer(lambda: read_idx(path, SHAPE), names=path)
    assert values is None or values.shape == SHAPE


@pytest.fixture
def site(monkeypatch):
    """A web server on this machine: pages by path."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(page or b"")

        do_HEAD = do_GET  # noqa: N815  (the name that the server looks for)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    torchvision = import_torchvision().datasets.MNIST
    monkeypatch.setattr(torchvision, "mirrors", [f"http://127.0.0.1:{server.server_address[1]}/"])
    yield pages
    server.shutdown()
    server.server_close()
    thread.join()


def publish(pages, contents, monkeypatch):
    packed = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}
    digests = [(name, hashlib.md5(content).hexdigest()) for name, content in packed.items()]
    monkeypatch.setattr(import_torchvision().datasets.MNIST, "resources", digests)
    pages.update({f"/{name}": content for name, content in packed.items()})


def test_what_is_not_on_disk_is_downloaded(tmp_path, site, contents, monkeypatch):
    publish(site, contents, monkeypatch)
    data = Tiny("mnist").load(tmp_path / "new")
    assert data.test_labels.tolist() == [2, 1, 0]
    site.clear()
    assert Tiny("mnist").load(tmp_path / "new").train_labels.tolist() == data.train_labels.tolist()


def test_a_download_must_have_the_published_md5(tmp_path, site, contents, monkeypatch):
    publish(site, contents, monkeypatch)
    site["/train-labels-idx1-ubyte.gz"] = gzip.compress(encode([1] * 6))
    with pytest.raises(DatasetNotFoundError, match="train-labels-idx1-ubyte"):
        Tiny("mnist").load(tmp_path)
    assert Tiny("mnist").find(tmp_path) is None


def test_a_missing_dataset_says_what_to_put_where_and_what_was_tried(tmp_path, site, contents):
    put(tmp_path / "mnist", {"train-images-idx3-ubyte": contents["train-images-idx3-ubyte"]})
    with pytest.raises(DatasetNotFoundError) as caught:
        Tiny("mnist").load(tmp_path)
    assert caught.value.folder == tmp_path / "mnist"
    assert len(caught.value.files) == 4
    for part in (str(tmp_path / "mnist"), "train-labels-idx1-ubyte.gz", "ELIGN_DATA", "404"):
        assert part in str(caught.value)
