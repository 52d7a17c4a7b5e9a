import dataclasses
import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from elign.lab.data import cifar100, load_dataset
from elign.lab.data.cifar100 import CIFAR100, load_cifar100
from elign.lab.data.cifar_files import BINARY, PYTHON, CifarSpec
from elign.lab.data.errors import DamagedFileError, DatasetNotFoundError

ROWS = {"train": 6, "test": 3}
LABELS = {"train": [0, 1, 2, 0, 1, 2], "test": [2, 1, 0]}
PIXELS = {name: np.random.default_rng(rows).integers(0, 256, (rows, 12), dtype=np.uint8) for name, rows in ROWS.items()}
SPEC = CifarSpec(urls=(), sha256="", archive_bytes=0, classes=3, train=6, test=3, side=2)


def binary_files() -> dict[str, bytes]:
    contents = {"fine_label_names.txt": b"ape\nbee\ncat\n\n"}
    for name in ("train", "test"):
        coarse = np.full(ROWS[name], 99, dtype=np.uint8)  # not used, so it may be anything
        contents[f"{name}.bin"] = np.c_[coarse, np.array(LABELS[name], np.uint8), PIXELS[name]].tobytes()
    return contents


def python_files() -> dict[str, bytes]:
    contents = {"meta": pickle.dumps({b"fine_label_names": [b"ape", b"bee", b"cat"]})}
    for name in ("train", "test"):
        contents[name] = pickle.dumps({b"data": PIXELS[name], b"fine_labels": LABELS[name], b"filenames": [b"x.png"]})
    return contents


FILES = {BINARY: binary_files(), PYTHON: python_files()}
LAYOUTS = pytest.mark.parametrize("layout", [BINARY, PYTHON], ids=["binary", "python"])


def put(root: Path, layout, contents) -> None:
    (root / layout.folder).mkdir(parents=True)
    for name, content in contents.items():
        (root / layout.folder / name).write_bytes(content)


def archived(layout, contents, *, also=()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in [*((f"{layout.folder}/{name}", content) for name, content in contents.items()), *also]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def served(site, content: bytes) -> CifarSpec:
    site.pages["/archive"] = content
    digest = hashlib.sha256(content).hexdigest()
    return dataclasses.replace(SPEC, urls=(f"{site.url}/archive",), sha256=digest, archive_bytes=len(content))


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root).as_posix()) for path in root.rglob("*") if path.is_file())


def check(data) -> None:
    assert data.name == "cifar100"
    assert data.classes == ("ape", "bee", "cat")
    assert data.image_shape == (3, 2, 2)
    for name in ("train", "test"):
        images, labels = getattr(data, f"{name}_images"), getattr(data, f"{name}_labels")
        assert labels.tolist() == LABELS[name]
        assert images.is_contiguous()
        assert torch.equal(images, torch.from_numpy(PIXELS[name]).reshape(-1, 3, 2, 2))


@LAYOUTS
def test_a_folder_on_disk_is_used(tmp_path, layout):
    put(tmp_path, layout, FILES[layout])
    check(load_cifar100(SPEC, data_dir=tmp_path))


@LAYOUTS
def test_classes_without_names_are_numbered(tmp_path, layout):
    put(tmp_path, layout, {name: content for name, content in FILES[layout].items() if name != layout.names})
    assert load_cifar100(SPEC, data_dir=tmp_path).classes == ("class 0", "class 1", "class 2")


@LAYOUTS
def test_an_archive_on_disk_is_unpacked_by_name_and_kept(tmp_path, layout):
    content = archived(layout, FILES[layout], also=[("../evil", b"evil"), (f"{layout.folder}/readme", b"read me")])
    root = tmp_path / "data"
    root.mkdir()
    (root / layout.archive).write_bytes(content)
    check(load_cifar100(SPEC, data_dir=root))
    assert tree(tmp_path) == sorted(
        f"data/{name}" for name in [layout.archive, *(f"{layout.folder}/{file}" for file in FILES[layout])]
    )
    (root / layout.archive).unlink()
    check(load_cifar100(SPEC, data_dir=root))


