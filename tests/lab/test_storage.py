"""JSON objects and tensors in files: no damage passes, older files are read. And seeds by purpose."""

import json

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.environment import derive_seed
from elign.lab.storage import (
    DamagedRunError,
    parse_object,
    read_object,
    read_tensors,
    write_object,
    write_tensors,
)
from elign.utils.fitted import digest

CONTENT = {"seed": 3, "name": "Grüße", "sizes": [4, 3], "rate": 0.1, "none": None}


def test_there_and_back_also_without_the_digest_that_older_files_lack(tmp_path):
    write_object(tmp_path / "x", {**CONTENT, "sizes": (4, 3)})
    assert read_object(tmp_path / "x") == CONTENT
    assert list(json.loads((tmp_path / "x").read_text())) == [*CONTENT, "digest"]
    (tmp_path / "x").write_text(json.dumps(CONTENT))
    assert read_object(tmp_path / "x") == CONTENT


@fuzz(150)
@given(data=st.data())
def test_no_damage_passes(tmp_path, data):
    path = tmp_path / "x"
    write_object(path, CONTENT)
    path.write_bytes(data.draw(damaged((path.read_bytes(),), text=True)))
    with bounded():
        try:
            found = read_object(path)
        except ValueError:
            return
    # Without its digest a file is one of an older version, which nothing vouches for.
    assert found == CONTENT or "digest" not in json.loads(path.read_bytes())


@pytest.mark.parametrize(("text", "why"), [("[" * 100_000, "deeply"), ("[]", "no object"), (b"\xff", "decode")])
def test_what_is_no_object_is_a_value_error_that_says_why(text, why):
    with pytest.raises(ValueError, match=why):
        parse_object(text)


def test_tensors_and_metadata_survive(tmp_path):
    shared = torch.arange(6).view(2, 3)
    write_tensors(tmp_path / "f", {"a": shared, "b": shared, "c": shared.t(), "d": torch.empty(0, 4)}, {"n": [1, None]})
    tensors, metadata = read_tensors(tmp_path / "f", expect=["a", "d"])
    assert torch.equal(tensors["c"], shared.t())
    assert tensors["d"].shape == (0, 4)
    assert metadata == {"n": [1, None]}


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_tensors(tmp_path / "f")
    write_tensors(tmp_path / "f", {"a": torch.zeros(1)})
    with pytest.raises(DamagedRunError, match="lacks b, c"):
        read_tensors(tmp_path / "f", expect=["a", "b", "c"])


TENSORS = {"a": torch.arange(12.0).view(3, 4), "memory.3": torch.tensor([5, 1])}
METADATA = {"task": 1, "seconds": 2.5}


def test_a_file_of_version_0_1_is_read(tmp_path):
    header = {"facts": json.dumps(METADATA)}
    (tmp_path / "x").write_bytes(safetensors.torch.save(TENSORS, header | {"digest": digest(header, TENSORS)}))
    assert read_tensors(tmp_path / "x")[1] == METADATA


@fuzz(120)
@given(data=st.data())
def test_no_damage_of_tensors_passes(tmp_path, data):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, METADATA)
    path.write_bytes(data.draw(damaged((path.read_bytes(),))))
    # Only white space of the header may differ.
    tensors, metadata = answer(lambda: read_tensors(path), names=path, says="Remove this file") or (TENSORS, METADATA)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_seeds_repeat_and_differ_between_purposes_and_experiments():
    assert derive_seed(3, "model") == derive_seed(3, "model")
    seeds = {derive_seed(seed, purpose) for seed in range(50) for purpose in ("model", "energy model", "random shift")}
    assert len(seeds) == 150
