"""IDX files from anywhere: a tensor or the named error, whatever the bytes are."""

import gzip
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.data.idx import read_idx

IMAGES = struct.pack(">4B3I", 0, 0, 8, 3, 5, 4, 4) + np.arange(80, dtype=np.uint8).tobytes()
LABELS = struct.pack(">4BI", 0, 0, 8, 1, 7) + bytes(range(7))
WHOLE = (IMAGES, LABELS, gzip.compress(IMAGES, mtime=0), gzip.compress(LABELS, mtime=0))


@fuzz(150)
@given(content=damaged(WHOLE))
def test_damaged_files_give_a_tensor_or_are_named(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    values = answer(lambda: read_idx(path), names=path)
    assert values is None or values.numel() <= max(map(len, WHOLE)) * 100


@fuzz(60)
@given(kind=st.integers(0, 255), shape=st.lists(st.integers(0, 2**32 - 1), max_size=5), zipped=st.booleans())
def test_absurd_headers_are_named_before_anything_is_allocated(tmp_path, kind, shape, zipped):
    content = struct.pack(f">4B{len(shape)}I", 0, 0, kind, len(shape), *shape) + bytes(16)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if zipped else content)
    values = answer(lambda: read_idx(path), names=path)
    assert values is None or values.numel() == 16