def test_what_is_not_on_disk_is_fetched_once(site, tmp_path):
    spec = served(site, archived(BINARY, FILES[BINARY]))
    for _ in range(2):
        check(load_cifar100(spec, data_dir=tmp_path))
    assert site.asked == ["/archive"]
    assert tree(tmp_path) == sorted(f"{BINARY.folder}/{name}" for name in FILES[BINARY])


def test_a_fetched_archive_must_be_the_public_one(site, tmp_path):
    spec = dataclasses.replace(served(site, archived(BINARY, FILES[BINARY])), sha256="0" * 64)
    with pytest.raises(DatasetNotFoundError, match="checksum"):
        load_cifar100(spec, data_dir=tmp_path)
    assert tree(tmp_path) == []


@pytest.mark.parametrize("left", ["train.bin", "test.bin"])
def test_an_interrupted_unpacking_is_completed(tmp_path, left):
    put(tmp_path, BINARY, {left: FILES[BINARY][left]})
    (tmp_path / BINARY.archive).write_bytes(archived(BINARY, FILES[BINARY]))
    check(load_cifar100(SPEC, data_dir=tmp_path))


@LAYOUTS
@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_interrupt_at_any_moment_loses_nothing(tmp_path, monkeypatch, layout, done):
    reverse = dict(reversed(FILES[layout].items()))  # the names come last in the archive
    (tmp_path / layout.archive).write_bytes(archived(layout, reverse))
    written = []

    def write(path, content):
        if len(written) == done:
            raise KeyboardInterrupt
        written.append(path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(cifar100, "write_bytes_atomic", write)
        with pytest.raises(KeyboardInterrupt):
            load_cifar100(SPEC, data_dir=tmp_path)
    check(load_cifar100(SPEC, data_dir=tmp_path))


def test_a_users_own_file_is_neither_overwritten_nor_mixed(site, tmp_path):
    own = bytes(len(FILES[BINARY]["train.bin"]))
    put(tmp_path, BINARY, {"train.bin": own})
    with pytest.raises(DatasetNotFoundError, match="is not filled up") as caught:
        load_cifar100(served(site, archived(BINARY, FILES[BINARY])), data_dir=tmp_path)
    assert caught.value.files == ("cifar-100-binary/test.bin",)
    assert site.asked == []
    (tmp_path / BINARY.archive).write_bytes(archived(BINARY, FILES[BINARY]))
    with pytest.raises(DamagedFileError, match=r"not the one in cifar-100-binary\.tar\.gz"):
        load_cifar100(SPEC, data_dir=tmp_path)
    assert (tmp_path / BINARY.folder / "train.bin").read_bytes() == own


def test_a_missing_dataset_says_what_to_put_where_and_survives_pickling(tmp_path):
    with pytest.raises(DatasetNotFoundError) as caught:
        load_cifar100(SPEC, data_dir=tmp_path)
    parts = (str(tmp_path), BINARY.archive, PYTHON.archive, "cifar-100-binary/train.bin", "ELIGN_DATA", "no address")
    for part in parts:
        assert part in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_folder_that_cannot_be_written_to_is_found_out_first(site, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DatasetNotFoundError, match="cannot be written"):
        load_cifar100(served(site, archived(BINARY, FILES[BINARY])), data_dir=tmp_path)
    assert site.asked == []


TRAIN = FILES[BINARY]["train.bin"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("train.bin", TRAIN[:-1], "83 bytes, not 84"),
        ("train.bin", TRAIN + b"!", "85 bytes"),
        ("test.bin", b"", "0 bytes"),
        ("train.bin", TRAIN[:1] + b"\x03" + TRAIN[2:], "fine label 3, above 2"),
        ("fine_label_names.txt", b"ape\nbee\n", "names 2 classes, not 3"),
        ("fine_label_names.txt", b"ape\nbee\n\xff\n", "cannot be read"),
    ],
)
def test_a_damaged_binary_file_is_named(tmp_path, name, content, problem):
    put(tmp_path, BINARY, FILES[BINARY] | {name: content})
    with pytest.raises(DamagedFileError, match=problem) as caught:
        load_cifar100(SPEC, data_dir=tmp_path)
    assert caught.value.path == tmp_path / BINARY.folder / name


