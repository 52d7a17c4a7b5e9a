import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.pictures import centre_crop, random_box, random_crop, read_picture, read_small

RAMP = np.linspace(0, 255, 12 * 10).astype(np.uint8).reshape(10, 12)
COLOURS = np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8)


def saved(path: Path, image: Image.Image) -> Path:
    image.save(path)
    return path


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.array(image)


def test_colours_come_as_they_are(tmp_path):
    assert (pixels(read_picture(saved(tmp_path / "x.png", Image.fromarray(COLOURS)))) == COLOURS).all()


def test_grey_pictures_get_three_equal_colours(tmp_path):
    expected = np.stack([RAMP] * 3, axis=2)
    assert (pixels(read_picture(saved(tmp_path / "x.png", Image.fromarray(RAMP)))) == expected).all()
    alpha = Image.merge("LA", (Image.fromarray(RAMP), Image.fromarray(RAMP[::-1].copy())))
    assert (pixels(read_picture(saved(tmp_path / "y.png", alpha))) == expected).all()


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_cut_off(tmp_path, ending):
    deep = RAMP.astype(np.uint16) * 257
    seen = pixels(read_picture(saved(tmp_path / f"x.{ending}", Image.fromarray(deep))))
    assert (seen == np.stack([RAMP] * 3, axis=2)).all()


def test_transparency_is_dropped(tmp_path):
    rgba = np.dstack([COLOURS, RAMP])
    assert (pixels(read_picture(saved(tmp_path / "x.png", Image.fromarray(rgba)))) == COLOURS).all()


def test_palettes_and_bitmaps(tmp_path):
    palette = Image.fromarray(COLOURS).quantize(200)
    expected = np.array(palette.convert("RGB"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (pixels(read_picture(saved(tmp_path / "x.gif", palette))) == expected).all()
        palette.save(tmp_path / "y.png", transparency=bytes(range(200)))
        assert (pixels(read_picture(tmp_path / "y.png")) == expected).all()
    bits = Image.fromarray(RAMP > 100)
    assert set(np.unique(pixels(read_picture(saved(tmp_path / "z.png", bits))))) == {0, 255}


def test_printing_colours_become_red_green_and_blue(tmp_path):
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    path = tmp_path / "x.jpg"
    red.save(path, quality=95)
    seen = pixels(read_picture(path)).reshape(-1, 3).mean(axis=0)
    assert seen[0] > 200
    assert seen[1:].max() < 60


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.tile(COLOURS, (10, 10, 1))).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"", b"no picture", jpeg()[:200], jpeg()[:-300], b"\xff\xd8" + bytes(100)])
def test_a_broken_picture_is_named(tmp_path, content):
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="cannot be read as a picture") as caught:
        read_picture(path)
    assert caught.value.path == path
    assert "remove it" in str(caught.value)
    assert "fetched" not in str(caught.value)


def test_a_picture_that_is_gone_or_of_floating_point_numbers_is_named(tmp_path):
    with pytest.raises(DamagedFileError, match=r"gone\.png"):
        read_picture(tmp_path / "gone.png")
    path = saved(tmp_path / "float.tif", Image.fromarray(RAMP.astype(np.float32) / 255))
    with pytest.raises(DamagedFileError, match="floating-point"):
        read_picture(path)


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (64, 64), (300, 31), (1, 1), (3, 400)])
def test_the_test_crop_is_the_middle_of_the_scaled_picture(width, height):
    # Each pixel holds its place: a ramp stays a ramp when it is scaled, so the middle can be told from its values.
    x, y = np.meshgrid(np.arange(width) / width * 255, np.arange(height) / height * 255)
    picture = Image.fromarray(np.dstack([x, y, 0 * x]).astype(np.uint8))
    seen = centre_crop(picture, 56).double()
    assert seen.shape == (3, 56, 56)
    short = 64  # 56 * 256 / 224
    scaled = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    reference = np.array(picture.resize(scaled, Image.Resampling.BILINEAR))
    top, left = round((scaled[1] - 56) / 2), round((scaled[0] - 56) / 2)
    assert torch.equal(seen, torch.from_numpy(reference[top : top + 56, left : left + 56]).permute(2, 0, 1).double())
    if min(width, height) > 30:
        assert seen[:2, 28, 28] == pytest.approx([127, 127], abs=6)


def boxes(width: int, height: int, count: int = 2000) -> np.ndarray:
    return np.array([random_box(width, height, np.random.default_rng([1, n])) for n in range(count)])


def test_random_parts_lie_inside_and_have_the_shares_and_ratios_asked_for():
    left, top, width, height = boxes(400, 400).T
    assert left.min() >= 0
    assert top.min() >= 0
    assert (left + width).max() <= 400
    assert (top + height).max() <= 400
    share, ratio = width * height / 400**2, width / height
    assert 0.079 < share.min() < 0.1
    assert 0.9 < share.max() <= 1
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.345
    assert abs(np.log(ratio).mean()) < 0.015
    # Uniform in 0.08..1, but for the largest, of which some do not fit in and are drawn again.
    small = share[share < 0.7]
    assert np.histogram(small, bins=5, range=(0.08, 0.7))[0] == pytest.approx(len(small) / 5, rel=0.2)
    # Every place is as likely: the free room to the left is on average as large as that to the right.
    assert (left / np.maximum(400 - width, 1)).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(1000, 10, (493, 0, 13, 10)), (10, 1000, (0, 493, 10, 13)), (1, 1, (0, 0, 1, 1))],
)
def test_a_picture_that_is_too_narrow_gives_its_middle(width, height, expected):
    found = boxes(width, height, 300).tolist()
    assert list(expected) in found
    assert all(left >= 0 and left + w <= width and top >= 0 and top + h <= height for left, top, w, h in found)
    assert all(w > 0 and h > 0 for _, _, w, h in found)


def test_a_random_crop_is_the_part_scaled_and_sometimes_mirrored():
    picture = Image.fromarray(np.tile(COLOURS, (5, 5, 1)))
    mirrored = 0
    for n in range(40):
        left, top, width, height = random_box(*picture.size, np.random.default_rng(n))
        part = picture.crop((left, top, left + width, top + height)).resize((20, 20), Image.Resampling.BILINEAR)
        plain = torch.from_numpy(np.array(part)).permute(2, 0, 1)
        seen = random_crop(picture, 20, np.random.default_rng(n))
        assert torch.equal(seen, plain) or torch.equal(seen, plain.flip(2))
        mirrored += torch.equal(seen, plain.flip(2))
    assert 10 <= mirrored <= 30


def test_small_pictures_are_read_into_memory(tmp_path):
    squares = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    paths = [saved(tmp_path / f"{n}.png", Image.fromarray(square)) for n, square in enumerate(squares)]
    assert torch.equal(read_small(paths, side=8), torch.from_numpy(squares).permute(0, 3, 1, 2))
    odd = saved(tmp_path / "odd.png", Image.fromarray(COLOURS))
    with pytest.raises(DamagedFileError, match=r"odd\.png is damaged: it has 12 x 10 pixels, not 8 x 8"):
        read_small([*paths, odd], side=8)
