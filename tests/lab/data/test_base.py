"""Data sets by name, their splits and batches, and what a source of images must give."""

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from elign import ElignError
from elign.lab.data.base import (
    DATASETS,
    DamagedFileError,
    DataError,
    Dataset,
    DatasetNotFoundError,
    ImageData,
    MemorySplit,
    Normalise,
    catalogue,
    channel_statistics,
    first_of_each,
    held_out,
    load_dataset,
    open_dataset,
    read_file,
)
from elign.lab.data.scenario import class_order


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


def positions(dataset: Dataset, count: int) -> tuple[set[int], set[int]]:
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


def test_smaller_pictures_are_means_over_blocks():
    full, small = open_dataset("digits"), open_dataset("digits", image_size=4)
    assert small.image_shape == (1, 4, 4)
    assert torch.equal(small.test.labels, full.test.labels)
    assert torch.equal(everything(open_dataset("digits", image_size=8).test), everything(full.test))
    pixels, blocks = (part.test._images.float() for part in (full, small))
    corners = [pixels[..., top::2, left::2] for top in (0, 1) for left in (0, 1)]
    assert torch.allclose(blocks, torch.stack(corners).mean(0), atol=0.5)
    assert small.train._padding == full.train._padding == 1


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
    held = open_dataset("folder", path=pictures, validation=2)
    assert held.train.labels.bincount().tolist() == [3] * 3
    assert held.test.labels.bincount().tolist() == [2] * 3
    with pytest.raises(DataError, match="open_dataset"):
        load_dataset("folder")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar", {}, "Did you mean 'cifar100'"),
        ("fashion_mnist", {}, "Did you mean 'fashion-mnist'"),
        ("qqqqqqq", {}, "There are: cifar100, digits, fashion-mnist"),
        ("digits", {"path": "x"}, "not for 'digits'"),
        ("digits", {"image_size": 32}, "must divide"),
        ("digits", {"image_size": 3}, "8 x 8 pixels"),
        ("digits", {"limit": 0}, "limit"),
        ("digits", {"validation": 150}, "validation must be below"),
        ("digits", {"validation": 0}, "validation must be at least 1"),
        ("digits", {"workers": -1}, "workers"),
        ("folder", {}, "needs the path"),
        ("folder", {"path": "x", "image_size": 0}, "image_size"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, message):
    with pytest.raises(ElignError, match=message):
        open_dataset(name, **options)


def test_the_catalogue_looks_into_the_folder_that_the_variable_names(tmp_path, monkeypatch):
    monkeypatch.setenv("ELIGN_DATA", str(tmp_path))
    (tmp_path / "imagenet").mkdir()
    entries = {entry.name: entry for entry in catalogue()}
    assert list(entries) == list(DATASETS)
    assert (entries["imagenet100"].status, entries["imagenet100"].places) == ("found", (tmp_path / "imagenet",))
    assert entries["mnist"].places == (tmp_path / "mnist", tmp_path / "MNIST/raw")
    assert (entries["imagenet1k"].classes, entries["folder"].classes) == (1000, None)


