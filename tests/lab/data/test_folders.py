"""Folders of pictures: which files and classes they hold, and damaged lists of them."""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.data.base import DATASETS, DamagedFileError, DataError, DatasetNotFoundError
from elign.lab.data.folders import FolderLayoutError, ImageFolders, ImageList


def find(name: str, *, path: Path | str | None = None, data_dir: Path = Path("nowhere")) -> ImageFolders:
    return DATASETS[name](name).files(None if path is None else Path(path), data_dir)


def put(root: Path, *names: str) -> None:
    """Empty files: a listing decodes nothing."""
    for path in (root / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def listed(images: ImageList) -> list[tuple[str, int]]:
    paths = (images.path(row).relative_to(images.root).as_posix() for row in range(len(images)))
    return list(zip(paths, images.labels.tolist(), strict=True))


def test_a_folder_with_train_and_test(tmp_path):
    put(tmp_path, "train/b/2.png", "train/b/1.jpg", "train/a/x.JPEG", "test/a/t.webp", "test/b/t.jpg", "val/a/v.jpg")
    found = find("folder", path=tmp_path)
    assert found.classes == ("a", "b")
    assert listed(found.train) == [("train/a/x.JPEG", 0), ("train/b/1.jpg", 1), ("train/b/2.png", 1)]
    assert listed(found.test) == [("test/a/t.webp", 0), ("test/b/t.jpg", 1)]


def test_val_takes_the_place_of_test(tmp_path):
    put(tmp_path, "train/a/1.png", "val/a/v.png")
    put(tmp_path, "val/val_annotations.txt")  # class folders win over a list
    assert listed(find("folder", path=str(tmp_path)).test) == [("val/a/v.png", 0)]
    with pytest.raises(FolderLayoutError, match="no such folder"):
        find("folder", path=tmp_path / "gone")


def test_odd_files_are_passed_over(tmp_path):
    good = ("train/a/1.png", "test/a/1.png")
    put(tmp_path, *good, "train/a/.hidden.png", "train/a/._1.png", "train/a/notes.txt", "train/a/Thumbs.db")
    put(tmp_path, "train/.cache/1.png", "train/list.csv", "train/a/png")
    (tmp_path / "train/a/folder.png").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "train/a/pipe.png")
        (tmp_path / "train/a/nowhere.png").symlink_to(tmp_path / "gone.png")
        (tmp_path / "train/a/endless.png").symlink_to("/dev/zero")
        (tmp_path / "train/a/loop.png").symlink_to(tmp_path / "train/a/loop.png")
        (tmp_path / "train/circle").symlink_to(tmp_path / "train/circle")
    found = find("folder", path=tmp_path)
    assert found.classes == ("a",)
    assert listed(found.train) == [("train/a/1.png", 0)]


def test_a_folder_without_parts_is_split_in_a_fixed_way(tmp_path):
    put(tmp_path, *(f"a/{number:02}.png" for number in range(20)), "b/1.png", "b/2.png")
    found = find("folder", path=tmp_path)
    train, test = listed(found.train), listed(found.test)
    assert [label for _, label in test] == [0, 0, 0, 0, 1]
    assert len(train) == 17
    assert not set(train) & set(test)
    assert train == sorted(train)
    put(tmp_path, *(f"aa/{number}.png" for number in range(5)))
    again = find("folder", path=tmp_path)
    assert [name for name, _ in listed(again.test) if not name.startswith("aa/")] == [name for name, _ in test]


