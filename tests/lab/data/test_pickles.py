import collections
import os
import pickle
import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.pickles import read_pickle

VALUES = np.arange(12, dtype=np.uint8).reshape(3, 4) + 120  # some are above 127, where encodings differ


def written(path, content, protocol=4):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def python2(shape: tuple[int, int], content: bytes, labels: list[int]) -> bytes:
    """What Python 2 with an old numpy wrote, byte by byte: text is bytes without a name for its encoding."""
    return (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01"
        + b"".join(b"M" + struct.pack("<H", size) for size in shape)
        + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + (b"T" + struct.pack("<I", len(content)) + content)
        + b"tbU\x0bfine_labels]("
        + b"".join(b"K" + bytes([label]) for label in labels)
        + b"eu."
    )


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("key", ["data", b"data"])
@pytest.mark.parametrize("values", [VALUES, np.asfortranarray(VALUES)], ids=["rows", "columns"])
def test_arrays_of_every_protocol_come_back(tmp_path, protocol, key, values):
    content = read_pickle(written(tmp_path / "file", {key: values, "names": ["a", b"b"], "n": [1, 2]}, protocol))
    assert content["data"].shape == (3, 4)
    assert np.array_equal(content["data"].array(), VALUES)
    assert content["names"] == ["a", b"b"]
    assert content["n"] == [1, 2]


def test_the_old_module_path_and_pythons_two_text(tmp_path):
    (tmp_path / "file").write_bytes(python2((3, 4), VALUES.tobytes(), [2, 0, 1]))
    content = read_pickle(tmp_path / "file")
    assert np.array_equal(content["data"].array(), VALUES)
    assert content["fine_labels"] == [2, 0, 1]


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_that_a_pickle_names_is_run(tmp_path, protocol):
    mark = tmp_path / "mark"
    evil = {"data": VALUES, "evil": Evil(os.mkdir, str(mark))}
    pickle.loads(pickle.dumps(evil, protocol=protocol))
    assert mark.is_dir()  # the usual reader runs it
    mark.rmdir()
    with pytest.raises(DamagedFileError, match="mkdir, which is not allowed"):
        read_pickle(written(tmp_path / "file", evil, protocol))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        {"x": Evil(eval, "1 + 1")},
        {"x": Evil(getattr, VALUES, "tofile")},
        {"x": collections.OrderedDict(a=1)},
        {"x": np.float64(1.0)},
        {"x": {1, 2}.__class__},
        {"x": np.load},
        {"data": np.zeros(3)},
        {"data": np.array([{}], dtype=object)},
        {"data": np.zeros(2, dtype=[("a", np.uint8)])},
        {"data": np.arange(3, dtype=np.int8)},
    ],
)
def test_other_names_and_other_arrays_are_refused(tmp_path, content):
    with pytest.raises(DamagedFileError, match="pickle of arrays"):
        read_pickle(written(tmp_path / "file", content))


@pytest.mark.parametrize(
    "stream",
    [
        b"c_codecs\nencode\nVabc\nVrot13\n\x86R.",  # another encoding
        b"c_codecs\nencode\n}Vx\nVy\nsb.",  # sets attributes of a function
        b"cnumpy\nndarray\nN}Vx\nVy\ns\x86b.",  # ... and of a class
        b"cnumpy\ndtype\nN}Vx\nVy\ns\x86b.",
        b"cnumpy.core.multiarray\n_reconstruct\n)\x81K\x01)\x86b.",  # a state that is too short
        b"Vpersistent\nQ.",
        b"\x82\x01.",  # from the registry of extensions
    ],
)
def test_tricks_of_the_pickle_machine_are_refused(tmp_path, stream):
    (tmp_path / "file").write_bytes(stream)
    with pytest.raises(DamagedFileError, match="pickle of arrays"):
        read_pickle(tmp_path / "file")


@pytest.mark.parametrize("shape", [(3, 5), (3, 3)])
def test_an_array_needs_as_many_bytes_as_its_shape_says(tmp_path, shape):
    (tmp_path / "file").write_bytes(python2(shape, VALUES.tobytes(), [1]))
    with pytest.raises(DamagedFileError, match="as many bytes"):
        read_pickle(tmp_path / "file")


@pytest.mark.parametrize("content", [[1, 2], "text", None])
def test_something_else_than_a_dictionary_is_refused(tmp_path, content):
    with pytest.raises(DamagedFileError, match="not a dictionary"):
        read_pickle(written(tmp_path / "file", content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DamagedFileError, match="nowhere"):
        read_pickle(tmp_path / "nowhere")


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_damage_gives_values_or_the_named_error(tmp_path_factory, place, value):
    content = bytearray(python2((3, 4), VALUES.tobytes(), [2, 0, 1]))
    content[place % len(content)] = value
    for damaged in (content, content[: place % len(content)]):
        path = tmp_path_factory.getbasetemp() / "damaged"
        path.write_bytes(damaged)
        with suppress(DamagedFileError):
            assert isinstance(read_pickle(path), dict)


@pytest.mark.skipif(sys.platform != "linux", reason="limiting memory works on Linux only")
def test_a_short_pickle_cannot_ask_for_a_large_table(tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
    code = "import sys; from pathlib import Path; from elign.lab.data.pickles import read_pickle; "
    (tmp_path / "file").write_bytes(b"}r\xff\xff\xff\x7f.")  # remembers the dictionary at place 2**31 - 1
    code += "print(read_pickle(Path(sys.argv[1])))"
    run = subprocess.run(
        [sys.executable, "-c", limited + code, str(tmp_path / "file")], capture_output=True, text=True, check=False
    )
    assert run.stdout == "{}\n", run.stderr
