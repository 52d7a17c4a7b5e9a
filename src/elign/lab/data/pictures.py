"""Pictures in files: bounded reading, crops, and splits that read them when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from elign.lab.data.base import IMAGENET_MEAN, IMAGENET_STD, DamagedFileError, Normalise, Split, check_file

MAX_PIXELS = 1 << 26
"""A picture with more pixels is refused: decoded, it would take more than 256 MB."""

_MAX_BYTES = 1 << 30
_AREA, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of random crops
_RESIZE, _CROP = 256, 224
_REMEDY = "replace it by a good copy, or remove it"
_STRIP = 256
# The formats of the file names that are taken (see `folders.SUFFIXES`). Pillow knows dozens more by a file's content,
# and asks other programs to decode some of them.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def read_picture(path: Path) -> Image.Image:
    """Decode a picture as RGB with 8 bits per colour, without transparency; raise `DamagedFileError` if that fails."""
    check_file(path, _MAX_BYTES)
    try:
        with Image.open(path, formats=_FORMATS) as image:
            # Pillow takes the memory that a header asks for before it looks for the pixels.
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"it has {image.width} x {image.height} pixels, more than {MAX_PIXELS} in all; scale it down"
                )
            return _rgb(image)
    except Exception as error:  # a decoder that meets damaged bytes may raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFileError(path, f"it cannot be read as a picture ({reason})", _REMEDY) from error


def cut_strip(image: Image.Image) -> Image.Image:
    """Cut the middle out of a picture that is nearly a line, so that it can be scaled by its short side.

    A line of 1 x 65,000 pixels is a small file; scaled to 256 in width, it would take 13 GB.
    """
    (width, height), most = image.size, _STRIP * min(image.size)
    if max(width, height) <= most:
        return image
    left, top = max(0, width - most) // 2, max(0, height - most) // 2
    return image.crop((left, top, left + min(width, most), top + min(height, most)))


def centre_crop(image: Image.Image, size: int) -> Tensor:
    """Scale the short side to 256/224 of `size`, then cut out the central square: `uint8`, (3, size, size)."""
    short = round(size * _RESIZE / _CROP)
    image = cut_strip(image)
    width, height = image.size
    scaled = (short, short * height // width) if width <= height else (short * width // height, short)
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - size) / 2), round((scaled[1] - size) / 2)
    return _tensor(image.crop((left, top, left + size, top + size)))


def random_crop(image: Image.Image, size: int, generator: np.random.Generator) -> Tensor:
    """Scale a random part to a square and mirror it with probability 1/2: `uint8`, (3, size, size)."""
    left, top, width, height = random_box(*image.size, generator)
    mirrored = generator.random() < 0.5
    # Cut first and scale then: scaling a part in place would let pixels around it bleed in.
    image = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _tensor(image)


def random_box(width: int, height: int, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw left, top, width and height of a random part of a picture.

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
    """Read pictures of `side` x `side` pixels into memory, `uint8` (N, 3, side, side): 200,000 take about a minute."""
    # One after the other: threads were slower, since most of the time goes into Python, not into decoding.
    images = torch.empty(len(paths), 3, side, side, dtype=torch.uint8)
    for row, path in enumerate(paths):
        image = read_picture(path)
        if image.size != (side, side):
            found = f"{image.width} x {image.height}"
            raise DamagedFileError(path, f"it has {found} pixels, not {side} x {side}", _REMEDY)
        images[row] = _tensor(image)
    return images


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


class FolderSplit(Split):
    """A `Split` of pictures in files, normalised with the mean and deviation of ImageNet.

    With augmentation, a picture is cropped and mirrored at random; the choices depend on the seed and the picture's
    position in the pass, so neither the number of processes nor the size of batches changes them. Without, it is the
    picture's middle. `path_of` gives the file in a row; `workers` processes read ahead, or this one if there are none.
    """

    def __init__(
        self, path_of: Callable[[int], Path], labels: Tensor, *, image_size: int = 224, workers: int = 0
    ) -> None:
        self.labels = labels
        self._path_of, self._size, self._workers = path_of, image_size, workers
        self._normalise = Normalise(IMAGENET_MEAN, IMAGENET_STD)

    def _batches(self, rows: Tensor, size: int, augment: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Pass(self._path_of, rows, self._size, augment),
            batch_size=size,
            num_workers=self._workers,
            collate_fn=_stacked,
            # Otherwise the loader draws a seed from the global random numbers, which belong to the caller.
            generator=torch.Generator(),
        )
        for number, images in enumerate(loader):
            if isinstance(images, DamagedFileError):
                raise images
            # Normalised here, not by the processes: bytes are a quarter of what would have to be sent.
            yield self._normalise(images), self.labels[rows[number * size : (number + 1) * size]]


class _Pass(TorchDataset["Tensor | DamagedFileError"]):
    """One pass over some rows; an item is the picture at a position of the pass."""

    def __init__(self, path_of: Callable[[int], Path], rows: Tensor, size: int, augment: int | None) -> None:
        self._path_of, self._rows, self._size, self._augment = path_of, rows, size, augment

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> Tensor | DamagedFileError:
        try:
            image = read_picture(self._path_of(int(self._rows[position])))
        except DamagedFileError as error:
            # Handed over, not raised: the loader can carry only errors that are made from one string.
            return error
        if self._augment is None:
            return centre_crop(image, self._size)
        # Numpy takes no negative seeds; torch, in `MemorySplit`, takes them as 64 bits like this.
        return random_crop(image, self._size, np.random.default_rng([self._augment % 2**64, position]))


def _stacked(items: Sequence[Tensor | DamagedFileError]) -> Tensor | DamagedFileError:
    damaged = next((item for item in items if isinstance(item, DamagedFileError)), None)
    return damaged or torch.stack(items)  # type: ignore[arg-type]
