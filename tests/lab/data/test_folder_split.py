import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from elign.lab.data.errors import DamagedFileError
from elign.lab.data.find_folders import find_folders
from elign.lab.data.folder_split import FolderSplit
from elign.lab.data.image_folders import ImageList
from elign.lab.data.pictures import centre_crop, read_picture
from elign.lab.data.pixels import IMAGENET_MEAN, IMAGENET_STD

COUNT = 11


@pytest.fixture
def images(tmp_path) -> ImageList:
    """Eleven training pictures of two classes, of different sizes and kinds."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        height, width = int(rng.integers(20, 60)), int(rng.integers(20, 60))
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for part in ("train", "test"):
            path = tmp_path / part / "ab"[number % 2] / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.convert(("RGB", "L", "RGBA")[number % 3]).save(path)
    return find_folders("folder", path=tmp_path).train


def collect(split: FolderSplit, rows: torch.Tensor, *, size: int = 4, augment: int | None = None):
    seen, labels = zip(*split.batches(rows, size=size, augment=augment), strict=True)
    return torch.cat(seen), torch.cat(labels)


def test_without_augmentation_it_is_the_middle_of_each_picture_normalised(images):
    rows = torch.tensor([10, 0, 0, 5, 7])
    seen, labels = collect(FolderSplit(images, image_size=16), rows, size=2)
    assert seen.dtype == torch.float32
    assert seen.shape == (5, 3, 16, 16)
    assert labels.tolist() == images.labels[rows].tolist() == [1, 0, 0, 0, 1]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    for image, row in zip(seen, rows.tolist(), strict=True):
        expected = (centre_crop(read_picture(images.path(row)), 16) / 255 - mean) / std
        assert torch.allclose(image, expected, atol=1e-5)


def test_neither_workers_nor_batches_change_a_pass(images, untouched_random_state):
    rows = torch.tensor([3, 3, *range(COUNT)])
    one, _ = collect(FolderSplit(images, image_size=16), rows, size=4, augment=5)
    for workers, size in ((0, 13), (1, 4), (2, 3)):
        other, labels = collect(FolderSplit(images, image_size=16, workers=workers), rows, size=size, augment=5)
        assert torch.equal(one, other)
        assert labels.tolist() == images.labels[rows].tolist()
    assert not torch.equal(one[0], one[1])  # the same picture twice in a pass: two different crops


def test_the_seed_decides_the_crops(images):
    split, rows = FolderSplit(images, image_size=16), torch.arange(COUNT)
    first, second, third = (collect(split, rows, augment=seed)[0] for seed in (5, 5, 6))
    assert torch.equal(first, second)
    assert (first != third).flatten(1).any(dim=1).all()
    assert collect(split, rows, augment=-1)[0].isfinite().all()
    assert (collect(split, rows)[0] != first).flatten(1).any(dim=1).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_picture_is_named_in_whichever_process_it_is_read(images, workers):
    path = images.path(6)
    path.write_bytes(path.read_bytes()[:100])
    split = FolderSplit(images, image_size=16, workers=workers)
    with pytest.raises(DamagedFileError) as caught:
        collect(split, torch.arange(COUNT))
    assert caught.value.path == path
    good, _ = collect(split, torch.tensor([0, 1, 2]))
    assert len(good) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image_size"),
        ({"workers": -1}, "workers"),
        ({"mean": (0.5,), "std": (0.5,)}, "three numbers"),
    ],
)
def test_what_does_not_fit_is_refused(images, options, message):
    with pytest.raises(ValueError, match=message):
        FolderSplit(images, **options)


def test_wrong_rows_are_refused_before_the_first_batch(images):
    with pytest.raises(IndexError, match=r"0\.\.10, not 0\.\.11"):
        FolderSplit(images).batches(torch.arange(COUNT + 1), size=4)


def test_real_photographs(tmp_path, shared_data):
    archive = shared_data / "animals5-224-webp.tar.xz"
    if not archive.is_file():
        pytest.skip("no photographs: ELIGN_SHARED_DATA names no folder with animals5-224-webp.tar.xz")
    found = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            if not member.name.endswith(".webp"):
                continue
            path = tmp_path / "ab"[found % 2] / Path(member.name).name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(tar.extractfile(member).read())
            found += 1
            if found == 40:
                break
    train = find_folders("folder", path=tmp_path).train
    assert len(train) == 32
    rows = torch.arange(32)
    plain, _ = collect(FolderSplit(train), rows, size=16)
    assert plain.shape == (32, 3, 224, 224)
    # Photographs have about the mean and the deviation of ImageNet, so normalised ones are near 0 and 1.
    assert plain.mean(dim=(0, 2, 3)).abs().max() < 0.7
    assert (plain.std(dim=(0, 2, 3)) - 1).abs().max() < 0.5
    cropped, _ = collect(FolderSplit(train), rows, size=16, augment=0)
    assert torch.equal(cropped, collect(FolderSplit(train, workers=2), rows, size=7, augment=0)[0])
