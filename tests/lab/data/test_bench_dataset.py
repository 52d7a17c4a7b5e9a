import dataclasses
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from elign.lab.data import DatasetNotFoundError, load_dataset
from elign.lab.data.bench_dataset import BENCH_DATASETS, BenchDataset, first_of_each, held_out, open_dataset
from elign.lab.data.errors import DataError
from elign.lab.data.folder_split import FolderSplit
from elign.lab.data.memory_split import MemorySplit
from elign.lab.data.order import class_order


def everything(split, *, augment: int | None = None) -> torch.Tensor:
    return next(split.batches(torch.arange(len(split.labels)), size=len(split.labels), augment=augment))[0]


def sparse(path: Path, content: bytes, size: int) -> None:
    """A file that begins with `content` and goes on with zeros, which take no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        handle.write(content)
        handle.truncate(size)


def spot(side: int, top: int, left: int) -> np.ndarray:
    """A black picture with one white pixel: where that pixel goes shows what was done to the picture."""
    picture = np.zeros((side, side), np.uint8)
    picture[top, left] = 255
    return picture


def put_idx(folder: Path) -> None:
    for part, rows in (("train", 60000), ("t10k", 10000)):
        header = struct.pack(">4B3I", 0, 0, 8, 3, rows, 28, 28)
        sparse(folder / f"{part}-images-idx3-ubyte", header + spot(28, 14, 10).tobytes(), 16 + rows * 784)
        header = struct.pack(">4B1I", 0, 0, 8, 1, rows)
        sparse(folder / f"{part}-labels-idx1-ubyte", header + bytes(range(10)), 8 + rows)


def put_cifar(folder: Path) -> None:
    for part, rows in (("train", 50000), ("test", 10000)):
        first = [bytes([0, label]) + (spot(32, 16, 10).tobytes() * 3) for label in range(100)]
        sparse(folder / f"{part}.bin", b"".join(first), rows * 3074)


def put_tiny(folder: Path) -> None:
    for path in (folder / part / wnid / "1.png" for part in ("train", "val") for wnid in ("n1", "n2", "n3")):
        path.parent.mkdir(parents=True)
        Image.fromarray(spot(64, 32, 20)).save(path)


def positions(dataset: BenchDataset, count: int) -> tuple[set[int], set[int]]:
    """Rows and columns of the white pixel in many views of the first training image."""
    tops, lefts = set(), set()
    for images, _ in dataset.train.batches(torch.zeros(count, dtype=torch.int64), size=500, augment=0):
        side = images.shape[-1]
        place = images[:, 0].flatten(1).argmax(dim=1)
        tops |= set((place // side).tolist())
        lefts |= set((place % side).tolist())
    return tops, lefts


@pytest.mark.parametrize(
    ("name", "folder", "put", "tops", "lefts"),
    [
        ("mnist", "mnist", put_idx, range(12, 17), [*range(8, 13)]),
        ("fashion-mnist", "fashion-mnist", put_idx, range(12, 17), [*range(8, 13), *range(15, 20)]),
        ("cifar100", "cifar-100-binary", put_cifar, range(12, 21), [*range(6, 15), *range(17, 26)]),
        ("tiny-imagenet", "", put_tiny, range(24, 41), [*range(12, 29), *range(35, 52)]),
    ],
)
def test_each_dataset_has_its_own_augmentation(tmp_path, name, folder, put, tops, lefts):
    put(tmp_path / folder)
    where = {"path": tmp_path} if name == "tiny-imagenet" else {"data_dir": tmp_path}
    dataset = open_dataset(name, **where)
    assert dataset.name == name
    assert positions(dataset, 2000) == (set(tops), set(lefts))


def test_digits_are_shifted_by_a_pixel_and_never_mirrored():
    split = open_dataset("digits").train
    seen = next(split.batches(torch.zeros(500, dtype=torch.int64), size=500, augment=0))[0]
    assert len(seen.unique(dim=0)) == 9


def test_cifar100_is_normalised_as_published_and_its_classes_arrive_in_the_published_order(tmp_path):
    put_cifar(tmp_path / "cifar-100-binary")
    dataset = open_dataset("cifar100", data_dir=tmp_path, limit=3)
    assert dataset.image_shape == (3, 32, 32)
    assert dataset.classes[:3] == ("class 68", "class 56", "class 78")
    assert dataset.train.labels[68] == 0
    image, _ = next(dataset.test.batches(torch.tensor([5]), size=1))
    assert image[0, :, 0, 0].tolist() == pytest.approx([-0.5071 / 0.2009, -0.4866 / 0.1984, -0.4409 / 0.2023])
    assert image[0, :, 16, 10].tolist() == pytest.approx([0.4929 / 0.2009, 0.5134 / 0.1984, 0.5591 / 0.2023])


def test_digits_arrive_in_the_order_of_the_seed_with_their_own_statistics():
    plain = load_dataset("digits")
    for seed in (1993, 7, None):
        dataset = open_dataset("digits", order_seed=seed)
        order = class_order(10, seed=seed)
        assert dataset.classes == tuple(str(label) for label in order)
        assert torch.equal(torch.tensor(order)[dataset.train.labels], plain.train_labels)
        assert torch.equal(torch.tensor(order)[dataset.test.labels], plain.test_labels)
    images = everything(dataset.train)
    assert images.mean() == pytest.approx(0, abs=1e-5)
    assert images.std() == pytest.approx(1, abs=1e-3)
    # The test images are normalised with the numbers of the training images, so theirs are near 0 and 1 only.
    assert 0 < abs(float(everything(dataset.test).mean())) < 0.05


def test_a_limit_keeps_the_first_of_each_class_and_all_test_images():
    full, few = open_dataset("digits"), open_dataset("digits", limit=4)
    assert few.train.labels.bincount().tolist() == [4] * 10
    kept = [(full.train.labels == label).nonzero()[:4, 0] for label in range(10)]
    rows = torch.cat(kept).sort().values
    assert torch.equal(few.train.labels, full.train.labels[rows])
    assert torch.equal(everything(few.train), everything(full.train)[rows])
    assert torch.equal(everything(few.test), everything(full.test))


def test_validation_images_are_training_images_that_are_not_learned_from():
    full, held = open_dataset("digits"), open_dataset("digits", validation=20)
    assert held.test.labels.bincount().tolist() == [20] * 10
    kept, out = held_out(full.train.labels, 20)
    assert sorted([*kept.tolist(), *out.tolist()]) == list(range(len(full.train.labels)))
    assert torch.equal(held.train.labels, full.train.labels[kept])
    assert torch.equal(held.test.labels, full.train.labels[out])
    # Not the first ones of the files, but the same ones each time.
    assert not torch.equal(out, first_of_each(full.train.labels, 20))
    assert torch.equal(everything(open_dataset("digits", validation=20).test), everything(held.test))
    assert open_dataset("digits", validation=20, limit=5).train.labels.bincount().tolist() == [5] * 10


def test_validation_images_of_folders(pictures):
    held = open_dataset("folder", path=pictures, validation=2, image_size=8)
    assert held.train.labels.bincount().tolist() == [3] * 3
    assert held.test.labels.bincount().tolist() == [2] * 3


def test_validation_leaves_something_to_learn_from():
    with pytest.raises(DataError, match="validation must be below 1"):
        open_dataset("digits", validation=150)
    with pytest.raises(DataError, match="validation must be at least 1"):
        open_dataset("digits", validation=0)


def test_the_first_of_each_by_hand():
    labels = torch.tensor([2, 0, 2, 0, 2, 1, 0])
    assert first_of_each(labels, 2).tolist() == [0, 1, 2, 3, 5]
    assert first_of_each(labels, 1).tolist() == [0, 1, 5]
    assert first_of_each(labels, 99).tolist() == list(range(7))


@pytest.fixture
def pictures(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for part, count in (("train", 5), ("test", 2)):
        for name in ("ape", "bee", "cat"):
            for number in range(count):
                path = tmp_path / part / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return tmp_path


def test_a_folder_of_ones_own(pictures):
    dataset = open_dataset("folder", path=pictures, image_size=16, limit=3)
    order = class_order(3)
    assert dataset.classes == tuple(("ape", "bee", "cat")[label] for label in order)
    assert dataset.image_shape == (3, 16, 16)
    assert dataset.train.labels.bincount().tolist() == [3, 3, 3]
    assert dataset.test.labels.bincount().tolist() == [2, 2, 2]
    assert dataset.test.labels[0] == order.index(0)
    assert everything(dataset.test).shape == (6, 3, 16, 16)
    full = open_dataset("folder", path=pictures, image_size=16)
    rows = torch.tensor([0, 1, 2, 5, 6, 7, 10, 11, 12])
    assert torch.equal(everything(dataset.train), everything(full.train)[rows])
    assert open_dataset("folder", path=pictures).image_shape == (3, 224, 224)


def test_both_kinds_of_splits_fit_the_contract(pictures):
    kinds = {"digits": open_dataset("digits"), "folder": open_dataset("folder", path=pictures, image_size=8)}
    for name, dataset in kinds.items():
        assert isinstance(dataset.train, MemorySplit if name == "digits" else FolderSplit)
        rows = torch.tensor([3, 1, 3, 0])
        for augment in (None, 2):
            batches = list(dataset.train.batches(rows, size=3, augment=augment))
            assert [tuple(images.shape) for images, _ in batches] == [
                (3, *dataset.image_shape),
                (1, *dataset.image_shape),
            ]
            assert torch.cat([labels for _, labels in batches]).tolist() == dataset.train.labels[rows].tolist()
            assert all(images.dtype == torch.float32 for images, _ in batches)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kinds["digits"].name = "other"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar", {}, "Did you mean 'cifar100'"),
        ("imagenet", {}, "Did you mean 'imagenet1k'|Did you mean 'imagenet100'|Did you mean 'tiny-imagenet'"),
        ("digits", {"path": "x"}, "not for 'digits'"),
        ("digits", {"image_size": 32}, "not for 'digits'"),
        ("digits", {"limit": 0}, "limit"),
        ("digits", {"workers": -1}, "workers"),
        ("folder", {}, "needs the path"),
        ("folder", {"image_size": 0}, "image_size"),
        ("tiny-imagenet", {"image_size": 32}, "64 pixels"),
    ],
)
def test_what_does_not_fit_is_refused(pictures, name, options, message):
    where = {"path": pictures} if "image_size" in options and name != "digits" else {}
    with pytest.raises(DataError, match=message):
        open_dataset(name, **(where | options))


def test_missing_datasets_are_named(tmp_path):
    assert set(BENCH_DATASETS) >= {"digits", "cifar100", "imagenet100", "imagenet1k", "tiny-imagenet", "folder"}
    with pytest.raises(DatasetNotFoundError, match="imagenet100"):
        open_dataset("imagenet100", data_dir=tmp_path)


def test_real_tiny_imagenet(tmp_path, shared_data):
    path = shared_data / "tiny-imagenet-100x250.npz"
    if not path.is_file():
        pytest.skip("no copy of Tiny-ImageNet: ELIGN_SHARED_DATA names no folder with tiny-imagenet-100x250.npz")
    with np.load(path, allow_pickle=False) as data:
        wnids = sorted(data["wnids"].tolist())[:5]
        for part, count in (("train", 40), ("val", 10)):
            stream, offsets = data[f"{part}_jpeg"], data[f"{part}_offsets"]
            names = data["wnids"][data[f"{part}_labels"]]
            for wnid in wnids:
                folder = tmp_path / part / wnid
                folder.mkdir(parents=True)
                for row in np.flatnonzero(names == wnid)[:count]:
                    (folder / f"{row:05}.JPEG").write_bytes(stream[offsets[row] : offsets[row + 1]].tobytes())
    dataset = open_dataset("tiny-imagenet", path=tmp_path, order_seed=None)
    assert dataset.classes == tuple(wnids)
    assert dataset.image_shape == (3, 64, 64)
    assert dataset.train.labels.bincount().tolist() == [40] * 5
    assert dataset.test.labels.bincount().tolist() == [10] * 5
    images = everything(dataset.train)
    assert images.mean(dim=(0, 2, 3)).abs().max() < 0.7
    assert (images.std(dim=(0, 2, 3)) - 1).abs().max() < 0.4
