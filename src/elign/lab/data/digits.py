"""scikit-learn's embedded handwritten digits: no download, always there."""

from __future__ import annotations

import numpy as np
import torch

from elign.lab.data.dataset import ImageData

_SEED = 0
_TEST_FRACTION = 0.3
_TOP = 16


def load_digits_dataset() -> ImageData:
    """The 1797 grey 8 x 8 digits that ship with scikit-learn (UCI "Optical Recognition of Handwritten Digits").

    A pixel counts the ink in a 4 x 4 block of the scan, v in 0..16; it becomes the nearest integer to 255 v / 16, so
    that no ink is 0 and full ink is 255. The split is the same on every call: 70 % of each class for training, 30 % for
    testing, drawn with a fixed seed, both in the order of the original file.

    Returns:
        1257 training and 540 test images, (N, 1, 8, 8).
    """
    # Here and not above, because the import takes longer than all the rest of `elign.lab.data`.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    scaled = np.floor(bunch.images * 255 / _TOP + 0.5).astype(np.uint8)
    images = torch.from_numpy(scaled).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(labels)), test_size=_TEST_FRACTION, stratify=bunch.target, random_state=_SEED
    )
    train, test = torch.from_numpy(np.sort(train)), torch.from_numpy(np.sort(test))
    return ImageData(
        name="digits",
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        classes=tuple("0123456789"),
    )
