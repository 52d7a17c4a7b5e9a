"""The README's picture."""

from __future__ import annotations

import struct
import subprocess
import sys

from elign.lab.report.picture import draw_toy_picture


def size(path):
    """Width and height from the PNG header."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def test_png_of_the_promised_size(result, embedding, tmp_path):
    path = draw_toy_picture(result, tmp_path / "docs" / "toy.png", embedding=embedding)
    width, height = size(path)
    assert 1400 <= width <= 1600
    assert 400 <= height <= 700
    assert path.stat().st_size < 300_000


def test_same_bytes_for_the_same_result(result, embedding, tmp_path):
    one = draw_toy_picture(result, tmp_path / "one.png", embedding=embedding)
    two = draw_toy_picture(result, tmp_path / "two.png", embedding=embedding)
    assert one.read_bytes() == two.read_bytes()


def test_computes_the_embedding_itself_for_one_seed(build, build_picture, tmp_path):
    picture = build_picture(n=12, m=6, dimension=4, last=3)
    path = draw_toy_picture(build(seeds=1, picture=picture), tmp_path / "toy.png")
    assert size(path)[0] >= 1400


def test_never_imports_pyplot():
    code = "import sys, elign.lab.report.picture; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
