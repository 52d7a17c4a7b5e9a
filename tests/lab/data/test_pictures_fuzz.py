"""Pictures from anywhere: pixels or the named error."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from PIL import Image
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.pictures import MAX_PIXELS, centre_crop, random_crop, read_picture

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)


def encoded(form: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, format=form)
    return buffer.getvalue()


WHOLE = tuple(encoded(form) for form in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"))


@pytest.mark.filterwarnings("ignore")  # Pillow warns of much that it can read all the same
@fuzz(200)
@given(content=damaged(WHOLE))
def test_damaged_pictures_give_pixels_or_are_named(tmp_path, content):
    path = tmp_path / "picture.jpg"
    path.write_bytes(content)
    image = answer(lambda: read_picture(path), names=path, megabytes=700)
    if image is not None:
        with bounded():
            assert centre_crop(image, 8).shape == (3, 8, 8)
            assert random_crop(image, 8, np.random.default_rng(0)).shape == (3, 8, 8)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def test_a_header_that_asks_for_gigabytes_is_refused_before_they_are_taken(tmp_path):
    (tmp_path / "x.png").write_bytes(png(MAX_PIXELS // 64 + 1, 64))
    with bounded(megabytes=48), pytest.raises(DamagedFileError, match="scale it down"):
        read_picture(tmp_path / "x.png")


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
def test_a_long_line_is_cropped_in_little_memory(size):
    with bounded(megabytes=100):
        assert centre_crop(Image.new("RGB", size, (9, 8, 7)), 224)[:, 0, 0].tolist() == [9, 8, 7]


def test_other_formats_are_refused_whatever_the_file_is_called(tmp_path):
    # Pillow would ask Ghostscript to run this one.
    (tmp_path / "x.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(DamagedFileError, match="cannot be read as a picture"):
        read_picture(tmp_path / "x.jpg")
