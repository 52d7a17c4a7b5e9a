"""Digit scenes: handwritten digits on cluttered canvases, made from a seed.

The digits are the real ones that ship with scikit-learn, so nothing is downloaded; a scene has one to four of them, of
different size, slant, colour and contrast, now and then overlapping a little, on an uneven, noisy ground with patches,
lines and scrambled digits that are none of the classes. Small enough to learn a detector on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from elign.lab.data.base import DataError
from elign.lab.data.digits import load_digits_dataset
from elign.lab.detection.data import (
    DETECTION_DATASETS,
    DataConfig,
    DetectionData,
    DetectionSource,
    DetectionSplit,
    Objects,
)
from elign.lab.environment import derive_seed

Array = np.ndarray[Any, np.dtype[Any]]
_Deck = Iterator[tuple[Array, int]]
_Box = tuple[int, int, int, int]

SMALLEST_SIDE = 48
"""The least height and width of a canvas: a few digits must find room."""

INK = 64
"""From this much ink, of 255, a pixel belongs to a digit, and so to its box."""

_SCENES, _SIDE = (1000, 400), 96
_DIGITS = (1, 4)
_HEIGHT = (16, 40)
_SCRAP = (12, 28)
_LARGEST_SHARE = 0.42
_STRETCH = (0.8, 1.15)
_SLANT = 12.0
_OVERLAP = 0.2
_TRIES = 20
_CONTRAST = (70, 170)


@DETECTION_DATASETS.register("digit-scenes")
class DigitScenes(DetectionSource):
    """Scenes of scikit-learn's digits; no digit is on scenes of both splits."""

    images = "scenes"

    def load(self, config: DataConfig, *, seed: int) -> DetectionData:
        """Make the scenes; see `DetectionSource`."""
        if config.path is not None:
            raise DataError(f"The data set {self.name!r} does not take the option path.")
        digits, side = load_digits_dataset(), config.image_size or _SIDE
        train, test = config.scenes or _SCENES
        return DetectionData(
            self.name,
            tuple("0123456789"),
            make_scenes(digits.train_images, digits.train_labels, train, side, derive_seed(seed, "training scenes")),
            make_scenes(digits.test_images, digits.test_labels, test, side, derive_seed(seed, "test scenes")),
        )


def make_scenes(images: Tensor, labels: Tensor, count: int, side: int, seed: int) -> DetectionSplit:
    """Make scenes of `side` pixels. The classes are dealt evenly; the first n scenes do not depend on how many follow.

    A box encloses the pixels with at least `INK` of its digit, also where something else covers them. The images of the
    digits are `uint8` (N, 1, h, w): how much ink is where. They must not be mirrored.
    """
    if side < SMALLEST_SIDE:
        raise DataError(f"Digit scenes need at least {SMALLEST_SIDE} pixels, not {side}.")
    generator = np.random.default_rng(seed)
    ink, classes = images.squeeze(1).numpy(), labels.numpy()
    # Two decks: the digits that are scrambled must not be missing among the others.
    deck, scrap = _dealt(ink, classes, generator), _dealt(ink, classes, generator)
    scenes, objects = np.empty((count, side, side, 3), dtype=np.uint8), []
    for scene in scenes:
        scene[:], found = _scene(deck, scrap, side, generator)
        objects.append(found)
    made = torch.from_numpy(scenes).permute(0, 3, 1, 2).contiguous()
    return DetectionSplit(objects, lambda row: made[row], flips=False)


def _dealt(images: Array, labels: Array, generator: np.random.Generator) -> _Deck:
    """Deal digits without end: the classes in rounds of random order, and the digits of each class likewise."""
    classes = np.unique(labels)
    stacks: dict[int, list[int]] = {int(label): [] for label in classes}
    while True:
        for label in map(int, generator.permutation(classes)):
            if not stacks[label]:
                stacks[label] = generator.permutation(np.flatnonzero(labels == label)).tolist()
            yield images[stacks[label].pop()], label


def _scene(deck: _Deck, scrap: _Deck, side: int, generator: np.random.Generator) -> tuple[Array, Objects]:
    canvas = _ground(side, generator)
    taken: list[_Box] = []
    boxes: list[_Box] = []
    labels: list[int] = []
    for _ in range(generator.integers(_DIGITS[0], _DIGITS[1] + 1)):
        digit, label = next(deck)
        height = generator.integers(_HEIGHT[0], min(_HEIGHT[1], int(_LARGEST_SHARE * side)) + 1)
        if _put(canvas, ink_of(digit, int(height), generator), taken, generator):
            boxes.append(taken[-1])
            labels.append(label)
    # After the digits, the first of which then always finds room.
    for _ in range(generator.integers(3)):
        blot = ink_of(_scrambled(next(scrap)[0], generator), int(generator.integers(*_SCRAP)), generator)
        _put(canvas, blot, taken, generator)
    objects = Objects(
        boxes=torch.tensor(boxes, dtype=torch.float32),
        labels=torch.tensor(labels, dtype=torch.int64),
        difficult=torch.zeros(len(labels), dtype=torch.bool),
    )
    noise = generator.standard_normal(canvas.shape, dtype=np.float32) * generator.uniform(2, 10)
    return (canvas + noise).clip(0, 255).astype(np.uint8), objects


