"""scikit-learn's embedded handwritten digits: no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from elign.lab.data.base import DATASETS, ImageData, MemorySource

_SEED = 0
_TEST_FRACTION = 0.3


@DATASETS.register("digits")
class Digits(MemorySource):
    """The 1797 grey 8 x 8 digits that ship with scikit-learn."""

    class_count = 10
    images = "digits"
    crop_padding = 1
    flip = False

    def load(self, root: Path) -> ImageData:
        """Load all images."""
        return load_digits_dataset()


def load_digits_dataset() -> ImageData:
    """Load scikit-learn's digits (UCI "Optical Recognition of Handwritten Digits").

    A pixel counts the ink in a 4 x 4 block of the scan, v in 0..16; it becomes the nearest integer to 255 v / 16. The
    split is always the same: 70 % of each class for training (1257 images), 30 % for testing (540 images), drawn with
    a fixed seed, both in the order of the original file.
    """
    # Here and not above, because the import takes longer than all the rest of `elign.lab.data`.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    scaled = np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8)
    images, labels = torch.from_numpy(scaled).unsqueeze(1), torch.from_numpy(bunch.target.astype(np.int64))
    rows = np.arange(len(labels))
    train, test = (
        torch.from_numpy(np.sort(part))
        for part in train_test_split(rows, test_size=_TEST_FRACTION, stratify=bunch.target, random_state=_SEED)
    )
    return ImageData("digits", images[train], labels[train], images[test], labels[test], tuple("0123456789"))
