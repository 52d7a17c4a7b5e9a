"""Pictures in files: what is read, how it is cropped, and the splits that serve it."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.data.base import IMAGENET_MEAN, IMAGENET_STD, DamagedFileError
from elign.lab.data.folders import ImageList, OwnFolder
from elign.lab.data.pictures import (
    MAX_PIXELS,
    FolderSplit,
    centre_crop,
    random_box,
    random_crop,
    read_picture,
    read_small,
)

RAMP = np.linspace(0, 255, 12 * 10).astype(np.uint8).reshape(10, 12)
COLOURS = np.random.default_rng(0).integers(0, 256, (10, 12, 3), dtype=np.uint8)


def saved(path: Path, image: Image.Image) -> Path:
    image.save(path)
    return path


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.array(image)


GREY = np.stack([RAMP] * 3, axis=2)
PALETTE = Image.fromarray(COLOURS).quantize(200)


@pytest.mark.parametrize(
    ("image", "name", "expected"),
    [
        (Image.fromarray(COLOURS), "x.png", COLOURS),
        (Image.fromarray(np.dstack([COLOURS, RAMP])), "x.png", COLOURS),  # with transparency
        (Image.fromarray(RAMP), "x.png", GREY),
        (Image.merge("LA", (Image.fromarray(RAMP), Image.fromarray(RAMP[::-1].copy()))), "x.png", GREY),
        (Image.fromarray(RAMP.astype(np.uint16) * 257), "x.png", GREY),  # 16 bits, scaled and not cut off
        (Image.fromarray(RAMP.astype(np.uint16) * 257), "x.tif", GREY),
        (Image.fromarray(RAMP > 100), "x.png", 255 * (GREY > 100)),
        (PALETTE, "x.gif", np.array(PALETTE.convert("RGB"))),
    ],
)
def test_every_kind_of_pixels_becomes_red_green_and_blue(tmp_path, image, name, expected):
    assert (pixels(read_picture(saved(tmp_path / name, image))) == expected).all()


def test_a_palette_with_transparency_gives_no_warning(tmp_path):
    PALETTE.save(tmp_path / "y.png", transparency=bytes(range(200)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (pixels(read_picture(tmp_path / "y.png")) == np.array(PALETTE.convert("RGB"))).all()


def test_printing_colours_become_red_green_and_blue(tmp_path):
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    path = tmp_path / "x.jpg"
    red.save(path, quality=95)
    seen = pixels(read_picture(path)).reshape(-1, 3).mean(axis=0)
    assert seen[0] > 200
    assert seen[1:].max() < 60


def encoded(form: str, image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=form)
    return buffer.getvalue()


def png(width: int, height: int) -> bytes:
    """A file whose header asks for so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


JPEG = encoded("JPEG", Image.fromarray(np.tile(COLOURS, (10, 10, 1))))
# Pillow would ask Ghostscript to run this one.
SCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((content, "") for content in (b"", b"no picture", JPEG[:200], JPEG[:-300], b"\xff\xd8" + bytes(100), SCRIPT)),
        (png(MAX_PIXELS // 64 + 1, 64), ".*scale it down"),  # before the gigabytes are taken that it asks for
        (encoded("TIFF", Image.fromarray(RAMP.astype(np.float32) / 255)), ".*floating-point"),
    ],
)
def test_a_broken_picture_is_named(tmp_path, content, problem):
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    expected = pytest.raises(DamagedFileError, match=f"cannot be read as a picture{problem}")
    with bounded(megabytes=48), expected as caught:
        read_picture(path)
    assert caught.value.path == path
    assert "remove it" in str(caught.value)
    assert "downloaded" not in str(caught.value)


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


PIXELS = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8))
WHOLE = tuple(encoded(form, PIXELS) for form in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"))


@pytest.mark.filterwarnings("ignore")  # Pillow warns of much that it can read all the same
@fuzz(200)
@given(content=damaged(WHOLE))
def test_fuzz_damaged_pictures_give_pixels_or_are_named(tmp_path, content):
    path = tmp_path / "picture.jpg"
    path.write_bytes(content)
    image = answer(lambda: read_picture(path), names=path, megabytes=700)
    if image is not None:
        with bounded():
            assert centre_crop(image, 8).shape == (3, 8, 8)
            assert random_crop(image, 8, np.random.default_rng(0)).shape == (3, 8, 8)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
def test_a_long_line_is_cropped_in_little_memory(size):
    with bounded(megabytes=100):
        assert centre_crop(Image.new("RGB", size, (9, 8, 7)), 224)[:, 0, 0].tolist() == [9, 8, 7]


COUNT = 11


@pytest.fixture
def images(tmp_path) -> ImageList:
    """Eleven training pictures of two classes, of different sizes and kinds."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        height, width = int(rng.integers(20, 60)), int(rng.integers(20, 60))
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for part in ("train", "test"):
            path = tmp_path / part / "ab"[number % 2] / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.convert(("RGB", "L", "RGBA")[number % 3]).save(path)
    return OwnFolder("folder").files(tmp_path, tmp_path).train


def split_of(images: ImageList, **options) -> FolderSplit:
    return FolderSplit(images.path, images.labels, **options)


def collect(split: FolderSplit, rows: torch.Tensor, *, size: int = 4, augment: int | None = None):
    seen, labels = zip(*split.batches(rows, size=size, augment=augment), strict=True)
    return torch.cat(seen), torch.cat(labels)


def test_without_augmentation_it_is_the_middle_of_each_picture_normalised(images):
    rows = torch.tensor([10, 0, 0, 5, 7])
    seen, labels = collect(split_of(images, image_size=16), rows, size=2)
    assert seen.dtype == torch.float32
    assert seen.shape == (5, 3, 16, 16)
    assert labels.tolist() == images.labels[rows].tolist() == [1, 0, 0, 0, 1]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    for image, row in zip(seen, rows.tolist(), strict=True):
        expected = (centre_crop(read_picture(images.path(row)), 16) / 255 - mean) / std
        assert torch.allclose(image, expected, atol=1e-5)


def test_neither_workers_nor_batches_change_a_pass(images, untouched_random_state):
    rows = torch.tensor([3, 3, *range(COUNT)])
    one, _ = collect(split_of(images, image_size=16), rows, size=4, augment=5)
    for workers, size in ((0, 13), (1, 4), (2, 3)):
        other, labels = collect(split_of(images, image_size=16, workers=workers), rows, size=size, augment=5)
        assert torch.equal(one, other)
        assert labels.tolist() == images.labels[rows].tolist()
    assert not torch.equal(one[0], one[1])  # the same picture twice in a pass: two different crops
    split = split_of(images, image_size=16)
    assert (collect(split, rows, augment=6)[0] != one).flatten(1).any(dim=1).all()
    assert collect(split, rows, augment=-1)[0].isfinite().all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_picture_is_named_in_whichever_process_it_is_read(images, workers):
    path = images.path(6)
    path.write_bytes(path.read_bytes()[:100])
    split = split_of(images, image_size=16, workers=workers)
    with pytest.raises(DamagedFileError) as caught:
        collect(split, torch.arange(COUNT))
    assert caught.value.path == path
    good, _ = collect(split, torch.tensor([0, 1, 2]))
    assert len(good) == 3