GOOD = {"data": PIXELS["train"], "fine_labels": LABELS["train"]}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("train", {"fine_labels": LABELS["train"]}, "not 6 images"),
        ("train", GOOD | {"data": PIXELS["test"]}, "not 6 images of 12"),
        ("train", GOOD | {"data": PIXELS["train"].tolist()}, "not 6 images"),
        ("train", {"data": PIXELS["train"]}, "fine_labels"),
        ("train", GOOD | {"fine_labels": [0] * 5}, "fine_labels are not 6"),
        ("train", GOOD | {"fine_labels": [0, 0, 0, 0, 0, "0"]}, "whole numbers"),
        ("train", GOOD | {"fine_labels": [0, 1, 2, 3, 0, 0]}, r"outside 0\.\.2"),
        ("train", GOOD | {"fine_labels": [0, 1, 2, -1, 0, 0]}, r"outside 0\.\.2"),
        ("train", GOOD | {"fine_labels": [0, 1, 2, 1 << 80, 0, 0]}, r"outside 0\.\.2"),
        ("test", [1], "not a dictionary"),
        ("meta", {}, "no list fine_label_names"),
        ("meta", {"fine_label_names": ["a"]}, "names 1 classes"),
    ],
)
def test_a_damaged_python_file_is_named(tmp_path, name, content, problem):
    put(tmp_path, PYTHON, FILES[PYTHON] | {name: pickle.dumps(content)})
    with pytest.raises(DamagedFileError, match=problem) as caught:
        load_cifar100(SPEC, data_dir=tmp_path)
    assert caught.value.path == tmp_path / PYTHON.folder / name


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_nothing_in_a_malicious_file_is_run(tmp_path, name):
    evil = pickle.dumps(GOOD | {"fine_label_names": ["a", "b", "c"], "evil": Evil(str(tmp_path / "mark"))})
    put(tmp_path, PYTHON, FILES[PYTHON] | {name: evil})
    with pytest.raises(DamagedFileError, match="not allowed"):
        load_cifar100(SPEC, data_dir=tmp_path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ({"train.bin": TRAIN}, "lacks cifar-100-binary/test.bin"),
        (FILES[BINARY] | {"train.bin": TRAIN + b"!"}, "85 bytes, not 84"),
        (FILES[BINARY] | {"fine_label_names.txt": bytes(1 << 17)}, "above"),
    ],
)
def test_an_archive_of_something_else_is_refused_before_it_is_unpacked(tmp_path, contents, problem):
    (tmp_path / BINARY.archive).write_bytes(archived(BINARY, contents))
    with pytest.raises(DamagedFileError, match=problem) as caught:
        load_cifar100(SPEC, data_dir=tmp_path)
    assert caught.value.path == tmp_path / BINARY.archive
    assert tree(tmp_path) == [BINARY.archive]


def test_the_real_specification():
    assert CIFAR100.binary_bytes(CIFAR100.train) == 153_700_000
    assert CIFAR100.binary_bytes(CIFAR100.test) == 30_740_000
    assert len(CIFAR100.sha256) == 64


def test_the_real_data(tmp_path, shared_data):
    folder = shared_data
    if not ((folder / "cifar100-webp.tar").is_file() and (folder / "unpack").is_file()):
        pytest.skip("no copy of CIFAR-100: ELIGN_SHARED_DATA names no folder with cifar100-webp.tar and unpack")
    pytest.importorskip("PIL", reason="Pillow is needed to unpack the copy of CIFAR-100")
    subprocess.run([sys.executable, str(folder / "unpack"), str(tmp_path), "cifar100"], check=True, capture_output=True)
    data = load_dataset("cifar100", data_dir=tmp_path)
    assert data.train_images.shape == (50000, 3, 32, 32)
    assert data.test_images.shape == (10000, 3, 32, 32)
    assert data.train_labels.bincount().tolist() == [500] * 100
    assert data.test_labels.bincount().tolist() == [100] * 100
    assert data.classes[0] == "apple"
    assert data.classes[99] == "worm"
    # Known statistics of the training set: the mean of each colour plane.
    mean = data.train_images.float().mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor([0.5071, 0.4866, 0.4409]), atol=2e-4)
