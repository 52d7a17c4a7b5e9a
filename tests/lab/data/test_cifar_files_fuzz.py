"""CIFAR's files in both forms, damaged: images and labels that fit, or the named error."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.data.cifar_files import BINARY, PYTHON, CifarSpec, read_names, read_split
from elign.lab.data.errors import DamagedFileError

ROWS = 4
SPEC = CifarSpec(urls=(), sha256="", archive_bytes=0, classes=3, train=ROWS, test=2, side=2)
TABLE = np.random.default_rng(0).integers(0, 3, (ROWS, 2 + SPEC.pixels)).astype(np.uint8)
PICKLED = {"data": TABLE[:, 2:].copy(), "fine_labels": [0, 1, 2, 1], "coarse_labels": [0, 0, 0, 0]}
FILES = {
    BINARY: (TABLE.tobytes(),),
    PYTHON: tuple(pickle.dumps(PICKLED, protocol=protocol) for protocol in (0, 2, 4)),
}
NAMES = {BINARY: (b"apple\nbear\ncat\n",), PYTHON: (pickle.dumps({"fine_label_names": ["apple", b"bear", "cat"]}),)}


@fuzz(80)
@given(data=st.data(), layout=st.sampled_from([BINARY, PYTHON]))
def test_damaged_images_fit_or_are_named(tmp_path, data, layout):
    path = tmp_path / "file"
    path.write_bytes(data.draw(damaged(FILES[layout])))
    found = answer(lambda: read_split(layout, path, ROWS, SPEC), names=path)
    if found is not None:
        images, labels = found
        assert images.shape == (ROWS, 3, 2, 2)
        assert labels.shape == (ROWS,)
        assert 0 <= int(labels.min()) <= int(labels.max()) < SPEC.classes


@fuzz(80)
@given(data=st.data(), layout=st.sampled_from([BINARY, PYTHON]))
def test_damaged_names_are_three_texts_or_the_file_is_named(tmp_path, data, layout):
    path = tmp_path / "file"
    path.write_bytes(data.draw(damaged(NAMES[layout], text=layout == BINARY)))
    found = answer(lambda: read_names(layout, path, 3), names=path)
    assert found is None or (len(found) == 3 and all(name.encode() for name in found))


@pytest.mark.parametrize("name", ["\ud800", ["a"] * 3], ids=["no text", "a list"])
def test_a_name_must_be_text(tmp_path, name):
    (tmp_path / "file").write_bytes(pickle.dumps({"fine_label_names": ["a", "b", name]}))
    with pytest.raises(DamagedFileError, match="text"):
        read_names(PYTHON, tmp_path / "file", 3)


def test_names_are_not_written_out_before_they_are_known_to_be_text(tmp_path):
    lists = b"]" + b"2q\x01]h\x01ah\x01a" * 60  # each holds the one before twice
    (tmp_path / "file").write_bytes(b"\x80\x02}X\x10\0\0\0fine_label_names](" + lists + b"es.")
    with bounded(), pytest.raises(DamagedFileError):
        read_names(PYTHON, tmp_path / "file", 3)
