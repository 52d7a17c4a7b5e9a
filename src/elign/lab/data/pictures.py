"""One picture: read from its file, cropped as ImageNet is for training and for testing.

The crops are those of the published ImageNet experiments; the random one is by C. Szegedy et al., "Going Deeper with
Convolutions", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from elign.lab.data.errors import DamagedFileError

MAX_PIXELS = 1 << 26
"""A picture with more pixels is refused: decoded, it would take more than 256 MB."""

_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_TRIES = 10
_RESIZE, _CROP = 256, 224
_REMEDY = "replace it by a good copy, or remove it"
_STRIP = 256
# The formats of the file names that are taken (see `image_folders.SUFFIXES`). Pillow knows dozens more by a file's
# content, and asks other programs to decode some of them.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def read_picture(path: Path) -> Image.Image:
    """Decode a picture as RGB with 8 bits per colour, whatever it is in its file; transparency is dropped.

    Raises:
        DamagedFileError: It cannot be read.
    """
    try:
        with Image.open(path, formats=_FORMATS) as image:
            _check_size(*image.size)
            return _rgb(image)
    except DamagedFileError:
        raise
    except (
        Exception
    ) as error:  # a decoder that meets broken bytes may raise nearly anything, and the file must be named
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFileError(path, f"it cannot be read as a picture ({reason})", _REMEDY) from error


def centre_crop(image: Image.Image, size: int) -> Tensor:
    """The middle of a picture: its short side is scaled to 256/224 of `size`, then the central square is cut out.

    Returns:
        `uint8`, (3, size, size).
    """
    short = round(size * _RESIZE / _CROP)
    image = _without_ends(image)
    width, height = image.size
    scaled = (short, short * height // width) if width <= height else (short * width // height, short)
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - size) / 2), round((scaled[1] - size) / 2)
    return _tensor(image.crop((left, top, left + size, top + size)))


def _without_ends(image: Image.Image) -> Image.Image:
    # A line of 1 x 65,000 pixels is a small file; scaled to 256 in width, it would take 13 GB to cut its middle out.
    (width, height), most = image.size, _STRIP * min(image.size)
    if max(width, height) <= most:
        return image
    left, top = max(0, width - most) // 2, max(0, height - most) // 2
    return image.crop((left, top, left + min(width, most), top + min(height, most)))


def random_crop(image: Image.Image, size: int, generator: np.random.Generator) -> Tensor:
    """A random part of a picture, scaled to a square and mirrored with probability 1/2.

    Returns:
        `uint8`, (3, size, size).
    """
    left, top, width, height = random_box(*image.size, generator)
    mirrored = generator.random() < 0.5
    # Cut first and scale then: scaling a part in place would let pixels around it bleed in.
    image = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _tensor(image)


def random_box(width: int, height: int, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random part of a picture.

    Its share of the area is uniform in 0.08..1 and the logarithm of width over height uniform between 3/4 and 4/3; one
    that does not fit in is drawn again, at most ten times in all. After that it is the largest central part whose ratio
    is allowed.
    """
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    for _ in range(_TRIES):
        area = width * height * generator.uniform(*_AREA)
        ratio = math.exp(generator.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(generator.integers(width - w + 1)), int(generator.integers(height - h + 1)), w, h
    ratio = min(max(width / height, _RATIO[0]), _RATIO[1])
    w, h = min(width, max(1, round(height * ratio))), min(height, max(1, round(width / ratio)))
    return (width - w) // 2, (height - h) // 2, w, h


def read_small(paths: Sequence[Path], *, side: int) -> Tensor:
    """Read pictures that all have the same small size into memory: a minute for 200,000 on one core.

    Args:
        paths: The files.
        side: Height and width of the pictures.

    Returns:
        `uint8`, (N, 3, side, side).

    Raises:
        DamagedFileError: One cannot be read or has another size.
    """
    # One after the other: threads were slower, since most of the time goes into Python, not into decoding.
    images = torch.empty(len(paths), 3, side, side, dtype=torch.uint8)
    for row, path in enumerate(paths):
        image = read_picture(path)
        if image.size != (side, side):
            found = f"{image.width} x {image.height}"
            raise DamagedFileError(path, f"it has {found} pixels, not {side} x {side}", _REMEDY)
        images[row] = _tensor(image)
    return images


def _check_size(width: int, height: int) -> None:
    # Pillow takes the memory that a header asks for before it looks for the pixels.
    if width * height > MAX_PIXELS:
        raise ValueError(f"it has {width} x {height} pixels, more than {MAX_PIXELS} in all; scale it down")


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save it with 8 bits per colour")
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow would cut 16 bits off at 255, which turns nearly every picture white.
        grey = (np.asarray(image).astype(np.int64).clip(0, 65535) + 128) // 257
        image = Image.fromarray(grey.astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # what Pillow asks for with a warning
    return image.convert("RGB")


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
