"""Large pictures, read from their files when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.image_folders import ImageList
from elign.lab.data.memory_split import check_rows
from elign.lab.data.pictures import centre_crop, random_crop, read_picture
from elign.lab.data.pixels import IMAGENET_MEAN, IMAGENET_STD, Normalise


class FolderSplit:
    """A `Split` of pictures in files.

    With augmentation, a picture is cropped and mirrored at random; the choices depend on the seed and the picture's
    position in the pass, so neither the number of processes nor the size of batches changes them. Without, it is the
    picture's middle.

    Args:
        images: The files and their classes.
        image_size: Height and width of what comes out.
        mean: Mean of each colour, for pixels in 0..1.
        std: Standard deviation of each colour, likewise.
        workers: How many processes read ahead; 0 to read in this one.

    Raises:
        ValueError: An option does not fit.
    """

    def __init__(
        self,
        images: ImageList,
        *,
        image_size: int = 224,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        workers: int = 0,
    ) -> None:
        if image_size < 1 or workers < 0:
            raise ValueError(f"image_size must be positive and workers at least 0, not {image_size}, {workers}")
        self._normalise = Normalise(mean, std)
        if self._normalise.channels != 3:
            raise ValueError(f"mean and std must have three numbers, not {self._normalise.channels}")
        self.labels = images.labels
        self._images = images
        self._size = image_size
        self._workers = workers

    def batches(self, rows: Tensor, *, size: int, augment: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the pictures in these rows; see `elign.lab.data.split.Split`.

        Raises:
            DamagedFileError: A picture cannot be read; it is named.
        """
        check_rows(rows, len(self.labels), size)
        return self._batches(rows.cpu(), size, augment)

    def _batches(self, rows: Tensor, size: int, augment: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Pass(self._images, rows, self._size, augment),
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


class _Pass(Dataset["Tensor | DamagedFileError"]):
    """One pass over some rows; an item is the picture at a position of the pass."""

    def __init__(self, images: ImageList, rows: Tensor, size: int, augment: int | None) -> None:
        self._images = images
        self._rows = rows
        self._size = size
        self._augment = augment

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> Tensor | DamagedFileError:
        try:
            image = read_picture(self._images.path(int(self._rows[position])))
        except DamagedFileError as error:
            # Handed over, not raised: the loader can carry only errors that are made from one string.
            return error
        if self._augment is None:
            return centre_crop(image, self._size)
        # Numpy takes no negative seeds; torch, which memory_split.py asks, takes them as 64 bits like this.
        return random_crop(image, self._size, np.random.default_rng([self._augment % 2**64, position]))


def _stacked(items: Sequence[Tensor | DamagedFileError]) -> Tensor | DamagedFileError:
    images = []
    for item in items:
        if isinstance(item, DamagedFileError):
            return item
        images.append(item)
    return torch.stack(images)
