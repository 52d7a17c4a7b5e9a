"""Files of a run's tensors, damaged: what was written, or the named error that says what to do."""

import json

import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.tensor_file import read_tensors, write_tensors
from elign.utils.fitted import digest

TENSORS = {"a": torch.arange(12.0).view(3, 4), "memory.3": torch.tensor([5, 1])}
FACTS = {"task": 1, "seconds": 2.5}


def content_of(path, facts) -> bytes:
    metadata = {"facts": json.dumps(facts)}
    path.write_bytes(safetensors.torch.save(TENSORS, metadata | {"digest": digest(metadata, TENSORS)}))
    return path.read_bytes()


@fuzz(120)
@given(data=st.data())
def test_no_damage_passes(tmp_path, data):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, FACTS)
    path.write_bytes(data.draw(damaged((path.read_bytes(),))))
    found = answer(lambda: read_tensors(path), names=path, says="Remove this file")
    if found is None:
        return
    tensors, facts = found
    # Only white space of the header may differ.
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@fuzz(40)
@given(facts=st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3) | st.just(FACTS))
def test_facts_are_an_object_or_the_file_is_named(tmp_path, facts):
    content_of(tmp_path / "x", facts)
    found = answer(lambda: read_tensors(tmp_path / "x")[1], says="holds no object")
    assert found == (FACTS if facts == FACTS else None)
