import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits

from elign.lab.data.digits import load_digits_dataset


@pytest.fixture(scope="module")
def digits():
    return load_digits_dataset()


def test_the_split_is_the_same_every_time(digits):
    # Results are compared across machines and releases, so the split itself is pinned.
    digest = hashlib.sha256(digits.train_images.numpy().tobytes() + digits.train_labels.numpy().tobytes()).hexdigest()
    assert digest == "695a12093657c88c7a7068c8557a90585b1b4ad0bf33f412ec75a291963d81fb"


def test_train_and_test_are_a_partition_of_the_original(digits):
    def rows(images):
        return sorted(image.tobytes() for image in images)

    original = (load_digits().images * 255 / 16).round().astype(np.uint8)
    assert len(set(rows(original))) == len(original)  # no two images are alike, so an image names its row
    train, test = rows(digits.train_images.numpy()), rows(digits.test_images.numpy())
    assert not set(train) & set(test)
    assert sorted(train + test) == rows(original)
