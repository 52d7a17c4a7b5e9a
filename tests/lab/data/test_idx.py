import gzip
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.idx import MAX_VALUES, IdxFile, read_content, read_idx

ARRAYS = stn.arrays(
    np.uint8, st.one_of(stn.array_shapes(min_dims=1, max_dims=1), stn.array_shapes(min_dims=3, max_dims=3))
)
# The folder of one test is shared by its examples, and each example overwrites its file: that is safe.
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def header(*shape: int, kind: int = 8) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, kind, len(shape), *shape)


def read(folder, content: bytes) -> torch.Tensor:
    path = folder / "file"
    path.write_bytes(content)
    return read_idx(path)


@SHARED_FOLDER
@given(values=ARRAYS, zipped=st.booleans())
def test_what_is_written_is_read(tmp_path, encode_idx, values, zipped):
    content = encode_idx(values)
    result = read(tmp_path, gzip.compress(content) if zipped else content)
    assert result.dtype == torch.uint8
    np.testing.assert_array_equal(result.numpy(), values)


def test_larger_than_one_chunk(tmp_path, encode_idx):
    values = np.random.default_rng(0).integers(0, 256, (3, 700, 1000)).astype(np.uint8)
    np.testing.assert_array_equal(read(tmp_path, encode_idx(values)).numpy(), values)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not start like"),
        (b"\0\0\x08", "does not start like"),
        (b"GIF8" + b"x" * 100, "does not start like"),
        (header(3, kind=13) + bytes(3), "unsigned bytes"),
        (header(2, 2) + bytes(4), "1 or 3 dimensions"),
        (header(2, 2, 2)[:9], "ends within its header"),
        (header(4) + bytes(3), "cut short: 12 bytes declared, 11 found"),
        (header(4) + bytes(5), "goes on after"),
        (header(0), "not between"),
        (header(0, 2**32 - 1, 5), "not between"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1), "not between"),
        (header(MAX_VALUES + 1), "not between"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_each_kind_of_damage_is_named(tmp_path, content, problem, zipped):
    with pytest.raises(DamagedFileError, match=problem) as caught:
        read(tmp_path, gzip.compress(content) if zipped else content)
    assert str(tmp_path / "file") in str(caught.value)


def test_damage_right_at_the_end_of_a_chunk_is_noticed(tmp_path):
    content = header(1 << 20) + bytes(1 << 20)
    with pytest.raises(DamagedFileError, match="goes on after"):
        read(tmp_path, content + b"!")
    zipped = bytearray(gzip.compress(content))
    zipped[-8] ^= 1  # in gzip's checksum
    with pytest.raises(DamagedFileError, match="CRC"):
        read(tmp_path, bytes(zipped))


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_a_huge_declaration_allocates_nothing(tmp_path, zipped):
    content = header(MAX_VALUES) + bytes(10)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match="cut short"):
            read(tmp_path, gzip.compress(content) if zipped else content)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_is_not_inflated(tmp_path):
    squeeze = zlib.compressobj(wbits=31)
    block = bytes(1 << 20)
    parts = [squeeze.compress(header(100)), *(squeeze.compress(block) for _ in range(256)), squeeze.flush()]
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFileError, match="goes on after"):
            read(tmp_path, b"".join(parts))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@SHARED_FOLDER
@given(content=st.binary(max_size=200), start=st.sampled_from([b"", b"\0\0\x08\x01", b"\0\0\x08\x03", b"\x1f\x8b\x08"]))
def test_any_bytes_give_a_tensor_or_the_one_error(tmp_path, content, start):
    try:
        result = read(tmp_path, start + content)
    except DamagedFileError:
        return
    assert result.numel() + 4 + 4 * result.ndim == len(start + content)


@SHARED_FOLDER
@given(values=ARRAYS, zipped=st.booleans(), data=st.data())
def test_every_truncation_is_noticed(tmp_path, encode_idx, values, zipped, data):
    content = gzip.compress(encode_idx(values)) if zipped else encode_idx(values)
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(DamagedFileError):
        read(tmp_path, content[:cut])


@SHARED_FOLDER
@given(values=ARRAYS, data=st.data())
def test_a_flipped_bit_in_gzip_is_noticed_or_harmless(tmp_path, encode_idx, values, data):
    content = bytearray(gzip.compress(encode_idx(values)))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        result = read(tmp_path, bytes(content))
    except DamagedFileError:
        return
    np.testing.assert_array_equal(result.numpy(), values)  # e.g. the time in gzip's header


def test_missing_files_and_folders_are_the_same_error(tmp_path):
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_idx(tmp_path / "nowhere")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_idx(tmp_path)


def test_size_and_checksum_of_a_known_file(tmp_path, tiny_spec, tiny_contents):
    file = tiny_spec.files[0]
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(tiny_contents[file.name]))
    content = read_content(path)
    assert file.size == len(content)
    assert file.is_public(content)
    assert not IdxFile(file.name, file.shape, "0" * 64).is_public(content)
