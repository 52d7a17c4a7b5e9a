"""Folders of pictures with damaged lists: files that are there, or the named error."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.data.errors import DataError
from elign.lab.data.image_folders import read_folders, split_folder

TINY = b"a.JPEG\tn01\t0\t0\t62\t57\nb.JPEG\tn02\t3\t3\t9\t9\n"
CSV = b"ImageId,PredictionString\na,n01 1 2 3 4\nb,n02 5 6 7 8\n"


@pytest.fixture
def folder(tmp_path):
    for name in ("train/n01/x.JPEG", "train/n02/y.JPEG", "val/images/a.JPEG", "val/images/b.JPEG", "outside.JPEG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@fuzz(80)
@given(data=st.data(), tiny=st.booleans())
def test_damaged_lists_name_pictures_that_are_there_or_are_named(folder, data, tiny):
    path = folder / ("val/val_annotations.txt" if tiny else "LOC_val_solution.csv")
    path.write_bytes(data.draw(damaged((TINY if tiny else CSV,), text=True)))
    found = answer(lambda: read_folders("x", folder, needed="..."), names=path)
    path.unlink()
    assert found is None or all(found.test.path(row).parent == folder / "val/images" for row in range(len(found.test)))


@fuzz(40)
@given(line=st.text(max_size=20), before=st.sampled_from(["", "../", "/", "../../", "./"]))
def test_a_list_reaches_nothing_outside(folder, line, before):
    path = folder / "val/val_annotations.txt"
    path.write_text(f"{before}outside.JPEG n01\n{line}", encoding="utf-8", errors="replace")
    assert answer(lambda: read_folders("x", folder, needed="..."), names=path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
def test_a_class_whose_name_is_no_text_is_named_before_anything_is_trained(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/cl\xe4ss")  # noqa: PTH102  (a path of bytes)
    with pytest.raises(DataError, match="not UTF-8: rename it"):
        split_folder("x", tmp_path, needed="...")