def _ground(side: int, generator: np.random.Generator) -> Array:
    """Paint an uneven ground with patches and thin lines: `float32`, (side, side, 3)."""
    base = generator.uniform(40, 215) + generator.uniform(-40, 40, 3)
    cells = (base + generator.uniform(-35, 35, (5, 5, 3))).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(cells).resize((side, side), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(generator.integers(4)):
        colour = _near(base, 45, generator)
        x, y, width, height = (int(number) for number in generator.integers((0, 0, 8, 8), (side, side, 40, 40)))
        shape = draw.rectangle if generator.random() < 0.5 else draw.ellipse
        shape((x - width // 2, y - height // 2, x + width // 2, y + height // 2), fill=colour)
    for _ in range(generator.integers(4)):
        # From border to border: a short one could be taken for a 1.
        start, end = (int(number) for number in generator.integers(0, side, 2))
        ends = (0, start, side, end) if generator.random() < 0.5 else (start, 0, end, side)
        draw.line(ends, fill=_near(base, 80, generator), width=1)
    return np.asarray(image, dtype=np.float32)


def _near(base: Array, width: float, generator: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (base + generator.uniform(-width, width, 3)).clip(0, 255).astype(int).tolist()
    return red, green, blue


def _scrambled(digit: Array, generator: np.random.Generator) -> Array:
    """Shuffle a digit's blocks of 2 x 2 pixels, so that no shape is left."""
    rows, columns = (length // 2 for length in digit.shape)
    blocks = digit[: 2 * rows, : 2 * columns].reshape(rows, 2, columns, 2).swapaxes(1, 2).reshape(-1, 2, 2)
    mixed = generator.permutation(blocks).reshape(rows, columns, 2, 2).swapaxes(1, 2)
    return mixed.reshape(2 * rows, 2 * columns)


def ink_of(digit: Array, height: int, generator: np.random.Generator) -> Array:
    """Enlarge, stretch and slant a digit at random; cut it to the pixels with at least `INK`: `uint8`, (h, w)."""
    width = max(2, round(height * generator.uniform(*_STRETCH)))
    image = Image.fromarray(digit).resize((width, height), Image.Resampling.BICUBIC)
    image = image.rotate(generator.uniform(-_SLANT, _SLANT), Image.Resampling.BICUBIC, expand=True)
    ink = np.asarray(image)
    rows, columns = (np.flatnonzero((ink >= INK).any(axis=axis)) for axis in (1, 0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _put(canvas: Array, ink: Array, taken: list[_Box], generator: np.random.Generator) -> bool:
    """Paste ink where it overlaps little of what is there, and note its box; False if no such place was found."""
    (height, width), side = ink.shape, len(canvas)
    for _ in range(_TRIES):
        left, top = int(generator.integers(side - width + 1)), int(generator.integers(side - height + 1))
        box = left, top, left + width, top + height
        if all(_overlap(box, other) <= _OVERLAP for other in taken):
            paste(canvas, ink, (left, top), generator)
            taken.append(box)
            return True
    return False


def _overlap(one: _Box, other: _Box) -> float:
    """Return the common area as a share of the smaller box: unlike the IoU, 1 for a small digit below a large one."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return max(width, 0) * max(height, 0) / smaller


def paste(canvas: Array, ink: Array, corner: tuple[int, int], generator: np.random.Generator) -> None:
    """Put ink on the canvas, in a colour that differs from the ground below."""
    (left, top), (height, width) = corner, ink.shape
    below = canvas[top : top + height, left : left + width]
    ground = below.mean(axis=(0, 1))
    brightness = ground.mean()
    # Lighter or darker by chance where there is room for both, else where there is.
    lighter = generator.random() < 0.5 if 90 < brightness < 165 else brightness < 128
    shift = generator.uniform(*_CONTRAST) * (1 if lighter else -1)
    colour = (ground + shift + generator.uniform(-40, 40, 3)).clip(0, 255)
    share = (ink / 255.0)[:, :, None] * generator.uniform(0.8, 1.0)
    below += (colour - below) * share
