"""`elign data` as a person meets it."""

import argparse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from elign.lab.cli import data
from elign.lab.data import DATASETS, DatasetNotFoundError, catalogue
from elign.lab.data.mnist import Mnist
from elign.utils.errors import OptionError


def shown(*arguments: str) -> str:
    parser = argparse.ArgumentParser(epilog=data.__doc__)
    data.add_options(parser)
    console = Console(width=150, highlight=False)
    with console.capture() as capture:
        data.run(parser.parse_args(arguments), console)
    return capture.get()


def statuses(root: Path) -> dict[str, str]:
    return {entry.name: entry.status for entry in catalogue(root)}


def test_the_list_says_for_each_data_set_whether_it_is_there_and_where_it_belongs(tmp_path):
    text = shown("--data-dir", str(tmp_path))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert set(DATASETS) <= set(lines)
    for name, parts in {
        "digits": ("found", "10", "built in"),
        "mnist": ("can be downloaded", "10", "mnist or MNIST/raw"),
        "cifar100": ("can be downloaded", "100", "cifar-100-binary"),
        "imagenet1k": ("missing", "1000", "imagenet"),
        "tiny-imagenet": ("missing", "200", "tiny-imagenet-200"),
        "folder": ("--path",),
    }.items():
        assert all(part in lines[name] for part in parts), lines[name]
    assert str(tmp_path) in text.replace("\n", "")


def test_what_is_there_is_found(tmp_path):
    assert statuses(tmp_path)["mnist"] == "can be downloaded"
    folder = tmp_path / "MNIST/raw"
    folder.mkdir(parents=True)
    for number, file in enumerate(Mnist("mnist").files):
        assert statuses(tmp_path)["mnist"] == "can be downloaded"  # not before the last of the four
        (folder / (file + (".gz" if number % 2 else ""))).write_bytes(b"")
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"")
    (tmp_path / "imagenet").mkdir()
    found = statuses(tmp_path)
    assert {name for name, status in found.items() if status == "found"} == {
        "digits",
        "mnist",
        "cifar100",
        "imagenet100",
        "imagenet1k",
    }
    entry = next(entry for entry in catalogue(tmp_path) if entry.name == "mnist")
    assert entry.places == (folder,)


def test_one_data_set_is_shown_with_its_sizes_and_its_order():
    text = shown("digits")
    for part in ("1257", "540", "1 x 8 x 8", "4, 2, 7, 6, 0, 3, 5, 8, 9, 1", "122 to 128 per class"):
        assert part in text
    assert "..." not in text


def test_a_path_alone_means_a_folder_of_ones_own(tmp_path):
    for number in range(24):
        path = tmp_path / f"[red]{number % 12:02}" / f"{number}.png"  # brackets mean something to the console
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(path)
    text = shown("--path", str(tmp_path))
    assert text == shown("folder", "--path", str(tmp_path))
    for part in ("training images: 12 (1 per class)", "test images:     12", "3 x 224 x 224", "[red]0", ", ..."):
        assert part in text


def test_what_is_missing_or_unknown_is_said(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="train/WNID"):
        shown("imagenet1k", "--data-dir", str(tmp_path))
    with pytest.raises(OptionError, match="Did you mean 'digits'"):
        shown("digit")
