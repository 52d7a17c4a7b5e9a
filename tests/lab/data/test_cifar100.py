"""CIFAR-100 in its binary form, and in its Python form by torchvision: only files with the published md5."""

import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.data.base import DamagedFileError, DatasetNotFoundError, load_dataset
from elign.lab.data.cifar100 import BINARY, PYTHON, Cifar100
from elign.lab.environment import import_torchvision

LABELS = {"train": [0, 1, 2, 0, 1, 2], "test": [2, 1, 0]}
PIXELS = {
    name: np.random.default_rng(len(labels)).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    for name, labels in LABELS.items()
}


class Tiny(Cifar100):
    """Six and three images of three classes."""

    class_count = 3
    rows: ClassVar = {name: len(labels) for name, labels in LABELS.items()}


def binary_files() -> dict[str, bytes]:
    contents = {"fine_label_names.txt": b"ape\nbee\ncat\n\n"}
    for name, labels in LABELS.items():
        coarse = np.full(len(labels), 99, dtype=np.uint8)  # not used, so it may be anything
        contents[f"{name}.bin"] = np.c_[coarse, np.array(labels, np.uint8), PIXELS[name]].tobytes()
    return contents


def python_files() -> dict[str, bytes]:
    contents = {"meta": pickle.dumps({"fine_label_names": ["ape", "bee", "cat"]})}
    for name, labels in LABELS.items():
        contents[name] = pickle.dumps({"data": PIXELS[name], "fine_labels": labels})
    return contents


def put(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


@pytest.fixture
def published(monkeypatch):
    """Make torchvision take these small files for the published ones."""
    cifar, contents = import_torchvision().datasets.CIFAR100, python_files()
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(cifar, "train_list", [["train", md5["train"]]])
    monkeypatch.setattr(cifar, "test_list", [["test", md5["test"]]])
    monkeypatch.setattr(cifar, "meta", cifar.meta | {"md5": md5["meta"]})
    monkeypatch.setattr(cifar, "url", "http://127.0.0.1:9/none")
    return contents


def check(data):
    assert data.classes == ("ape", "bee", "cat")
    assert data.train_labels.tolist() == LABELS["train"]
    assert data.test_labels.tolist() == LABELS["test"]
    for name, images in (("train", data.train_images), ("test", data.test_images)):
        assert images.numpy().tobytes() == PIXELS[name].tobytes()
        assert images.shape[1:] == (3, 32, 32)


def test_both_forms_give_the_same_images(tmp_path, published):
    put(tmp_path / "one" / BINARY, binary_files())
    put(tmp_path / "two" / PYTHON, published)
    for folder in ("one", "two"):
        check(Tiny("cifar100").load(tmp_path / folder))
    (tmp_path / "one" / BINARY / "fine_label_names.txt").unlink()
    assert Tiny("cifar100").load(tmp_path / "one").classes == ("class 0", "class 1", "class 2")


def test_an_archive_is_unpacked(tmp_path, published, monkeypatch):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in published.items():
            member = tarfile.TarInfo(f"{PYTHON}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    monkeypatch.setattr(import_torchvision().datasets.CIFAR100, "tgz_md5", hashlib.md5(buffer.getvalue()).hexdigest())
    archive = tmp_path / f"{PYTHON}.tar.gz"
    archive.write_bytes(buffer.getvalue())
    assert Tiny("cifar100").find(tmp_path) == archive
    check(Tiny("cifar100").load(tmp_path))


def test_an_archive_with_another_md5_is_not_unpacked(tmp_path, published):
    (tmp_path / f"{PYTHON}.tar.gz").write_bytes(b"something else")
    with pytest.raises(DatasetNotFoundError):
        Tiny("cifar100").load(tmp_path)
    assert not (tmp_path / PYTHON).exists()


def test_a_missing_dataset_says_what_to_put_where_and_survives_pickling(tmp_path, published):
    put(tmp_path / BINARY, {"train.bin": binary_files()["train.bin"]})
    with pytest.raises(DatasetNotFoundError) as caught:
        Tiny("cifar100").load(tmp_path)
    for part in (str(tmp_path), "cifar-100-binary/train.bin", "cifar-100-python.tar.gz", "ELIGN_DATA", "download: "):
        assert part in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


TRAIN = binary_files()["train.bin"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("train.bin", TRAIN[:-1], f"{len(TRAIN) - 1} bytes, not {len(TRAIN)}"),
        ("train.bin", TRAIN + b"!", f"{len(TRAIN) + 1} bytes"),
        ("test.bin", b"", "0 bytes"),
        ("train.bin", TRAIN[:1] + b"\x03" + TRAIN[2:], "fine label 3, above 2"),
        ("fine_label_names.txt", b"ape\nbee\n", "names 2 classes, not 3"),
        ("fine_label_names.txt", b"ape\nbee\n\xff\n", "cannot be read"),
        ("fine_label_names.txt", bytes(1 << 17), "131072 bytes"),
    ],
)
def test_a_damaged_binary_file_is_named(tmp_path, name, content, problem):
    put(tmp_path / BINARY, binary_files() | {name: content})
    with pytest.raises(DamagedFileError, match=problem) as caught:
        Tiny("cifar100").load(tmp_path)
    assert caught.value.path == tmp_path / BINARY / name


@fuzz(60)
@given(content=damaged((TRAIN,)))
def test_fuzz_damaged_images_fit_or_are_named(tmp_path, content):
    put(tmp_path / BINARY, binary_files() | {"train.bin": content})
    found = answer(lambda: Tiny("cifar100").load(tmp_path), names=tmp_path / BINARY / "train.bin")
    assert found is None or found.train_images.shape == (6, 3, 32, 32)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_nothing_is_unpickled_whose_md5_is_not_the_published_one(tmp_path, published, name):
    evil = pickle.dumps(pickle.loads(published[name]) | {"evil": Evil(str(tmp_path / "mark"))})
    put(tmp_path / PYTHON, published | {name: evil})
    with pytest.raises(DamagedFileError, match="md5") as caught:
        Tiny("cifar100").load(tmp_path)
    assert caught.value.path == tmp_path / PYTHON / name
    assert not (tmp_path / "mark").exists()


def test_the_real_data(tmp_path, shared_data):
    if not ((shared_data / "cifar100-webp.tar").is_file() and (shared_data / "unpack").is_file()):
        pytest.skip("no copy of CIFAR-100: ELIGN_SHARED_DATA names no folder with cifar100-webp.tar and unpack")
    command = [sys.executable, str(shared_data / "unpack"), str(tmp_path), "cifar100"]
    subprocess.run(command, check=True, capture_output=True)
    data = load_dataset("cifar100", data_dir=tmp_path)
    assert data.train_images.shape == (50000, 3, 32, 32)
    assert data.train_labels.bincount().tolist() == [500] * 100
    assert data.test_labels.bincount().tolist() == [100] * 100
    assert (data.classes[0], data.classes[99]) == ("apple", "worm")
    # Known statistics of the training set: the mean of each colour plane.
    mean = data.train_images.float().mean(dim=(0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor(Cifar100.mean), atol=2e-4)
