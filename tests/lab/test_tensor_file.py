import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elign.lab.tensor_file import DamagedRunError, read_tensors, write_tensors


def test_tensors_and_facts_survive(tmp_path):
    shared = torch.arange(6).view(2, 3)
    write_tensors(tmp_path / "f", {"a": shared, "b": shared, "c": shared.t(), "d": torch.empty(0, 4)}, {"n": [1, None]})
    tensors, facts = read_tensors(tmp_path / "f", expect=["a", "d"])
    assert torch.equal(tensors["c"], shared.t())
    assert tensors["d"].shape == (0, 4)
    assert facts == {"n": [1, None]}


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_tensors(tmp_path / "f")
    write_tensors(tmp_path / "f", {"a": torch.zeros(1)})
    with pytest.raises(DamagedRunError, match="lacks b, c"):
        read_tensors(tmp_path / "f", expect=["a", "b", "c"])


@given(place=st.integers(0, 10_000), flip=st.integers(1, 255), cut=st.booleans())
def test_no_damage_passes(tmp_path_factory, place, flip, cut):
    file = tmp_path_factory.mktemp("t") / "f"
    write_tensors(file, {"a": torch.arange(50.0)}, {"epoch": 3})
    content = bytearray(file.read_bytes())
    if cut:
        content = content[: place % len(content)]
    else:
        content[place % len(content)] ^= flip
    file.write_bytes(content)
    try:
        tensors, facts = read_tensors(file)
    except DamagedRunError:
        return
    # A changed blank in the header is no damage.
    assert torch.equal(tensors["a"], torch.arange(50.0))
    assert facts == {"epoch": 3}
