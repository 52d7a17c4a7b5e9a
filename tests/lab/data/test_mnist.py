import dataclasses
import gzip
import os

import numpy as np
import pytest
import torch

from elign.lab.data.errors import DamagedFileError, DatasetNotFoundError, FetchError
from elign.lab.data.mnist import FASHION_MNIST, MNIST, load_idx_dataset


class Shelf:
    """A source that has the files, notes what it was asked for, and may break off after some of them."""

    def __init__(self, contents, *, breaks_after=None, error=None):
        self.contents, self.breaks_after, self.error = contents, breaks_after, error
        self.asked = []
        self.label = "shelf"

    def fetch(self, wanted, folder):
        for number, file in enumerate(wanted):
            if number == self.breaks_after:
                raise self.error
            self.asked.append(file.name)
            (folder / file.name).write_bytes(self.contents[file.name])


def put(folder, contents, ending=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)


def with_sources(spec, *sources):
    return dataclasses.replace(spec, sources=sources)


@pytest.mark.parametrize("folder", ["tiny", "Tiny/raw"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_on_disk_are_used_and_nothing_is_fetched(tmp_path, tiny_spec, tiny_contents, folder, ending):
    put(tmp_path / folder, tiny_contents, ending)
    shelf = Shelf(tiny_contents)
    data = load_idx_dataset(with_sources(tiny_spec, shelf), data_dir=tmp_path)
    assert shelf.asked == []
    assert data.train_images.shape == (6, 1, 4, 4)
    assert data.train_labels.dtype == torch.int64
    assert data.test_labels.tolist() == [2, 1, 0]
    assert data.train_images.numpy().tobytes() == tiny_contents["train-images"][16:]


def test_the_variable_names_the_folder(tmp_path, monkeypatch, tiny_spec, tiny_contents):
    put(tmp_path / "tiny", tiny_contents)
    monkeypatch.setenv("ELIGN_DATA", str(tmp_path))
    assert load_idx_dataset(tiny_spec).name == "tiny"


def test_a_plain_file_is_preferred_to_a_compressed_one(tmp_path, tiny_spec, tiny_contents):
    put(tmp_path / "tiny", tiny_contents)
    (tmp_path / "tiny" / "train-images.gz").write_bytes(b"rubbish")
    assert len(load_idx_dataset(tiny_spec, data_dir=tmp_path).train_images) == 6


def test_a_users_own_variant_is_accepted(tmp_path, tiny_spec, tiny_contents, encode_idx):
    put(tmp_path / "tiny", tiny_contents | {"train-labels": encode_idx(np.array([2, 2, 2, 1, 1, 0]))})
    assert load_idx_dataset(tiny_spec, data_dir=tmp_path).train_labels.tolist() == [2, 2, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("train-images", np.zeros((5, 4, 4)), r"\(5, 4, 4\) values, not \(6, 4, 4\)"),
        ("train-images", np.zeros((6, 4, 5)), r"\(6, 4, 5\) values"),
        ("test-images", np.zeros(3), r"\(3,\) values"),
        ("test-labels", np.array([0, 1, 3]), "label 3, above 2"),
    ],
)
def test_a_file_of_the_wrong_structure_is_named(tmp_path, tiny_spec, tiny_contents, encode_idx, name, values, problem):
    put(tmp_path / "tiny", tiny_contents | {name: encode_idx(values)})
    with pytest.raises(DamagedFileError, match=problem) as caught:
        load_idx_dataset(tiny_spec, data_dir=tmp_path)
    assert caught.value.path == tmp_path / "tiny" / name


def test_sources_are_tried_in_order_until_one_delivers(tmp_path, tiny_spec, tiny_contents):
    broken = Shelf(tiny_contents, breaks_after=0, error=FetchError("x", ["no answer"]))
    good, unused = Shelf(tiny_contents), Shelf(tiny_contents)
    data = load_idx_dataset(with_sources(tiny_spec, broken, good, unused), data_dir=tmp_path)
    assert data.name == "tiny"
    assert good.asked == list(tiny_contents)
    assert unused.asked == []


@pytest.mark.parametrize("done", [0, 1, 2, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full"), FetchError("x", ["cut off"])])
def test_an_interrupted_fetch_is_completed_by_the_next_call(tmp_path, tiny_spec, tiny_contents, done, error):
    broken = Shelf(tiny_contents, breaks_after=done, error=error)
    with pytest.raises((KeyboardInterrupt, DatasetNotFoundError)):
        load_idx_dataset(with_sources(tiny_spec, broken), data_dir=tmp_path)
    (tmp_path / "tiny" / ".train-labels.0123.part").write_bytes(b"left by a killed process")
    good = Shelf(tiny_contents)
    data = load_idx_dataset(with_sources(tiny_spec, good), data_dir=tmp_path)
    assert len(data.test_images) == 3
    assert good.asked == list(tiny_contents)[done:]


def test_a_variant_is_never_filled_up_with_public_files(tmp_path, tiny_spec, tiny_contents, encode_idx):
    put(tmp_path / "tiny", {"train-labels": encode_idx(np.array([2, 2, 2, 1, 1, 0]))})
    shelf = Shelf(tiny_contents)
    with pytest.raises(DatasetNotFoundError, match="not the public file"):
        load_idx_dataset(with_sources(tiny_spec, shelf), data_dir=tmp_path)
    assert shelf.asked == []


def test_a_missing_dataset_says_what_to_put_where_and_what_was_tried(tmp_path, tiny_spec, tiny_contents):
    put(tmp_path / "tiny", {"train-images": tiny_contents["train-images"]})
    broken = Shelf(tiny_contents, breaks_after=0, error=FetchError("x", ["no answer"]))
    with pytest.raises(DatasetNotFoundError) as caught:
        load_idx_dataset(with_sources(tiny_spec, broken), data_dir=tmp_path)
    assert caught.value.files == ("train-labels", "test-images", "test-labels")
    for part in (str(tmp_path / "tiny"), "train-labels", "1 of 4", "shelf", "no answer"):
        assert part in str(caught.value)


def test_a_folder_that_cannot_be_made_is_found_out_before_anything_is_fetched(tmp_path, tiny_spec, tiny_contents):
    (tmp_path / "tiny").write_bytes(b"a file in the way")
    shelf = Shelf(tiny_contents)
    with pytest.raises(DatasetNotFoundError, match="cannot be made"):
        load_idx_dataset(with_sources(tiny_spec, shelf), data_dir=tmp_path)
    assert shelf.asked == []


def test_a_folder_that_cannot_be_written_to_is_found_out_likewise(tmp_path, monkeypatch, tiny_spec, tiny_contents):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    shelf = Shelf(tiny_contents)
    with pytest.raises(DatasetNotFoundError, match="cannot be written"):
        load_idx_dataset(with_sources(tiny_spec, shelf), data_dir=tmp_path)
    assert shelf.asked == []


@pytest.mark.parametrize("spec", [MNIST, FASHION_MNIST], ids=lambda spec: spec.name)
def test_the_real_specifications_are_consistent(spec):
    assert [file.size for file in spec.files] == [47040016, 60008, 7840016, 10008]
    assert len({file.sha256 for file in MNIST.files + FASHION_MNIST.files}) == 8
    assert all(len(file.sha256) == 64 for file in spec.files)
    assert len(spec.classes) == 10
