"""Files: whole, honest about damage, never a pickle."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzzing import signed

from elign import (
    Aligner,
    Always,
    EnergyAligner,
    FileFormatError,
    Gate,
    Identity,
    LocalShift,
    MeanShift,
    OptionError,
    Ridge,
)
from elign.utils.fitted import from_config, register, registered, to_config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    aligner = EnergyAligner(hidden=(3,), iterations=2).fit_latents(z - 1, z)
    path = aligner.save(tmp_path_factory.mktemp("saved") / "aligner.safetensors")
    return aligner, path.read_bytes()


def content(data, folder):
    """Metadata and tensors of a file."""
    path = folder / "content"
    path.write_bytes(data)
    with safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def refused(path, reader=Aligner):
    with pytest.raises(FileFormatError) as caught:
        reader.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_file_is_plain_safetensors_with_its_options_in_the_open(saved, tmp_path):
    aligner, data = saved
    metadata, tensors = content(data, tmp_path)
    assert (metadata["format"], metadata["version"], metadata["class"]) == ("elign", "2", "EnergyAligner")
    assert json.loads(metadata["config"]) == aligner.config()
    assert tensors.keys() == aligner.state_dict().keys()
    assert all(torch.equal(value, aligner.state_dict()[name]) for name, value in tensors.items())


# --- damage ----------------------------------------------------------------------------------------------


def test_a_file_that_is_cut_short_or_too_long_is_refused(saved, tmp_path):
    path = tmp_path / "wrong"
    for data in (*(saved[1][:length] for length in range(0, len(saved[1]), 97)), saved[1] + b"\0"):
        path.write_bytes(data)
        refused(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_anywhere_is_refused(saved, tmp_path, data):
    damaged = bytearray(saved[1])
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "damaged"
    path.write_bytes(damaged)
    try:
        loaded = Aligner.load(path)
    except FileFormatError:
        return
    # Only what has no meaning (white space of the header) may differ.
    original = saved[0].state_dict()
    assert loaded.config() == saved[0].config()
    assert all(torch.equal(value, original[name]) for name, value in loaded.state_dict().items())


def test_a_changed_weight_or_option_is_refused_even_where_it_makes_sense(saved, tmp_path):
    for change in (
        lambda metadata, tensors: tensors["energy.layers.0.bias"].add_(1e-3),
        lambda metadata, tensors: metadata.update(config=metadata["config"].replace('"steps": 30', '"steps": 31')),
    ):
        metadata, tensors = content(saved[1], tmp_path)
        change(metadata, tensors)
        path = tmp_path / "changed"
        path.write_bytes(safetensors.torch.save(tensors, metadata))
        assert "damaged" in refused(path)


# --- foreign and odd files -------------------------------------------------------------------------------


def test_a_pickle_is_refused_unread(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    (tmp_path / "a").write_bytes(pickle.dumps(Bomb()))
    torch.save(Bomb(), tmp_path / "b")
    for name in "ab":
        refused(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}], ids=str)
def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path, metadata):
    path = tmp_path / "foreign"
    path.write_bytes(safetensors.torch.save({"w": torch.zeros(2)}, metadata))
    assert "not written by elign" in refused(path)


@pytest.mark.parametrize("version", ["3", "999999999", "9" * 5000, "", "-1", "1.0", "one"], ids=lambda v: v[:9])
def test_a_newer_or_senseless_version_is_refused(saved, tmp_path, version):
    metadata, tensors = content(saved[1], tmp_path)
    assert "upgrade" in refused(signed(tmp_path / "file", metadata | {"version": version}, tensors))


def test_a_class_that_is_not_known_is_refused(saved, tmp_path):
    metadata, tensors = content(saved[1], tmp_path)
    assert "'Magic'" in refused(signed(tmp_path / "file", metadata | {"class": "Magic"}, tensors))
    for missing in ("class", "config"):
        refused(signed(tmp_path / "file", {key: value for key, value in metadata.items() if key != missing}, tensors))


def test_another_class_than_asked_for_is_refused(saved, tmp_path):
    path = saved[0].save(tmp_path / "a")
    for reader in (Ridge, Gate):
        assert "holds a EnergyAligner" in refused(path, reader)
    Always().save(tmp_path / "gate")
    refused(tmp_path / "gate", Aligner)


def test_a_file_that_is_not_there_is_its_own_error(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FileNotFoundError, match=tmp_path.name):
            Aligner.load(path)


# --- writing ---------------------------------------------------------------------------------------------


def test_what_is_loaded_draws_no_random_numbers_and_keeps_nothing_of_the_file(saved, tmp_path, untouched_random_state):
    path = saved[0].save(tmp_path / "aligner")
    # Under inference mode: it can be used and changed outside all the same.
    with torch.inference_mode():
        loaded = Aligner.load(path)
    assert not any(value.is_inference() for value in loaded.state_dict().values())
    path.write_bytes(b"\0" * 10)
    path.unlink()
    z = torch.eye(4)
    assert torch.equal(loaded.align(z), saved[0].align(z))
    loaded.load_state_dict(saved[0].state_dict())


def test_an_unfitted_state_dict_loads_into_a_fresh_one():
    fresh = Identity()
    fresh.load_state_dict(Identity().state_dict())
    assert not fresh.fitted


def test_a_state_dict_of_the_same_dimension_is_copied_into_the_parameters_that_are_there(saved):
    z = torch.randn(20, 4)
    other = EnergyAligner(hidden=(3,), iterations=2, seed=1).fit_latents(z - 1, z)
    before = list(other.parameters())
    other.load_state_dict(saved[0].state_dict())
    assert all(a is b for a, b in zip(before, other.parameters(), strict=True))
    assert torch.equal(other.align(z), saved[0].align(z))


def test_a_class_of_ones_own_cannot_take_a_name_of_ours():
    with pytest.raises(TypeError, match="choose another name"):
        register(type("Ridge", (Aligner,), {"__module__": "elsewhere"}))
    assert registered("Ridge") is Ridge


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (EnergyAligner, {"hidden": np.array([3]), "iterations": np.int64(2), "batch_size": torch.tensor(8)}),
        (EnergyAligner, {"iterations": 2, "step_size": np.float32(0.5), "half_step": np.bool_(True)}),
        (LocalShift, {"bandwidth": np.float32(0.5), "anchors": np.int32(5)}),
        (Ridge, {"penalty": torch.tensor(0.25)}),
    ],
)
def test_options_may_be_numbers_of_numpy_and_torch(kind, options, tmp_path):
    z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    made = kind(**options)
    loaded = Aligner.load(made.fit_latents(z - 1, z).save(tmp_path / "a"))
    assert loaded.config() == made.config()
    assert torch.equal(loaded.align(z), made.align(z))


def test_options_that_no_file_can_hold_are_named(tmp_path):
    @register
    class Odd(Identity):
        def __init__(self, penalty):
            super().__init__()
            self.penalty = penalty

    with pytest.raises(OptionError, match="Tensor cannot be saved"):
        Odd(torch.ones(3)).fit_latents(torch.zeros(1, 4), torch.zeros(1, 4)).save(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_class_that_is_not_registered_is_not_saved(tmp_path):
    class Unknown(Identity):
        pass

    # A subclass is not what its base class is: the file would come back as the base class.
    with pytest.raises(OptionError, match="register"):
        Unknown().fit_latents(torch.zeros(1, 4), torch.zeros(1, 4)).save(tmp_path / "a")
    assert not list(tmp_path.iterdir())
    assert registered("Unknown") is None


def test_options_are_the_arguments_of_the_class_as_plain_values(tmp_path):
    @register
    class Holder(Identity):
        def __init__(self, parts, *, part, shape=(2, 3), name="a", nothing=None):
            super().__init__()
            self.parts, self.part, self.shape, self.name, self.nothing = parts, part, shape, name, nothing

    made = Holder([MeanShift(), Ridge(penalty=0.5)], part=LocalShift(anchors=7))
    shift, ridge = ({"class": "MeanShift", "config": {}}, {"class": "Ridge", "config": {"penalty": 0.5}})
    assert made.config() == {
        "parts": [shift, ridge],
        "part": to_config(made.part),
        "shape": [2, 3],
        "name": "a",
        "nothing": None,
    }
    assert json.loads(json.dumps(made.config())) == made.config()
    again = from_config(to_config(made.part), Aligner)
    assert type(again) is LocalShift
    assert again.config() == made.part.config()
    assert from_config(made.part, Aligner) is made.part


def test_a_file_that_somebody_removes_while_it_is_opened_is_not_there(saved, tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(saved[1])
    opened = safetensors.safe_open

    def too_late(*args, **options):
        path.unlink()
        return opened(*args, **options)

    monkeypatch.setattr(safetensors, "safe_open", too_late)
    with pytest.raises(FileNotFoundError, match="no such file"):
        Aligner.load(path)