def test_a_list_survives_a_trip_between_processes_and_odd_names(tmp_path):
    put(tmp_path, "train/é ü/a b.png", "test/é ü/ß.png")
    copy = pickle.loads(pickle.dumps(find("folder", path=tmp_path)))
    assert copy.train.path(0) == tmp_path / "train/é ü/a b.png"
    assert copy.train.path(0).is_file()


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((), "no class folders"),
        (("a/x.txt",), "the class has no pictures"),
        (("a/x.png",), "one picture"),
        (("train/a/1.png",), "no folder test or val"),
        (("test/a/1.png",), "no folder train"),
        (("train/x.txt", "test/a/1.png"), "train: it has no class folders"),
        (("train/a/1.png", "train/b/x.txt", "test/a/1.png"), "b: the class has no pictures"),
        (("train/a/1.png", "train/b/1.png", "test/a/1.png"), "b: the class has no pictures"),
        (("train/a/1.png", "test/a/1.png", "test/c/1.png"), "the class 'c', which train has not"),
        (("train/a/1.png", "test/1.png"), "no folders of the classes in train"),
    ],
)
def test_a_wrong_layout_is_one_line_that_names_the_folder_and_what_is_needed(tmp_path, names, problem):
    put(tmp_path, *names)
    with pytest.raises(FolderLayoutError, match=problem) as caught:
        find("folder", path=tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "train/CLASS/*.jpg" in message
    assert "\n" not in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


@pytest.mark.parametrize(
    ("name", "folder"),
    [("imagenet1k", "imagenet"), ("imagenet100", "imagenet100"), ("tiny-imagenet", "tiny-imagenet-200")],
)
def test_a_missing_dataset_says_what_to_put_where(tmp_path, name, folder):
    with pytest.raises(DatasetNotFoundError) as caught:
        find(name, data_dir=tmp_path)
    for part in (name, str(tmp_path / folder), "train/WNID", "ELIGN_DATA", "no folder"):
        assert part in str(caught.value)


def test_tiny_imagenet_as_it_is_published(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    wnids = [f"n{number:08}" for number in range(200)]
    for wnid in wnids:
        put(root, f"train/{wnid}/images/{wnid}_0.JPEG", f"train/{wnid}/{wnid}_boxes.txt")
    put(root, *(f"val/images/val_{number}.JPEG" for number in range(200)), "test/images/test_0.JPEG")
    lines = (f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n" for number, wnid in enumerate(reversed(wnids)))
    (root / "val/val_annotations.txt").write_text("".join(lines))
    found = find("tiny-imagenet", data_dir=tmp_path)
    assert found.classes == tuple(wnids)
    assert listed(found.train)[3] == (f"train/{wnids[3]}/images/{wnids[3]}_0.JPEG", 3)
    assert listed(found.test)[:2] == [("val/images/val_199.JPEG", 0), ("val/images/val_198.JPEG", 1)]


def test_tiny_imagenet_with_fewer_classes_must_be_meant(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    put(root, "train/n1/1.JPEG", "train/n2/1.JPEG", "val/n1/1.JPEG", "val/n2/1.JPEG")
    assert find("tiny-imagenet", path=root).classes == ("n1", "n2")
    with pytest.raises(FolderLayoutError, match="has 2 classes, and tiny-imagenet has 200"):
        find("tiny-imagenet", data_dir=tmp_path)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory) -> Path:
    """All of ImageNet's folders with a picture each, and the test pictures in one folder."""
    data = tmp_path_factory.mktemp("data")
    wnids = [f"n{number:08}" for number in range(1000)]
    put(data / "imagenet", *(f"train/{wnid}/{wnid}_1.JPEG" for wnid in wnids))
    put(data / "imagenet", *(f"val/ILSVRC2012_val_{number:08}.JPEG" for number in range(1000)))
    lines = (f"ILSVRC2012_val_{number:08},{wnid} 85 1 499 272 \n" for number, wnid in enumerate(wnids))
    (data / "imagenet/LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(lines))
    return data


def test_imagenet_with_its_test_pictures_in_one_folder(imagenet):
    found = find("imagenet1k", data_dir=imagenet)
    assert len(found.classes) == len(found.train) == len(found.test) == 1000
    assert listed(found.test)[17] == ("val/ILSVRC2012_val_00000017.JPEG", 17)


def test_imagenet100_is_the_published_draw_in_sorted_order(imagenet, untouched_random_state):
    drawn = sorted(np.random.RandomState(1993).choice(1000, 100, replace=False).tolist())
    assert {54, 7, 894, 512, 126} <= set(drawn)
    found = find("imagenet100", data_dir=imagenet)
    assert found.classes == tuple(f"n{number:08}" for number in drawn)
    assert len(found.train) == len(found.test) == 100
    number = int(found.classes[40][1:])
    assert listed(found.train)[40] == (f"train/n{number:08}/n{number:08}_1.JPEG", 40)
    assert listed(found.test)[40] == (f"val/ILSVRC2012_val_{number:08}.JPEG", 40)


def test_a_folder_of_just_the_hundred_comes_first(imagenet, tmp_path):
    names = [f"c{number:03}" for number in range(100)]
    put(tmp_path / "imagenet100", *(f"{part}/{one}/1.JPEG" for part in ("train", "val") for one in names))
    (tmp_path / "imagenet").symlink_to(imagenet / "imagenet")
    assert find("imagenet100", data_dir=tmp_path).classes == tuple(names)
    put(tmp_path / "imagenet100", "train/one-more/1.JPEG")
    with pytest.raises(FolderLayoutError, match="has 101 classes, and imagenet100 has 100"):
        find("imagenet100", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1.png\ta\n2.png\n", "line 2"),
        (b"1.png\tz\n", "class 'z', which train has not"),
        (b"3.png\ta\n", "picture '3.png', which is not in"),
        (b"1.png\ta\n", "no picture of the class 'b'"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_broken_list_of_test_pictures_is_named(tmp_path, content, problem):
    put(tmp_path, "train/a/1.png", "train/b/1.png", "val/1.png", "val/2.png")
    path = tmp_path / "val/val_annotations.txt"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=problem) as caught:
        find("folder", path=tmp_path)
    assert caught.value.path == path


TINY = b"a.JPEG\tn01\t0\t0\t62\t57\nb.JPEG\tn02\t3\t3\t9\t9\n"
CSV = b"ImageId,PredictionString\na,n01 1 2 3 4\nb,n02 5 6 7 8\n"


@pytest.fixture
def folder(tmp_path):
    put(tmp_path, "train/n01/x.JPEG", "train/n02/y.JPEG", "val/images/a.JPEG", "val/images/b.JPEG", "outside.JPEG")
    return tmp_path


@fuzz(80)
@given(data=st.data(), tiny=st.booleans())
def test_fuzz_damaged_lists_name_pictures_that_are_there_or_are_named(folder, data, tiny):
    path = folder / ("val/val_annotations.txt" if tiny else "LOC_val_solution.csv")
    path.write_bytes(data.draw(damaged((TINY if tiny else CSV,), text=True)))
    found = answer(lambda: find("folder", path=folder), names=path)
    path.unlink()
    assert found is None or all(found.test.path(row).parent == folder / "val/images" for row in range(len(found.test)))


@fuzz(40)
@given(line=st.text(max_size=20), before=st.sampled_from(["", "../", "/", "../../", "./"]))
def test_fuzz_a_list_reaches_nothing_outside(folder, line, before):
    path = folder / "val/val_annotations.txt"
    path.write_text(f"{before}outside.JPEG n01\n{line}", encoding="utf-8", errors="replace")
    assert answer(lambda: find("folder", path=folder), names=path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
def test_a_class_whose_name_is_no_text_is_named_before_anything_is_trained(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/cl\xe4ss")  # noqa: PTH102  (a path of bytes)
    with pytest.raises(DataError, match="not UTF-8: rename it"):
        find("folder", path=tmp_path)
