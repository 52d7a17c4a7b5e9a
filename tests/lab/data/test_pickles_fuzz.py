"""Pickles from anywhere: plain values or the named error, in short time and little memory."""

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.pickles import read_pickle

CONTENT = {"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"fine_labels": [2, 0, 1], "batch": "x"}
WHOLE = tuple(pickle.dumps(CONTENT, protocol=protocol) for protocol in range(6))
# Thirty bytes that stand for a tuple of 2 ** 60 empty ones: nobody may hash it or write it out.
DEEP = b")" + b"2\x86" * 60


@fuzz(200)
@given(content=damaged(WHOLE))
def test_damaged_files_give_a_dictionary_or_are_named(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    found = answer(lambda: read_pickle(path), names=path)
    assert found is None or all(isinstance(key, str) for key in found)


def repeated_text() -> bytes:
    text = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)
    once = b"c_codecs\nencode\nh\x01X\x06\0\0\0latin1\x86Ra"
    return b"\x80\x02]" + text + b"q\x01a" + once * 1000 + b"."


def many_arrays() -> bytes:
    array = pickle.dumps(np.zeros(1 << 16, dtype=np.uint8), protocol=2)[2:-1]
    return b"\x80\x02](" + array * 70 + b"e."


@pytest.mark.parametrize(
    "stream",
    [
        b"\x80\x05\x96" + struct.pack("<Q", 4 << 30) + b".",
        b"\x80\x02}" + DEEP + b"K\x01s.",
        b"\x80\x02}(" + DEEP + b"K\x01u.",
        b"\x80\x02(" + DEEP + b"K\x01d.",
        b"\x80\x04\x8f(" + DEEP + b"\x90.",
        b"\x80\x04(" + DEEP + b"\x91.",
        b"\x80\x02cnumpy\ndtype\n" + DEEP + b"\x85R.",
        b"\x80\x02c_codecs\nencode\nX\x01\0\0\0a" + DEEP + b"\x86R.",
        repeated_text(),
        many_arrays(),
    ],
    ids=["buffer", "key", "keys", "dict", "set", "frozenset", "dtype", "encoding", "texts", "arrays"],
)
def test_a_short_file_cannot_ask_for_gigabytes_or_for_ever(tmp_path, stream):
    (tmp_path / "file").write_bytes(stream)
    with bounded(megabytes=160), pytest.raises(DamagedFileError, match="pickle of arrays"):
        read_pickle(tmp_path / "file")
