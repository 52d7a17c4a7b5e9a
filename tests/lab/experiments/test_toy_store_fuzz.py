"""The toy's folder, damaged: what was kept, or nothing, so that it is made again."""

import io
import json
import zipfile
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import bounded, damaged, fuzz

from elign.lab.experiments.toy_result import Picture, SeedResult
from elign.lab.experiments.toy_store import ToyStore

RESULT = SeedResult(0, {"base": 80.5, "eli": 90.0}, 70.0, 60.0, 1.5, 0.5, 2.0, 3.0)


def picture() -> Picture:
    arrays = {field.name: np.arange(4.0, dtype=np.float32) for field in fields(Picture)}
    return Picture(**arrays | {"energy": {"old": np.ones(3, dtype=np.float32)}, "class_names": ("a", "b")})


@pytest.fixture
def store(tmp_path):
    store = ToyStore(tmp_path, {"x": 1})
    store.save_seed(RESULT)
    store.save_picture(picture())
    return store


@fuzz(120)
@given(data=st.data())
def test_a_damaged_seed_is_the_same_or_none(store, data):
    store.save_seed(RESULT)
    path = store.folder / "seed-0.json"
    path.write_bytes(data.draw(damaged((path.read_bytes(),), text=True)))
    with bounded():
        found = store.seed(0)
    assert found in (None, RESULT) or "digest" not in json.loads(path.read_bytes())


@fuzz(120)
@given(data=st.data())
def test_a_damaged_picture_is_the_same_or_none(store, data):
    store.save_picture(picture())
    path = store.folder / "picture.npz"
    path.write_bytes(data.draw(damaged((path.read_bytes(),))))
    with bounded():
        found = store.picture()
    assert found is None or isinstance(found, Picture)


def test_a_picture_that_would_fill_the_memory_is_not_unpacked(store, monkeypatch):
    monkeypatch.setattr("elign.lab.experiments.toy_store._MAX_PICTURE_BYTES", 1 << 20)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (100 << 20,)})
    with (
        zipfile.ZipFile(store.folder / "picture.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        packed.open("loss.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for _ in range(100):
            member.write(bytes(1 << 20))
    with bounded(megabytes=48):
        assert store.picture() is None


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"{}", b"[" * 100_000])
def test_damaged_settings_count_as_others(store, content):
    (store.folder / "settings.json").write_bytes(content)
    assert ToyStore(store.folder, {"x": 1}).seed(0) is None
    assert json.loads((store.folder / "settings.json").read_bytes()) == {"x": 1}


@pytest.mark.parametrize(
    "change", [{"seed": 5}, {"readings": [1]}, {"readings": {"base": "x"}}, {"new_task": None}, {"drift_after": "1"}]
)
def test_a_seed_of_an_older_version_with_wrong_values_counts_as_none(store, change):
    path = store.folder / "seed-0.json"
    content = {name: value for name, value in json.loads(path.read_bytes()).items() if name != "digest"}
    path.write_text(json.dumps(content))
    assert store.seed(0) == RESULT
    path.write_text(json.dumps(content | change))
    assert store.seed(0) is None
