import dataclasses

import pytest
import torch

from elign.lab.data.dataset import ImageData


def make(**changes) -> ImageData:
    fields = {
        "name": "made-up",
        "train_images": torch.zeros(4, 1, 2, 2, dtype=torch.uint8),
        "train_labels": torch.tensor([0, 1, 0, 1]),
        "test_images": torch.zeros(2, 1, 2, 2, dtype=torch.uint8),
        "test_labels": torch.tensor([0, 1]),
        "classes": ("a", "b"),
    }
    return ImageData(**(fields | changes))


def test_a_good_dataset_is_accepted_and_frozen():
    data = make()
    assert data.image_shape == (1, 2, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"train_images": torch.zeros(4, 1, 2, 2)}, TypeError, "train images must be torch.uint8"),
        ({"test_labels": torch.tensor([0, 1], dtype=torch.int32)}, TypeError, "test labels must be torch.int64"),
        ({"train_images": torch.zeros(4, 2, 2, dtype=torch.uint8)}, ValueError, r"\(N, C, H, W\)"),
        ({"train_images": torch.zeros(0, 1, 2, 2, dtype=torch.uint8)}, ValueError, "filled"),
        ({"train_labels": torch.tensor([0, 1])}, ValueError, r"train labels must be \(4,\)"),
        ({"train_labels": torch.tensor([0, 1, 2, 1])}, ValueError, r"0\.\.1, not 0\.\.2"),
        ({"test_labels": torch.tensor([0, -1])}, ValueError, r"0\.\.1, not -1\.\.0"),
        ({"test_images": torch.zeros(2, 3, 2, 2, dtype=torch.uint8)}, ValueError, "test images are"),
        ({"classes": ()}, ValueError, "classes is empty"),
    ],
)
def test_a_wrong_dataset_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        make(**changes)
