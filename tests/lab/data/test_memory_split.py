import pytest
import torch

from elign.lab.data.memory_split import MemorySplit
from elign.lab.data.pixels import Normalise, channel_statistics

PLAIN = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}  # gives bytes back as they are


def noise(count: int, *, side: int = 6, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(1, 256, (count, channels, side, side), generator=generator, dtype=torch.uint8)


def make(images: torch.Tensor, **options) -> MemorySplit:
    return MemorySplit(images, torch.arange(len(images)), **(PLAIN | {"crop_padding": 2, "flip": True} | options))


def collect(split: MemorySplit, rows: torch.Tensor, *, size: int = 7, augment: int | None = None):
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
    seen, labels = collect(split, rows, size=64, augment=1)
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


def test_the_choices_of_neighbours_are_independent():
    images = noise(1)
    found = choices(make(images), images, torch.zeros(4000, dtype=torch.int64), 2, True)
    top, mirrored = found // 10, found % 2
    for one in (top, mirrored):
        pair = torch.stack([one[:-1], one[1:]]).double()
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.06
    assert abs(float(torch.corrcoef(torch.stack([top, mirrored]).double())[0, 1])) < 0.06


def test_no_padding_leaves_only_the_mirror():
    images = noise(2)
    found = choices(make(images, crop_padding=0), images, torch.arange(2).repeat(50), 0, True)
    assert set(found.tolist()) == {0, 1}


def test_without_augmentation_images_come_as_they_are_in_the_order_of_the_rows():
    images = noise(9)
    rows = torch.tensor([8, 0, 3, 3, 1])
    seen, labels = collect(make(images), rows, size=2)
    assert seen.dtype == torch.float32
    assert labels.tolist() == rows.tolist()
    assert torch.allclose(seen, images[rows].float(), atol=1e-3)


def test_a_pass_is_decided_by_rows_and_seed_alone(untouched_random_state):
    split, rows = make(noise(20)), torch.arange(20)
    first, _ = collect(split, rows, size=7, augment=3)
    assert torch.equal(first, collect(split, rows, size=7, augment=3)[0])
    assert torch.equal(first, collect(split, rows, size=20, augment=3)[0])
    assert not torch.equal(first, collect(split, rows, size=7, augment=4)[0])


def test_batches_have_the_size_asked_for_and_the_last_the_rest():
    sizes = [len(labels) for _, labels in make(noise(10)).batches(torch.arange(10), size=4, augment=0)]
    assert sizes == [4, 4, 2]
    assert list(make(noise(3)).batches(torch.empty(0, dtype=torch.int64), size=4, augment=0)) == []


def test_the_stored_images_do_not_change():
    images = noise(5)
    before = images.clone()
    batch, _ = collect(make(images, crop_padding=0, flip=False), torch.arange(5), augment=1)
    batch.zero_()
    assert torch.equal(images, before)


def test_normalisation_and_a_border_that_is_black_before_it():
    mean, std = (0.5, 0.25, 0.1), (0.2, 0.1, 0.5)
    images = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    split = make(images, mean=mean, std=std, crop_padding=4)
    white = torch.tensor([(1 - m) / s for m, s in zip(mean, std, strict=True)]).view(3, 1, 1)
    black = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(3, 1, 1)
    plain, _ = collect(split, torch.tensor([0]))
    assert torch.allclose(plain[0], white.expand(3, 4, 4))
    seen, _ = collect(split, torch.zeros(50, dtype=torch.int64), augment=0)
    is_black, is_white = (torch.isclose(seen, value, atol=1e-5).all(dim=1) for value in (black, white))
    assert (is_black ^ is_white).all()
    assert is_black.any()
    assert is_white.any()


def test_channel_statistics_are_those_of_the_definition():
    images = noise(50, channels=2)
    mean, std = channel_statistics(images)
    exact = images.double() / 255
    assert mean == pytest.approx(exact.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(exact.std(dim=(0, 2, 3), correction=0).tolist())
    normal = Normalise(mean, std)(images)
    assert torch.allclose(normal.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(normal.std(dim=(0, 2, 3)), torch.ones(2), atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"images": torch.zeros(2, 3, 4, 4)}, TypeError, "uint8"),
        ({"labels": torch.zeros(2)}, TypeError, "int64"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, ValueError, r"labels \(N,\)"),
        ({"images": torch.zeros(2, 3, 4, dtype=torch.uint8)}, ValueError, r"\(N, C, H, W\)"),
        ({"crop_padding": -1}, ValueError, "crop_padding"),
        ({"mean": (0.5,)}, ValueError, "one number for each channel"),
        ({"mean": (0.5,), "std": (1.0,)}, ValueError, "1 channels, the images 3"),
        ({"std": (1.0, 0.0, 1.0)}, ValueError, "positive"),
    ],
)
def test_what_does_not_fit_is_refused(changes, error, message):
    options = {"images": noise(2), "labels": torch.zeros(2, dtype=torch.int64), "crop_padding": 1, "flip": True}
    with pytest.raises(error, match=message):
        MemorySplit(**(options | PLAIN | changes))


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
