"""ImageNet-1k, its subset of 100 classes, and Tiny-ImageNet. None is downloaded: ImageNet is given out on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elign.lab.data.base import (
    DATASETS,
    IMAGENET_MEAN,
    IMAGENET_STD,
    DataError,
    Dataset,
    ImageData,
    MemorySource,
    OpenOptions,
)
from elign.lab.data.folders import FolderSource, ImageFolders
from elign.lab.data.pictures import read_small

_SEED = 1993


@DATASETS.register("imagenet1k")
class ImageNet(FolderSource):
    """All 1000 classes of ImageNet."""

    class_count = 1000
    folders = ("imagenet",)


@DATASETS.register("imagenet100")
class ImageNet100(FolderSource):
    """The 100 classes of ImageNet that the literature calls ImageNet-Subset.

    They are drawn from the sorted names without replacement. The order of the draw is then given up: the label of a
    class is its position among the sorted 100, as a folder of class folders is read, and `class_order(100)` shuffles
    these labels afterwards.
    """

    class_count = 100
    folders = ("imagenet100", "imagenet")

    def choose(self, available: tuple[str, ...]) -> tuple[str, ...]:
        """Choose the 100 where all 1000 are there."""
        if len(available) != ImageNet.class_count:
            return available
        drawn = np.random.RandomState(_SEED).choice(len(available), self.class_count, replace=False)
        return tuple(available[index] for index in sorted(drawn))


@DATASETS.register("tiny-imagenet")
class TinyImageNet(FolderSource):
    """200 classes of ImageNet at 64 x 64, in memory; a folder given by its path may have some of the classes only."""

    class_count = 200
    images = "cifar"
    side = 64
    folders = ("tiny-imagenet-200",)
    needed = ("train/WNID/images/*.JPEG", "val/images/*.JPEG with val/val_annotations.txt")

    def may_be_partial(self, path: Path | None) -> bool:
        """Whether some classes may be missing."""
        return path is not None

    def open(self, options: OpenOptions) -> Dataset:
        """Open it; see `DatasetSource`."""
        if options.image_size not in (None, self.side):
            raise DataError(
                f"{self.name} has pictures of {self.side} pixels; image_size cannot be {options.image_size}."
            )
        return super().open(options)

    def serve(self, files: ImageFolders, options: OpenOptions) -> Dataset:
        """Read all pictures and make splits in memory."""
        train, test = (
            read_small([images.path(row) for row in range(len(images))], side=self.side)
            for images in (files.train, files.test)
        )
        data = ImageData(self.name, train, files.train.labels, test, files.test.labels, files.classes)
        return _TinyImages(self.name).in_memory(data, options)


class _TinyImages(MemorySource):
    crop_padding = 8
    mean, std = IMAGENET_MEAN, IMAGENET_STD