ERRORS = [
    DamagedFileError(Path("folder/file"), "it is cut short", "copy it again"),
    DatasetNotFoundError("mnist", Path("folder"), ["one", "two"], ["download: no answer"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_a_trip_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, DataError)
    assert isinstance(copy, ElignError)
    assert str(copy) == str(error)
    assert "folder" in str(error)


def test_files_are_bounded_and_regular(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(DamagedFileError, match="5 bytes, more than 4"):
        read_file(path, 4)
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("zero", "loop", ".", "gone"):
        with pytest.raises(DamagedFileError, match=r"not a regular file|cannot be read"):
            read_file(tmp_path / name, 5)


def image_data(**changes) -> ImageData:
    fields = {
        "name": "made-up",
        "train_images": torch.zeros(4, 1, 2, 2, dtype=torch.uint8),
        "train_labels": torch.tensor([0, 1, 0, 1]),
        "test_images": torch.zeros(2, 1, 2, 2, dtype=torch.uint8),
        "test_labels": torch.tensor([0, 1]),
        "classes": ("a", "b"),
    }
    return ImageData(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": torch.zeros(4, 1, 2, 2)}, "train images must be a filled uint8"),
        ({"test_labels": torch.tensor([0, 1], dtype=torch.int32)}, "test labels must be int64"),
        ({"train_images": torch.zeros(4, 2, 2, dtype=torch.uint8)}, r"\(N, C, H, W\)"),
        ({"train_images": torch.zeros(0, 1, 2, 2, dtype=torch.uint8)}, "filled"),
        ({"train_labels": torch.tensor([0, 1])}, r"train labels must be int64 \(4,\)"),
        ({"train_labels": torch.tensor([0, 1, 2, 1])}, r"0\.\.1, not 0\.\.2"),
        ({"test_labels": torch.tensor([0, -1])}, r"0\.\.1, not -1\.\.0"),
        ({"test_images": torch.zeros(2, 3, 2, 2, dtype=torch.uint8)}, "test images are"),
        ({"classes": ()}, "labels must lie in"),
    ],
)
def test_wrong_images_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        image_data(**changes)


PLAIN = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}  # gives bytes back as they are


def noise(count: int, *, side: int = 6, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(1, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8)


def make(images: torch.Tensor, **options) -> MemorySplit:
    return MemorySplit(images, torch.arange(len(images)), **(PLAIN | {"crop_padding": 2, "flip": True} | options))


def batched(split: MemorySplit, rows: torch.Tensor, *, size: int = 7, augment: int | None = None):
    images, labels = zip(*split.batches(rows, size=size, augment=augment), strict=True)
    return torch.cat(images), torch.cat(labels)


def views(image: torch.Tensor, padding: int, flip: bool) -> list[torch.Tensor]:
    """Every possible view of one image, the slow way: pixel by pixel, from the definition."""
    height, width = image.shape[1:]
    found = []
    for top in range(-padding, padding + 1):
        for left in range(-padding, padding + 1):
            view = torch.zeros_like(image)
            for y in range(height):
                for x in range(width):
                    if 0 <= y + top < height and 0 <= x + left < width:
                        view[:, y, x] = image[:, y + top, x + left]
            found += [view, view.flip(2)] if flip else [view]
    return found


def choices(split: MemorySplit, images: torch.Tensor, rows: torch.Tensor, padding: int, flip: bool) -> torch.Tensor:
    """Which of the possible views each image of an augmented pass is; fails if it is none of them."""
    candidates = torch.stack([torch.stack(views(image, padding, flip)) for image in images])
    seen, labels = batched(split, rows, size=64, augment=1)
    assert torch.equal(labels, rows)
    same = (candidates[rows].float() - seen.unsqueeze(1)).flatten(2).abs().amax(dim=2) < 1e-3
    assert (same.sum(dim=1) == 1).all()
    return same.int().argmax(dim=1)


@pytest.mark.parametrize("flip", [True, False])
def test_each_augmented_image_is_a_view_of_its_own_and_all_views_are_equally_frequent(flip):
    images = noise(4)
    rows = torch.arange(4).repeat(1000)
    found = choices(make(images, flip=flip), images, rows, 2, flip)
    count = 25 * (2 if flip else 1)
    expected = len(rows) / count
    chi2 = ((found.bincount(minlength=count) - expected) ** 2 / expected).sum()
    # Mean and deviation of chi-square with k degrees are k and sqrt(2k): four deviations above is out of the question.
    assert chi2 < (count - 1) + 4 * (2 * (count - 1)) ** 0.5


def test_without_augmentation_images_come_as_they_are_in_the_order_of_the_rows():
    images = noise(9)
    rows = torch.tensor([8, 0, 3, 3, 1])
    split, before = make(images), images.clone()
    seen, labels = batched(split, rows, size=2)
    assert seen.dtype == torch.float32
    assert labels.tolist() == rows.tolist()
    assert torch.allclose(seen, images[rows].float(), atol=1e-3)
    seen.zero_()
    assert torch.equal(images, before)


def test_a_pass_is_decided_by_rows_and_seed_alone(untouched_random_state):
    split, rows = make(noise(20)), torch.arange(20)
    first, _ = batched(split, rows, size=7, augment=3)
    assert torch.equal(first, batched(split, rows, size=7, augment=3)[0])
    assert torch.equal(first, batched(split, rows, size=20, augment=3)[0])
    assert not torch.equal(first, batched(split, rows, size=7, augment=4)[0])


def test_normalisation_and_a_border_that_is_black_before_it():
    mean, std = (0.5, 0.25, 0.1), (0.2, 0.1, 0.5)
    images = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    split = make(images, mean=mean, std=std, crop_padding=4)
    white = torch.tensor([(1 - m) / s for m, s in zip(mean, std, strict=True)]).view(3, 1, 1)
    black = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(3, 1, 1)
    plain, _ = batched(split, torch.tensor([0]))
    assert torch.allclose(plain[0], white.expand(3, 4, 4))
    seen, _ = batched(split, torch.zeros(50, dtype=torch.int64), augment=0)
    is_black, is_white = (torch.isclose(seen, value, atol=1e-5).all(dim=1) for value in (black, white))
    assert (is_black ^ is_white).all()
    assert is_black.any()
    assert is_white.any()


def test_channel_statistics_are_those_of_the_definition():
    with pytest.raises(ValueError, match="1 and 1 channels, the images 3"):
        make(noise(2), mean=(0.5,), std=(1.0,))
    images = noise(50, channels=2)
    mean, std = channel_statistics(images)
    exact = images.double() / 255
    assert mean == pytest.approx(exact.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(exact.std(dim=(0, 2, 3), correction=0).tolist())
    normal = Normalise(mean, std)(images)
    assert torch.allclose(normal.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(normal.std(dim=(0, 2, 3)), torch.ones(2), atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "size", "error", "message"),
    [
        (torch.tensor([0, 3]), 2, IndexError, r"0\.\.2, not 0\.\.3"),
        (torch.tensor([-1]), 2, IndexError, r"not -1"),
        (torch.tensor([0.0]), 2, ValueError, "int64"),
        (torch.tensor([[0]]), 2, ValueError, "int64"),
        (torch.tensor([0]), 0, ValueError, "size"),
    ],
)
def test_wrong_rows_are_refused_before_the_first_batch(rows, size, error, message):
    with pytest.raises(error, match=message):
        make(noise(3)).batches(rows, size=size)


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


def test_digits_are_split_the_same_way_every_time_and_without_overlap():
    data = load_dataset("digits")
    # Results are compared across machines and releases, so the split itself is pinned.
    digest = hashlib.sha256(data.train_images.numpy().tobytes() + data.train_labels.numpy().tobytes()).hexdigest()
    assert digest == "695a12093657c88c7a7068c8557a90585b1b4ad0bf33f412ec75a291963d81fb"
    original = (load_digits().images * 255 / 16).round().astype(np.uint8)
    train, test, whole = (
        sorted(image.tobytes() for image in images)
        for images in (data.train_images.numpy(), data.test_images.numpy(), original)
    )
    assert len(set(whole)) == len(whole)  # no two images are alike, so an image names its row
    assert not set(train) & set(test)
    assert sorted(train + test) == whole


def test_digits_are_shifted_by_a_pixel_and_never_mirrored():
    split = open_dataset("digits").train
    seen = next(split.batches(torch.zeros(500, dtype=torch.int64), size=500, augment=0))[0]
    assert len(seen.unique(dim=0)) == 9
