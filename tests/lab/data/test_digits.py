import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from elign.lab.data.digits import load_digits_dataset


@pytest.fixture(scope="module")
def digits():
    return load_digits_dataset()


def test_shapes_and_range(digits):
    assert digits.train_images.shape == (1257, 1, 8, 8)
    assert digits.test_images.shape == (540, 1, 8, 8)
    assert digits.classes == tuple("0123456789")
    assert int(digits.train_images.min()) == 0
    assert int(digits.train_images.max()) == 255


def test_the_split_is_the_same_every_time(digits):
    again = load_digits_dataset()
    assert torch.equal(digits.train_images, again.train_images)
    assert torch.equal(digits.test_labels, again.test_labels)
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


def test_the_split_is_stratified(digits):
    train, test = digits.train_labels.bincount(), digits.test_labels.bincount()
    share = test / (train + test)
    assert float((share - 0.3).abs().max()) < 0.01


def test_scikit_learn_is_imported_only_when_needed():
    code = "import sys, elign.lab.data; sys.exit(any(name in sys.modules for name in ('sklearn', 'torchvision')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
