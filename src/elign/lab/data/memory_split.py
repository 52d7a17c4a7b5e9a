"""Small images, held in memory and augmented a batch at a time.

Whole batches are cut and mirrored at once: a few milliseconds, of which a training step never has to wait for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from elign.lab.data.pixels import Normalise


class MemorySplit:
    """A `Split` of `uint8` images in memory.

    Augmentation is that of the published CIFAR experiments: the image, with a black border of `crop_padding` pixels
    around it, is cropped back to its size at a random place, then mirrored with probability 1/2. All choices are
    independent and uniform, and those of the n-th image of a pass do not depend on the size of its batches.

    Args:
        images: `uint8` images, (N, C, H, W).
        labels: Class of each, `int64` (N,).
        mean: Mean of each channel, for pixels in 0..1.
        std: Standard deviation of each channel, likewise.
        crop_padding: Width of the border; 0 for no random crop.
        flip: Whether images are mirrored at random.

    Raises:
        TypeError: A tensor has the wrong dtype.
        ValueError: A tensor has the wrong shape, or an option does not fit.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        crop_padding: int,
        flip: bool,
    ) -> None:
        if images.dtype != torch.uint8 or labels.dtype != torch.int64:
            raise TypeError(f"images must be torch.uint8 and labels torch.int64, not {images.dtype}, {labels.dtype}")
        if images.ndim != 4 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"images must be (N, C, H, W) and labels (N,), not {tuple(images.shape)}, {tuple(labels.shape)}"
            )
        if crop_padding < 0:
            raise ValueError(f"crop_padding must be at least 0, not {crop_padding}")
        self._normalise = Normalise(mean, std)
        if self._normalise.channels != images.shape[1]:
            raise ValueError(f"mean and std have {self._normalise.channels} channels, the images {images.shape[1]}")
        self.labels = labels
        self._images = images
        self._padding = crop_padding
        self._flip = flip

    def batches(self, rows: Tensor, *, size: int, augment: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the images in these rows; see `elign.lab.data.split.Split`."""
        check_rows(rows, len(self.labels), size)
        return self._batches(rows.cpu(), size, augment)

    def _batches(self, rows: Tensor, size: int, augment: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        corners, mirrored = self._choices(len(rows), augment)
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            images = self._images[rows[part]]
            if augment is not None:
                images = self._mirror(self._crop(images, corners[part]), mirrored[part])
            yield self._normalise(images), self.labels[rows[part]]

    def _choices(self, count: int, augment: int | None) -> tuple[Tensor, Tensor]:
        """The crop's corner (top, left) in the padded image, and whether to mirror, for each image of a pass."""
        if augment is None:
            return torch.empty(0, 2, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
        # Drawn for the whole pass at once: a few bytes per image, and batches may then be cut anywhere.
        generator = torch.Generator().manual_seed(augment)
        corners = torch.randint(2 * self._padding + 1, (count, 2), generator=generator)
        mirrored = torch.randint(2, (count,), generator=generator).bool()
        return corners, mirrored

    def _crop(self, images: Tensor, corners: Tensor) -> Tensor:
        if not self._padding:
            return images
        height, width = images.shape[2:]
        padded = torch.nn.functional.pad(images, (self._padding,) * 4)
        # A view of every possible crop, (B, C, tops, lefts, H, W): indexing it copies the chosen ones only.
        crops = padded.unfold(2, height, 1).unfold(3, width, 1)
        return crops[torch.arange(len(images)), :, corners[:, 0], corners[:, 1]]

    def _mirror(self, images: Tensor, mirrored: Tensor) -> Tensor:
        if not self._flip:
            return images
        return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def check_rows(rows: Tensor, count: int, size: int) -> None:
    """Refuse rows or a batch size that cannot be served, before the first batch is made.

    Args:
        rows: The rows asked for.
        count: How many images there are.
        size: The batch size asked for.

    Raises:
        ValueError: `rows` is no `int64` (M,), or `size` is not positive.
        IndexError: A row is outside 0..count-1.
    """
    if rows.dtype != torch.int64 or rows.ndim != 1:
        raise ValueError(f"rows must be an int64 (M,), not {rows.dtype} {tuple(rows.shape)}")
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise IndexError(f"rows must lie in 0..{count - 1}, not {int(rows.min())}..{int(rows.max())}")
